//! Which server is meant, and the way to it.

mod relay;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server::sandbox_command::NamedPolicy;
use exec_server_client::relay::RelayPlace;
use exec_server_client::{
    Dial, Environment, Environments, EnvironmentsError, ExecServerClientConnectOptions,
    RemoteExecServerClient, RemoteExecServerConnectArgs, StdioServer, Way,
};
use exec_server_protocol::environment::EnvironmentInfo;
use serde_json::Value;

use self::relay::RelayOptions;
pub use self::relay::environment_name;
use super::failure::Failure;

/// What our sessions are called in the logs and lists of servers.
const CLIENT_NAME: &str = "exec-server-cli";
const URL_VARIABLE: &str = "EXEC_SERVER_URL";
const TOKEN_VARIABLE: &str = "EXEC_SERVER_TOKEN";
const HEADING: &str = "Connecting";

/// How to get to a server, and in.
#[derive(Debug, Clone, clap::Args)]
pub struct TargetOptions {
    /// File with the token that the server wants; $EXEC_SERVER_TOKEN may hold the token itself.
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_TOKEN_FILE", help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// Certificates to trust for wss:// in place of the system's, in PEM form.
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_CA_FILE", help_heading = HEADING)]
    ca_file: Option<PathBuf>,
    /// The list of named targets [default: ~/.config/exec-server/environments.toml, then that of the Codex CLI].
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_ENVIRONMENTS", help_heading = HEADING)]
    environments: Option<PathBuf>,
    /// How long the server may take to answer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::cli::positive_duration, help_heading = HEADING)]
    connect_timeout: Duration,
    #[command(flatten)]
    relay: RelayOptions,
}

/// A command that needs nothing but a server.
#[derive(Debug, clap::Args)]
pub struct Targeted {
    /// The server: a URL, env:NAME, or a name from environments.toml.
    #[arg(value_name = "TARGET")]
    pub target: Option<String>,
    #[command(flatten)]
    pub options: TargetOptions,
}

impl Targeted {
    /// What the server's machine is like.
    pub async fn environment(&self) -> Result<EnvironmentInfo, Failure> {
        let client = self.options.connect(self.target.as_deref(), &Wish::default()).await?;
        Ok(client.environment_info().await?)
    }
}

/// What a connection is for.
#[derive(Debug, Default)]
pub struct Wish {
    /// The session to go on with.
    pub resume: Option<String>,
    /// Whether to take it from a connection that is alive.
    pub take_over: bool,
}

impl TargetOptions {
    /// A client that is connected.
    pub async fn connect(
        &self,
        target: Option<&str>,
        wish: &Wish,
    ) -> Result<RemoteExecServerClient, Failure> {
        let client = self.client(target, wish)?;
        // Now, so that what is wrong with the link is told as that.
        client.session().connection().await?;
        Ok(client)
    }

    /// Whether a server goes on without us; one that we start ourselves does not.
    pub fn outlives_us(&self, target: Option<&str>) -> Result<bool, Failure> {
        let default = default_target();
        match target.or(default.as_deref()) {
            Some(text) if is_url(text) || environment_name(text).is_some() => Ok(true),
            Some(text) if text.starts_with("stdio:") => Ok(false),
            name => Ok(!matches!(self.environments()?.get(name)?.way, Way::Program { .. })),
        }
    }

    fn client(&self, target: Option<&str>, wish: &Wish) -> Result<RemoteExecServerClient, Failure> {
        let default = default_target();
        let target = target.or(default.as_deref());
        if let Some(name) = target.and_then(environment_name) {
            return self.registered(name, wish);
        }
        match target {
            Some(text) if is_url(text) => self.websocket(text, self.connect_timeout, None, wish),
            Some(text) => match text.strip_prefix("stdio:") {
                Some(command) => self.program(command, wish),
                None => self.environment(Some(text), wish),
            },
            None => self.environment(None, wish),
        }
    }

    fn environment(
        &self,
        name: Option<&str>,
        wish: &Wish,
    ) -> Result<RemoteExecServerClient, Failure> {
        let environments = self.environments()?;
        let Environment { way, initialize_timeout, .. } = environments.get(name)?;
        match way {
            Way::Url { url, connect_timeout } => {
                self.websocket(url, *connect_timeout, Some(*initialize_timeout), wish)
            }
            Way::Relay(listed) => {
                let place = self.relay.place(&listed.environment_id, Some(listed))?;
                self.through_relay(&place, *initialize_timeout, wish)
            }
            Way::Program { program, args, env, cwd } => {
                self.relay.refuse()?;
                let mut server = StdioServer::new(program).args(args.iter().cloned());
                for (name, value) in env {
                    server = server.env(name, value);
                }
                if let Some(cwd) = cwd {
                    server = server.current_dir(cwd);
                }
                Ok(over(Arc::new(server), *initialize_timeout, wish))
            }
        }
    }

