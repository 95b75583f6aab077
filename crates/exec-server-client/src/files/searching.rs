//! Reads the pages of a search.

use std::marker::PhantomData;

use exec_server_protocol::fs::{
    FsCancelSearchParams, FsFindPage, FsNextPageParams, FsSearchPage, FsSearchState,
};
use exec_server_protocol::methods::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::call::PendingCall;
use crate::caller::Caller;
use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;

/// The pages of a search; dropping it ends the search on the server.
///
/// The server searches ahead by a few pages and then waits. The search belongs to one connection: after a disconnect the
/// next page is an error.
pub struct SearchPages<P> {
    search: Running,
    pending: Option<PendingCall>,
    pages: PhantomData<fn() -> P>,
}

struct Running {
    connection: ExecServerConnection,
    id: String,
    is_over: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            let params = FsCancelSearchParams { search_id: self.id.clone() };
            self.connection.shared().clean_up(Method::FsCancelSearch.name(), &params);
        }
    }
}

/// A page of a search.
pub trait SearchPage: DeserializeOwned {
    /// How far the search has come.
    fn state(&self) -> &FsSearchState;
}

impl SearchPage for FsSearchPage {
    fn state(&self) -> &FsSearchState {
        &self.state
    }
}

impl SearchPage for FsFindPage {
    fn state(&self) -> &FsSearchState {
        &self.state
    }
}

impl<P: SearchPage> SearchPages<P> {
    pub(super) async fn start(
        caller: &Caller,
        method: Method,
        id: String,
        params: &impl Serialize,
    ) -> Result<Self, ExecServerError> {
        let connection = caller.connection().await?;
        let mut search = Running { connection, id, is_over: true };
        let pending = search.connection.request(method.name(), params)?;
        search.is_over = false;
        Ok(Self { search, pending: Some(pending), pages: PhantomData })
    }

    /// The next page; `None` after the last one.
    pub async fn next_page(&mut self) -> Result<Option<P>, ExecServerError> {
        if self.search.is_over {
            return Ok(None);
        }
        if self.pending.is_none() {
            let params = FsNextPageParams { search_id: self.search.id.clone() };
            let name = Method::FsNextPage.name();
            self.pending = Some(self.search.connection.request(name, &params)?);
        }
        let pending = self.pending.as_mut().expect("set above");
        let answer = pending.await.and_then(|reply| reply.decode::<P>());
        self.pending = None;
        match answer {
            Ok(page) => {
                self.search.is_over = page.state().done;
                Ok(Some(page))
            }
            Err(error) => {
                self.search.is_over = true;
                Err(error)
            }
        }
    }
}
