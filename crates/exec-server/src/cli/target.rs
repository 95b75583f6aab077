//! Resolves TARGET to a server and connects to it.

mod relay;

use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use clap_complete::engine::ArgValueCompleter;
use exec_server::sandbox_command::NamedPolicy;
use exec_server_client::relay::{RelayTarget, TokenSource};
use exec_server_client::{
    Dial, Endpoint, Environment, Environments, EnvironmentsError, ExecServerClientConnectOptions,
    IgnoredListener, RemoteExecServerClient, RemoteExecServerConnectArgs, StdioServer,
};
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_protocol::methods::Method;
use serde_json::Value;

use self::relay::RelayOptions;
pub use self::relay::environment_name;
use super::failure::Failure;
use super::otlp_options::OTLP_VARIABLE;
use super::telemetry;

/// Client name in the logs and session lists of servers.
const CLIENT_NAME: &str = "exec-server-cli";
const URL_VARIABLE: &str = "EXEC_SERVER_URL";
const TOKEN_VARIABLE: &str = "EXEC_SERVER_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "EXEC_SERVER_TOKEN_FILE";
/// Prefix of a command that starts a server for one invocation.
pub const STDIO_PREFIX: &str = "stdio:";
const HEADING: &str = "Connecting";

/// Connection and authentication options.
#[derive(Debug, Clone, clap::Args)]
pub struct TargetOptions {
    /// File with the access token for the target [default: $EXEC_SERVER_TOKEN_FILE, or $EXEC_SERVER_TOKEN, which holds
    /// the token itself; env:NAME has variables of its own].
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    token_file: Option<PathBuf>,
    /// Certificates to trust for wss:// in place of the system's, in PEM form.
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_CA_FILE", help_heading = HEADING)]
    ca_file: Option<PathBuf>,
    /// File with named targets [default: ~/.config/exec-server/environments.toml, then that of the Codex CLI].
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_ENVIRONMENTS", help_heading = HEADING)]
    environments: Option<PathBuf>,
    /// Timeout for connecting and for the first answer.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::cli::positive_duration, help_heading = HEADING)]
    connect_timeout: Duration,
    /// Send spans of this command to this OpenTelemetry collector by OTLP over HTTP (http://HOST:4318), or `env` for the
    /// one in OTEL_EXPORTER_OTLP_ENDPOINT. See docs/observability.md.
    #[arg(long, value_name = "URL", env = OTLP_VARIABLE, help_heading = HEADING)]
    otlp: Option<String>,
    #[command(flatten)]
    relay: RelayOptions,
}

/// Arguments of a command whose only operand is a server.
#[derive(Debug, clap::Args)]
pub struct Targeted {
    /// The server: a URL, env:NAME, stdio:COMMAND, or a name from environments.toml.
    #[arg(value_name = "TARGET", add = ArgValueCompleter::new(crate::cli::completion::targets))]
    pub target: Option<String>,
    #[command(flatten)]
    pub options: TargetOptions,
}

impl Targeted {
    /// Requests the environment info.
    pub async fn environment(&self) -> Result<EnvironmentInfo, Failure> {
        let client =
            self.options.connect(self.target.as_deref(), &ResumeOptions::default()).await?;
        Ok(client.environment_info().await?)
    }

    /// Requests the environment info as raw JSON.
    pub async fn raw_environment(&self) -> Result<Value, Failure> {
        let client =
            self.options.connect(self.target.as_deref(), &ResumeOptions::default()).await?;
        Ok(client.call(Method::EnvironmentInfo.name(), &Value::Null).await?)
    }
}

/// Which session a connection resumes.
#[derive(Debug, Default)]
pub struct ResumeOptions {
    /// The session id; none for a new session.
    pub resume: Option<String>,
    /// Whether to take the session over from an attached client.
    pub take_over: bool,
}

impl TargetOptions {
    /// Connects to a target.
    pub async fn connect(
        &self,
        target: Option<&str>,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        let client = self.client(target, resume_options)?;
        // Connects now, so that connection errors are reported as such.
        client.session().connection().await?;
        Ok(client)
    }

    /// The transport to a target; nothing is connected yet.
    pub fn transport(&self, target: Option<&str>) -> Result<Arc<dyn Dial>, Failure> {
        Ok(self.client(target, &ResumeOptions::default())?.session().transport())
    }

    /// Whether the server outlives this client; a server that the client starts does not.
    pub fn outlives_us(&self, target: Option<&str>) -> Result<bool, Failure> {
        let default = default_target();
        match target.or(default.as_deref()) {
            Some(text) if is_url(text) || environment_name(text).is_some() => Ok(true),
            Some(text) if text.starts_with(STDIO_PREFIX) => Ok(false),
            name => {
                Ok(!matches!(self.environments()?.get(name)?.endpoint, Endpoint::Program { .. }))
            }
        }
    }

