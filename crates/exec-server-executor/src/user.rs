//! The user that a request names, and whether this server can change to it.

use exec_server_os::accounts::{Account, Credentials};
use exec_server_os::{Peers, can_change_users};
use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_protocol::user::UserName;

use crate::errors::RequestError;

/// The user of a request.
#[derive(Debug, Clone)]
pub struct RequestUser {
    /// Name, home and shell.
    pub account: Account,
    /// None if the server runs as this user and cannot change users.
    pub credentials: Option<Credentials>,
}

/// Bounds the part of a name that an error message repeats.
const MAX_SHOWN_CHARS: usize = 100;

impl RequestUser {
    /// Looks up the user; reads the account files on a thread that may block.
    pub async fn find(user: &UserName) -> Result<Self, RequestError> {
        let name = user.as_str().to_owned();
        let looked_up = tokio::task::spawn_blocking(move || Account::find(&name)).await;
        let shown = || escape_untrusted(user.as_str(), MAX_SHOWN_CHARS);
        match looked_up.map_err(std::io::Error::other) {
            Ok(Ok(Some(account))) => Self::of(account),
            Ok(Ok(None)) => Err(RequestError::UnknownUser(shown())),
            Ok(Err(cause)) | Err(cause) => Err(RequestError::Users { user: shown(), cause }),
        }
    }

    fn of(account: Account) -> Result<Self, RequestError> {
        let credentials = Some(account.credentials.clone()).filter(|_| can_change_users());
        if credentials.is_none() && account.credentials.uid != Peers::own_uid() {
            return Err(RequestError::UserUnavailable(account.name));
        }
        Ok(Self { account, credentials })
    }
}
