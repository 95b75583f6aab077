//! `--user` of the commands for files.

use exec_server_client::{ExecutorFileSystem, RemoteExecServerClient};
use exec_server_protocol::user::UserName;

use super::failure::Failure;

/// The user whose rights hold.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct UserOption {
    /// Use the rights of this user of the server's machine, by name or number; new files belong to it.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl UserOption {
    /// The user for requests to this server; fails if the server cannot change users.
    pub async fn name(&self, client: &RemoteExecServerClient) -> Result<Option<UserName>, Failure> {
        let Some(user) = &self.user else { return Ok(None) };
        if client.session().connection().await?.capabilities().fs_user {
            return Ok(Some(UserName(user.clone())));
        }
        let text = "this server cannot change users: it uses files with its own rights (--user)";
        Err(Failure::Usage(text.to_owned()))
    }
}

/// The files of a server, with the rights of the user.
pub fn files(client: &RemoteExecServerClient, user: &Option<UserName>) -> ExecutorFileSystem {
    match user {
        Some(user) => client.fs().with_user(user.clone()),
        None => client.fs(),
    }
}