    /// Whether the first of several words names a server rather than a process.
    pub fn is_target(&self, word: &str) -> bool {
        if is_address(word) {
            return true;
        }
        let environments = self.environments();
        let is_listed = environments.as_ref().is_ok_and(|list| list.get(Some(word)).is_ok());
        let has_default = default_target().is_some()
            || environments.as_ref().is_ok_and(|list| list.get(None).is_ok());
        // Without a default server the first word must be a server.
        is_listed || !has_default
    }

    /// The names in environments.toml; none if it cannot be read.
    pub fn listed_names(&self) -> Vec<String> {
        let list = self.environments();
        let names = list.iter().flat_map(|list| list.all()).map(|listed| listed.id.clone());
        names.collect()
    }

    /// The same options with a shorter connect timeout.
    pub fn hurried(mut self, timeout: Duration) -> Self {
        self.connect_timeout = self.connect_timeout.min(timeout);
        self
    }

    /// Whether a target is a URL, so that connecting starts no program and trusts no new key.
    pub fn only_listens(&self, target: Option<&str>) -> bool {
        let default = default_target();
        match target.or(default.as_deref()) {
            Some(text) if is_url(text) => true,
            Some(text) if is_address(text) => false,
            name => {
                let list = self.environments();
                let listed = list.as_ref().ok().and_then(|list| list.get(name).ok());
                listed.is_some_and(|listed| matches!(listed.endpoint, Endpoint::Url { .. }))
            }
        }
    }

    fn client(
        &self,
        target: Option<&str>,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        telemetry::start(self.otlp.as_deref())
            .map_err(|error| Failure::Usage(error.to_string()))?;
        let default = default_target();
        let target = target.or(default.as_deref());
        if let Some(name) = target.and_then(environment_name) {
            return self.registered(name, resume_options);
        }
        match target {
            Some(text) if is_url(text) => {
                self.websocket(text, self.connect_timeout, None, None, resume_options)
            }
            Some(text) => match text.strip_prefix(STDIO_PREFIX) {
                Some(command) => self.program(command, resume_options),
                None => self.environment(Some(text), resume_options),
            },
            None => self.environment(None, resume_options),
        }
    }

    fn environment(
        &self,
        name: Option<&str>,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        let environments = self.environments()?;
        let Environment { endpoint, initialize_timeout, .. } = environments.get(name)?;
        match endpoint {
            Endpoint::Url { url, connect_timeout, token } => {
                let token = token.as_ref().and_then(TokenSource::given).map(str::to_owned);
                self.websocket(
                    url,
                    *connect_timeout,
                    Some(*initialize_timeout),
                    token,
                    resume_options,
                )
            }
            Endpoint::Relay(listed) => {
                let place = self.relay_target(&listed.environment_id, Some(listed))?;
                self.through_relay(&place, *initialize_timeout, resume_options)
            }
            Endpoint::Program { program, args, env, cwd } => {
                self.relay.refuse()?;
                let mut server = StdioServer::new(program).args(args.iter().cloned());
                for (name, value) in env {
                    server = server.env(name, value);
                }
                if let Some(cwd) = cwd {
                    server = server.current_dir(cwd);
                }
                Ok(over(Arc::new(server), *initialize_timeout, resume_options))
            }
        }
    }

    /// Resolves an environment by its name at a registry, or by its entry in environments.toml.
    fn registered(
        &self,
        name: &str,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        let environments = self.environments()?;
        let is_listed = |environment: &Environment| {
            environment.id == name && matches!(environment.endpoint, Endpoint::Relay(_))
        };
        if environments.all().iter().any(is_listed) {
            return self.environment(Some(name), resume_options);
        }
        let mut place = self.relay_target(name, None)?;
        place.connect_timeout = self.connect_timeout;
        self.through_relay(&place, self.connect_timeout, resume_options)
    }

    fn relay_target(
        &self,
        name: &str,
        listed: Option<&RelayTarget>,
    ) -> Result<RelayTarget, Failure> {
        self.relay.target(name, listed, self.token_file.as_deref())
    }

    fn through_relay(
        &self,
        place: &RelayTarget,
        initialize_timeout: Duration,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        let mut args = place.connect_args()?;
        args.ca_file.clone_from(&self.ca_file);
        args.options = options(initialize_timeout, resume_options);
        relay::report_keys(&mut args);
        Ok(RemoteExecServerClient::through_relay(args)?)
    }