    /// An environment by the name that its registry knows, or under which it is listed.
    fn registered(&self, name: &str, wish: &Wish) -> Result<RemoteExecServerClient, Failure> {
        let environments = self.environments()?;
        let is_listed = |environment: &Environment| {
            environment.id == name && matches!(environment.way, Way::Relay(_))
        };
        if environments.all().iter().any(is_listed) {
            return self.environment(Some(name), wish);
        }
        let mut place = self.relay.place(name, None)?;
        place.connect_timeout = self.connect_timeout;
        self.through_relay(&place, self.connect_timeout, wish)
    }

    fn through_relay(
        &self,
        place: &RelayPlace,
        initialize_timeout: Duration,
        wish: &Wish,
    ) -> Result<RemoteExecServerClient, Failure> {
        let mut args = place.connect_args()?;
        args.ca_file.clone_from(&self.ca_file);
        args.options = options(initialize_timeout, wish);
        relay::tell(&mut args);
        Ok(RemoteExecServerClient::through_relay(args)?)
    }

    fn environments(&self) -> Result<Environments, EnvironmentsError> {
        if let Some(path) = &self.environments {
            return read_environments(path);
        }
        let config = std::env::var_os("XDG_CONFIG_HOME").filter(|home| !home.is_empty());
        let config = config
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
        let ours = config.map(|config| config.join("exec-server/environments.toml"));
        match ours.filter(|path| path.exists()) {
            Some(path) => read_environments(&path),
            None => Environments::from_environment(),
        }
    }

    fn websocket(
        &self,
        url: &str,
        connect_timeout: Duration,
        initialize_timeout: Option<Duration>,
        wish: &Wish,
    ) -> Result<RemoteExecServerClient, Failure> {
        self.relay.refuse()?;
        let mut args = RemoteExecServerConnectArgs::new(url).connect_timeout(connect_timeout);
        args.bearer_token = self.token()?;
        args.ca_file.clone_from(&self.ca_file);
        args.options = options(initialize_timeout.unwrap_or(self.connect_timeout), wish);
        Ok(RemoteExecServerClient::new(args)?)
    }

    fn program(&self, command: &str, wish: &Wish) -> Result<RemoteExecServerClient, Failure> {
        self.relay.refuse()?;
        let mut words = command.split_ascii_whitespace();
        let program = words.next().ok_or_else(|| {
            Failure::Usage(
                "stdio: needs a program, such as `stdio:ssh host exec-server --listen stdio`"
                    .to_owned(),
            )
        })?;
        let server = StdioServer::new(program).args(words);
        Ok(over(Arc::new(server), self.connect_timeout, wish))
    }

    /// Never from the arguments, which everybody on the machine can read.
    fn token(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.token_file else {
            return Ok(std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()));
        };
        let text = std::fs::read_to_string(path).map_err(|source| {
            Failure::here(format!("could not read {}", path.display()), source)
        })?;
        match text.trim() {
            "" => Err(Failure::Usage(format!("the token file {} is empty", path.display()))),
            token => Ok(Some(token.to_owned())),
        }
    }
}

fn default_target() -> Option<String> {
    let url = std::env::var(URL_VARIABLE).ok()?;
    Some(url.trim().to_owned()).filter(|url| !url.is_empty())
}

fn over(
    server: Arc<dyn Dial>,
    initialize_timeout: Duration,
    wish: &Wish,
) -> RemoteExecServerClient {
    RemoteExecServerClient::over(server, options(initialize_timeout, wish))
}

fn options(initialize_timeout: Duration, wish: &Wish) -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        client_name: CLIENT_NAME.to_owned(),
        initialize_timeout,
        resume_session_id: wish.resume.clone(),
        take_over: wish.take_over,
        ..ExecServerClientConnectOptions::default()
    }
}

fn read_environments(path: &std::path::Path) -> Result<Environments, EnvironmentsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| EnvironmentsError::Read { path: path.to_owned(), source })?;
    Environments::parse(&text, path)
}

/// Whether a target is an address and not a name.
pub fn is_url(text: &str) -> bool {
    ["ws://", "wss://", "unix://"].iter().any(|scheme| text.starts_with(scheme))
}

/// The `sandbox` object of a policy with a name, for a directory of another machine.
pub fn remote_sandbox(writes_workspace: bool, has_network: bool, cwd: PathBuf) -> Value {
    NamedPolicy { writes_workspace, has_network, writable: Vec::new(), cwd }.to_sandbox()
}
