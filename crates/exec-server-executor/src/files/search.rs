//! `fs/search`, `fs/find`, `fs/nextPage` and `fs/cancelSearch`: the searches of one connection.
//!
//! ```text
//! entered ─first page▶ open ─fs/nextPage…▶ last page: gone
//!    └─────────┴─ fs/cancelSearch, an error, its time has passed, or the connection ended: gone
//! ```
//!
//! Owner: the connection (`Files`). A search without an id has one page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_fs::search::{PageText, Search, SearchSpec};
use exec_server_protocol::fs::{FsCancelSearchParams, FsCancelSearchResponse, FsNextPageParams};
use exec_server_protocol::limits::{MAX_PAGE_BYTES, MAX_SEARCHES};
use tokio::sync::watch;

use super::workers::Warm;
use super::{Guard, Scope};
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

/// A search with decoded params.
#[derive(Debug)]
pub struct SearchCall {
    pub id: Option<String>,
    pub spec: SearchSpec,
    pub scope: Scope,
}

/// The searches of one connection; dropping it ends them.
#[derive(Debug, Default)]
pub struct Searches {
    table: Arc<Table>,
}

#[derive(Debug, Default)]
struct Table {
    running: Mutex<HashMap<Key, Arc<Running>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Named(String),
    /// A search with one page.
    Anonymous(u64),
}

#[derive(Debug)]
struct Running {
    /// Pages are read one after the other.
    source: tokio::sync::Mutex<Option<Source>>,
    /// True once the search has left the table.
    over: watch::Sender<bool>,
}

#[derive(Debug)]
enum Source {
    /// Threads of this process.
    Local(Arc<Search>),
    /// A confined worker of its own, so that other requests of the policy do not wait.
    Confined(Warm, Guard),
}

/// How long an unread search is kept after its time, so that the client learns why it ended.
const GRACE: Duration = Duration::from_secs(30);
/// Memory of a page while it is written: its matches, which take more than their text, and its text twice.
const PAGE_ROOM: usize = 6 * MAX_PAGE_BYTES;

impl Searches {
    /// Starts a search and answers with its first page.
    pub fn start(
        &self,
        server: &Arc<Server>,
        call: SearchCall,
        guard: Option<Guard>,
        reply: Reply,
    ) {
        let (key, running) = match self.table.enter(call.id) {
            Ok(entered) => entered,
            Err(error) => return reply.fail(&error),
        };
        let entry = Entry { table: self.table.clone(), key, running };
        let time = call.spec.limits.timeout.saturating_add(GRACE);
        server.spawn(entry.clone().expire(time));
        server.spawn(entry.answer(Ask::First(Box::new(call.spec), guard), reply));
    }

    /// Answers with the next page of a search.
    pub fn next_page(&self, server: &Arc<Server>, params: FsNextPageParams, reply: Reply) {
        let key = Key::Named(params.search_id);
        match self.table.find(&key) {
            Some(running) => {
                let entry = Entry { table: self.table.clone(), key, running };
                server.spawn(entry.answer(Ask::Next, reply));
            }
            None => {
                let Key::Named(id) = key else { unreachable!("made above") };
                reply.fail(&RequestError::UnknownSearch(id));
            }
        }
    }

    /// Ends a search.
    pub fn cancel(&self, params: FsCancelSearchParams, reply: Reply) {
        let key = Key::Named(params.search_id);
        let found = self.table.find(&key);
        if let Some(running) = &found {
            self.table.leave(&key, running);
        }
        reply.ok(&FsCancelSearchResponse { cancelled: found.is_some() });
    }
}

impl Drop for Searches {
    fn drop(&mut self) {
        for (_, running) in self.table.lock().drain() {
            running.over.send_replace(true);
        }
    }
}

impl Table {
    fn enter(&self, id: Option<String>) -> Result<(Key, Arc<Running>), RequestError> {
        let mut running = self.lock();
        if running.len() >= MAX_SEARCHES {
            return Err(RequestError::TooManySearches);
        }
        let key = match id {
            Some(id) if running.contains_key(&Key::Named(id.clone())) => {
                return Err(RequestError::DuplicateSearch(id));
            }
            Some(id) => Key::Named(id),
            None => {
                let free = (0..).find(|number| !running.contains_key(&Key::Anonymous(*number)));
                Key::Anonymous(free.expect("the table is small"))
            }
        };
        let entry = Arc::new(Running {
            source: tokio::sync::Mutex::default(),
            over: watch::Sender::new(false),
        });
        running.insert(key.clone(), entry.clone());
        Ok((key, entry))
    }