    fn environments(&self) -> Result<Environments, EnvironmentsError> {
        if let Some(path) = &self.environments {
            return read_environments(path).inspect(warn_of_ignored_keys);
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
        .inspect(warn_of_ignored_keys)
    }

    fn websocket(
        &self,
        url: &str,
        connect_timeout: Duration,
        initialize_timeout: Option<Duration>,
        listed_token: Option<String>,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        self.relay.refuse()?;
        let mut args = RemoteExecServerConnectArgs::new(url).connect_timeout(connect_timeout);
        // A listed token belongs to this server; the environment variables may be for another one.
        args.bearer_token = match (&self.token_file, listed_token) {
            (None, Some(token)) => Some(token),
            _ => self.token()?,
        };
        args.ca_file.clone_from(&self.ca_file);
        args.options = options(initialize_timeout.unwrap_or(self.connect_timeout), resume_options);
        Ok(RemoteExecServerClient::new(args)?)
    }

    fn program(
        &self,
        command: &str,
        resume_options: &ResumeOptions,
    ) -> Result<RemoteExecServerClient, Failure> {
        self.relay.refuse()?;
        let mut words = words_of(command)?.into_iter();
        let program = words.next().ok_or_else(|| {
            Failure::Usage(
                "stdio: needs a program, such as `stdio:ssh host exec-server --listen stdio`"
                    .to_owned(),
            )
        })?;
        let server = StdioServer::new(program).args(words);
        Ok(over(Arc::new(server), self.connect_timeout, resume_options))
    }

    /// Read from a file or a variable, never from arguments, which every local user can read.
    fn token(&self) -> Result<Option<String>, Failure> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let named = || variable(TOKEN_FILE_VARIABLE).map(PathBuf::from);
        let Some(path) = self.token_file.clone().or_else(named) else {
            return Ok(std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()));
        };
        let text = std::fs::read_to_string(&path).map_err(|source| {
            Failure::local(format!("could not read {}", path.display()), source)
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
    resume_options: &ResumeOptions,
) -> RemoteExecServerClient {
    RemoteExecServerClient::over(server, options(initialize_timeout, resume_options))
}

fn options(
    initialize_timeout: Duration,
    resume_options: &ResumeOptions,
) -> ExecServerClientConnectOptions {
    ExecServerClientConnectOptions {
        client_name: CLIENT_NAME.to_owned(),
        initialize_timeout,
        resume_session_id: resume_options.resume.clone(),
        take_over: resume_options.take_over,
        on_ignored: Some(IgnoredListener::new(warn_of_ignored)),
        tracing: telemetry::tracing(),
        ..ExecServerClientConnectOptions::default()
    }
}

/// Warns once per process that the server ignored members of a request.
fn warn_of_ignored(method: &str, members: &[String]) {
    static ONCE: Once = Once::new();
    let members: Vec<String> = members.iter().map(|member| escape_untrusted(member, 64)).collect();
    ONCE.call_once(|| {
        eprintln!(
            "exec-server: warning: the server does not know `{}` of {method} and ignored it (update the server)",
            members.join("`, `")
        );
    });
}

fn read_environments(path: &std::path::Path) -> Result<Environments, EnvironmentsError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| EnvironmentsError::Read { path: path.to_owned(), source })?;
    Environments::parse(&text, path)
}

/// The words of a `stdio:` command as a shell would see them; nothing is expanded.
fn words_of(command: &str) -> Result<Vec<String>, Failure> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(letters.next()),
            (None, _) if letter.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if let Some(quote) = quote {
        let text = format!("the command of `stdio:{command}` has a {quote} without an end");
        return Err(Failure::Usage(text));
    }
    words.extend(word);
    Ok(words)
}

/// Whether a target is an address (URL, stdio: or env:) and not a name from environments.toml.
pub fn is_address(text: &str) -> bool {
    is_url(text) || text.starts_with(STDIO_PREFIX) || environment_name(text).is_some()
}

/// Warns once about unknown keys in environments.toml.
fn warn_of_ignored_keys(environments: &Environments) {
    static WARNED: Once = Once::new();
    let keys = environments.ignored_keys();
    if !keys.is_empty() {
        WARNED.call_once(|| {
            let names = keys.iter().map(|key| key.escape_debug().to_string());
            let names = names.collect::<Vec<_>>().join(", ");
            eprintln!("exec-server: keys of environments.toml that are not known here are ignored: {names}");
        });
    }
}

/// Whether a target has one of the schemes ws, wss and unix.
pub fn is_url(text: &str) -> bool {
    ["ws://", "wss://", "unix://"].iter().any(|scheme| text.starts_with(scheme))
}

/// The `sandbox` object of a named policy for a remote directory.
pub fn remote_sandbox(writes_workspace: bool, has_network: bool, cwd: PathBuf) -> Value {
    NamedPolicy { writes_workspace, has_network, writable: Vec::new(), cwd }.to_sandbox()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stdio_command_has_the_words_that_a_shell_sees() {
        let words = |text| words_of(text).unwrap();
        assert_eq!(
            words("ssh host  exec-server --listen stdio"),
            ["ssh", "host", "exec-server", "--listen", "stdio"]
        );
        assert_eq!(
            words(r#"a 'b c' "d \" e" f\ g '' h"i"j"#),
            ["a", "b c", "d \" e", "f g", "", "hij"]
        );
        assert_eq!(words("  "), Vec::<String>::new());
        assert!(words_of("a 'b").is_err() && words_of("a \"b").is_err());
    }
}