    fn find(&self, key: &Key) -> Option<Arc<Running>> {
        self.lock().get(key).cloned()
    }

    /// Removes a search, unless its id belongs to a newer one.
    fn leave(&self, key: &Key, running: &Arc<Running>) {
        let mut table = self.lock();
        if table.get(key).is_some_and(|found| Arc::ptr_eq(found, running)) {
            table.remove(key);
        }
        running.over.send_replace(true);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Running>>> {
        self.running.lock().expect("no holder panics")
    }
}

/// One search and its place in the table.
#[derive(Clone)]
struct Entry {
    table: Arc<Table>,
    key: Key,
    running: Arc<Running>,
}

/// Which page is asked for.
enum Ask {
    First(Box<SearchSpec>, Option<Guard>),
    Next,
}

impl Entry {
    /// Sends a page; the search is over after its last page and after an error.
    async fn answer(self, ask: Ask, mut reply: Reply) {
        let mut over = self.running.over.subscribe();
        let page = tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => Err(RequestError::SearchCancelled),
            page = self.page(ask, &mut reply) => page,
        };
        let is_last = page.as_ref().map_or(true, |page| page.done);
        if is_last || matches!(self.key, Key::Anonymous(_)) {
            // Before the reply, so that the client can use the id again at once.
            self.table.leave(&self.key, &self.running);
            self.stop().await;
        }
        match page {
            Ok(page) => match reply.begin_text(page.text.len()) {
                Ok(mut text) => {
                    text.push(&page.text);
                    reply.ok_text(text);
                }
                Err(error) => reply.fail(&error),
            },
            Err(error) => reply.fail(&error),
        }
    }

    async fn page(&self, ask: Ask, reply: &mut Reply) -> Result<PageText, RequestError> {
        if !reply.try_reserve(PAGE_ROOM) {
            reply.reserve(PAGE_ROOM).await?;
        }
        let mut source = self.running.source.lock().await;
        match ask {
            Ask::First(spec, Some(guard)) => {
                let warm = guard.start_alone().await?;
                let worker = warm.worker().clone();
                let page = worker.search(*spec).await.map_err(|error| guard.error(error));
                *source = Some(Source::Confined(warm, guard));
                page
            }
            Ask::First(spec, None) => {
                let started = tokio::task::spawn_blocking(move || Search::start(*spec));
                let search = Arc::new(started.await.map_err(|_| RequestError::Abandoned)??);
                *source = Some(Source::Local(search.clone()));
                local_page(search).await
            }
            Ask::Next => match &*source {
                Some(Source::Local(search)) => local_page(search.clone()).await,
                Some(Source::Confined(warm, guard)) => {
                    warm.worker().next_page().await.map_err(|error| guard.error(error))
                }
                // The first page has failed, or the search was cancelled meanwhile.
                None => Err(RequestError::SearchCancelled),
            },
        }
    }

    /// Releases the threads or the worker.
    async fn stop(&self) {
        match self.running.source.lock().await.take() {
            Some(Source::Local(search)) => search.cancel(),
            Some(Source::Confined(..)) | None => {}
        }
    }

    /// Ends a search that is not read in time.
    async fn expire(self, time: Duration) {
        let mut over = self.running.over.subscribe();
        let _ = tokio::time::timeout(time, over.wait_for(|over| *over)).await;
        self.table.leave(&self.key, &self.running);
        self.stop().await;
    }
}

async fn local_page(search: Arc<Search>) -> Result<PageText, RequestError> {
    // The page comes at once when the search is cancelled, so that a dropped request frees its thread.
    let mut waiting = CancelOnDrop(Some(search.clone()));
    let page = tokio::task::spawn_blocking(move || search.next_page()).await;
    waiting.0 = None;
    page.map_err(|_| RequestError::Abandoned)
}

struct CancelOnDrop(Option<Arc<Search>>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(search) = self.0.take() {
            search.cancel();
        }
    }
}
