//! `service install`: from arguments to files, and from files to a service that runs.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Parser;
use exec_server::ListenUrl;

use super::environment_file::{lines, words};
use super::files::{Content, Layout, ServiceFile};
use super::owned_file::{State, marked};
use super::systemd::{self, Activity, Systemd};
use super::units::{Kind, Scope, user_line};
use super::{ScopeOptions, Service, ServiceName};
use crate::cli::{Arguments, Failure};

/// Longest token that is read.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// Arguments of `service install`.
#[derive(Debug, clap::Args)]
pub struct InstallArguments {
    #[command(flatten)]
    scope: ScopeOptions,
    #[command(flatten)]
    service: ServiceName,
    /// Address of a server or a rendezvous, with a fixed port or a path
    /// [default: ws://127.0.0.1:7777, http://127.0.0.1:7780].
    #[arg(long, value_name = "URL")]
    listen: Option<String>,
    /// Let systemd listen (socket activation): a server starts with its first client, and clients wait during a restart.
    #[arg(long)]
    socket: bool,
    /// Rendezvous of an executor.
    #[arg(long, value_name = "URL")]
    remote: Option<url::Url>,
    /// File with the token that clients of a server send, or that an executor has from its rendezvous; - is stdin. The
    /// service gets a copy as a credential. An executor also takes EXEC_SERVER_REMOTE_TOKEN or _TOKEN_FILE.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Encrypt the copy of the token with the key of this machine (systemd-creds).
    #[arg(long)]
    encrypt: bool,
    /// Program that the unit starts [default: this program].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Install into the system below this directory, such as an image, and start nothing here.
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    root: Option<PathBuf>,
    /// Enable the service without starting it.
    #[arg(long)]
    no_start: bool,
    /// Replace units also if they were changed by hand.
    #[arg(long)]
    force: bool,
    /// Print the files and commands, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Options of the server or the rendezvous; paths must be absolute.
    #[arg(last = true, value_name = "OPTION")]
    options: Vec<String>,
}

/// Installs, enables and starts a service.
pub fn run(arguments: &InstallArguments) -> Result<u8, Failure> {
    let service = Service::new(arguments.service.kind, arguments.service.name.as_deref())?;
    let scope = arguments.scope.scope();
    let layout = Layout::of(scope, arguments.root.as_deref())?;
    let plan = Plan::make(arguments, &service, &layout)?;
    if arguments.dry_run {
        plan.print(&layout);
        return Ok(0);
    }
    let systemd = Systemd::to_change(&layout, arguments.root.as_deref())?;
    plan.refuse_others(&layout, arguments.force)?;
    plan.carry_out(&layout, &systemd)
}

/// What an installation consists of.
struct Plan {
    service: Service,
    files: Vec<ServiceFile>,
    /// Files of an earlier installation that this one does not have.
    obsolete: Vec<PathBuf>,
    /// The units to enable and to start, the socket unit first.
    enabled: Vec<String>,
    /// The unit that an earlier installation may have enabled, and that the socket unit starts now.
    disabled: Option<String>,
    /// The name and the file of the socket unit.
    socket: Option<(String, PathBuf)>,
    /// Whether systemd makes a user before the first start.
    makes_user: bool,
    starts: bool,
    /// Where clients find the service.
    address: Option<String>,
    notes: Vec<String>,
}

impl Plan {
    fn make(
        arguments: &InstallArguments,
        service: &Service,
        layout: &Layout,
    ) -> Result<Self, Failure> {
        let kind = service.kind;
        arguments.check_combination(kind)?;
        let listen = arguments.listen_address(kind)?;
        let token = arguments.token(kind)?;
        let is_kept = |path: &Path| layout.actual(path).exists();
        let (plain, encrypted) = (layout.token(service), layout.encrypted_token(service));
        let is_encrypted = if token.is_some() { arguments.encrypt } else { is_kept(&encrypted) };
        let has_token = token.is_some() || is_kept(&plain) || is_kept(&encrypted);
        let mut notes = Vec::new();
        if token.is_none() && has_token {
            notes.push("the service keeps the token that it has".to_owned());
        }
        if kind == Kind::Executor && !has_token {
            let text = "an executor needs the token of its rendezvous: --token-file FILE, or EXEC_SERVER_REMOTE_TOKEN \
                        (`exec-server token create --role executor` makes one there)";
            return Err(Failure::Usage(text.to_owned()));
        }
        if let Some(listen) = &listen {
            check_exposure(kind, listen, has_token, &arguments.options)?;
        }
        arguments.check_options(service, listen.as_deref(), kind == Kind::Server && has_token)?;

        let program = arguments.program(layout)?;
        let unit = |text: &str| Content::Text(marked(text));
        let mut files = Vec::new();
        let mut put = |path: PathBuf, content: Content| files.push(ServiceFile { path, content });
        if let Some(token) = token {
            if arguments.encrypt {
                let encrypted_token =
                    if arguments.dry_run { Vec::new() } else { systemd::encrypt(&token)? };
                put(encrypted.clone(), Content::Secret(encrypted_token));
            } else {
                put(plain.clone(), Content::Secret(token));
            }
        }
        put(layout.environment(service), unit(&arguments.variables(listen.as_deref())?));
        put(layout.unit(kind), unit(&kind.unit(layout.scope, &program)?));
        if let Some(text) = credential(service, has_token, is_encrypted) {
            put(layout.drop_in(service), unit(&text));
        }
        let mut enabled = vec![service.unit()];
        let (mut disabled, mut socket) = (None, None);
        if let (true, Some(path), Some(listen)) = (arguments.socket, layout.socket(kind), &listen) {
            let text = kind.socket(layout.scope, &place_of(listen)?).unwrap_or_default();
            let name = kind.socket_file().unwrap_or_default().to_owned();
            enabled.insert(0, name.clone());
            // A server starts with its first client; a rendezvous does work of its own.
            if kind == Kind::Server {
                enabled.truncate(1);
                disabled = Some(service.unit()).filter(|_| is_kept(&layout.unit(kind)));
            }
            put(path.clone(), unit(&text));
            socket = Some((name, path));
        }
        let stays = |path: &PathBuf| {
            let is_secret = *path == plain || *path == encrypted;
            let is_current = if is_encrypted { *path == encrypted } else { *path == plain };
            files.iter().any(|file| file.path == *path) || (is_secret && is_current)
        };
        let obsolete =
            layout.all(service).into_iter().filter(|path| !stays(path)).filter(|it| is_kept(it));
        Ok(Self {
            service: service.clone(),
            obsolete: obsolete.collect(),
            files,
            enabled,
            disabled,
            socket,
            makes_user: layout.scope == Scope::System && kind.user().is_some(),
            starts: !arguments.no_start && !layout.is_image(),
            address: listen,
            notes,
        })
    }

    fn print(&self, layout: &Layout) {
        for file in &self.files {
            match &file.content {
                Content::Text(text) => print!("# {}\n{text}\n", file.path.display()),
                Content::Secret(_) => {
                    println!("# {} (mode 600)\n# the token is not shown\n", file.path.display());
                }
            }
        }
        for path in &self.obsolete {
            println!("# {} is removed", path.display());
        }
        if self.makes_user {
            println!("# systemd-sysusers --inline '{}'", user_line());
        }
        let systemd = Systemd::assumed(layout.scope);
        println!("# {}", systemd.control_words(&["daemon-reload"]).join(" "));
        println!("# {}", systemd.control_words(&self.enable_words()).join(" "));
        if let Some(unit) = &self.disabled {
            println!("# {}", systemd.control_words(&["disable", unit]).join(" "));
        }
        if let Some((socket, _)) = self.socket.as_ref().filter(|_| self.starts) {
            for unit in &self.enabled {
                let verb = if unit == socket { "restart" } else { "start" };
                println!("# {}", systemd.control_words(&[verb, unit]).join(" "));
            }
        }
    }

    /// Fails before anything is written if a file is not ours, or was changed by hand.
    fn refuse_others(&self, layout: &Layout, is_forced: bool) -> Result<(), Failure> {
        for file in &self.files {
            let path = file.path.display();
            match layout.state(file)? {
                State::Foreign => {
                    return Err(Failure::Usage(format!(
                        "{path} exists and was not written by `exec-server service install`: use it as it is, or remove it first"
                    )));
                }
                State::Edited if !is_forced => {
                    return Err(Failure::Usage(format!(
                        "{path} was changed by hand: move the changes to a drop-in (`systemctl edit`) and repeat this with \
                         --force, which replaces the file"
                    )));
                }
                _ => {}
            }
        }
        let unit = self.service.kind.unit_file();
        let is_new = !layout.actual(&layout.unit(self.service.kind)).exists();
        match layout.packaged(unit).filter(|_| is_new) {
            Some(path) => Err(Failure::Usage(format!(
                "a package has the unit {} already: configure it in /etc/exec-server (docs/services.md) and start it with \
                 `systemctl enable --now {}`",
                path.display(),
                self.service.unit()
            ))),
            None => Ok(()),
        }
    }

    fn enable_words(&self) -> Vec<&str> {
        let mut words = vec!["enable"];
        words.extend((self.starts && self.socket.is_none()).then_some("--now"));
        words.extend(self.enabled.iter().map(String::as_str));
        words
    }

    fn carry_out(&self, layout: &Layout, systemd: &Systemd) -> Result<u8, Failure> {
        let unit = self.service.unit();
        let before = systemd.activity(&unit);
        let (mut is_changed, mut is_socket_changed) = (false, false);
        // A socket unit that is not wanted any more is stopped while systemd knows its file.
        if let Some(socket) =
            layout.socket(self.service.kind).filter(|it| self.obsolete.contains(it))
        {
            let name = socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let words: &[&str] =
                if layout.is_image() { &["disable", &name] } else { &["disable", "--now", &name] };
            systemd.control(words)?;
        }
        for path in &self.obsolete {
            if layout.remove(path)? {
                println!("removed {}", path.display());
                is_changed = true;
            }
        }
        for file in &self.files {
            let (path, state) = (file.path.display(), layout.state(file)?);
            match state {
                State::Same => println!("unchanged {path}"),
                _ => {
                    layout.write(file)?;
                    is_changed = true;
                    is_socket_changed |=
                        self.socket.as_ref().is_some_and(|(_, socket)| *socket == file.path);
                    println!(
                        "{} {path}",
                        if state == State::Missing { "wrote" } else { "replaced" }
                    );
                }
            }
        }
        if self.makes_user {
            systemd.make_user(user_line())?;
        }
        if is_changed && !layout.is_image() {
            systemd.control(&["daemon-reload"])?;
        }
        systemd.control(&self.enable_words())?;
        if let Some(unit) = &self.disabled {
            systemd.control(&["disable", unit])?;
        }
        let is_running = before == Activity::Running;
        let is_socket_outdated = match &self.socket {
            Some((socket, _)) if is_running => {
                is_socket_changed || systemd.activity(socket) != Activity::Running
            }
            Some((socket, _)) if self.starts => {
                self.start_behind(socket, is_socket_changed, before, systemd)?;
                false
            }
            _ => false,
        };
        self.report(layout, is_running && is_changed, is_socket_outdated);
        Ok(0)
    }

    /// Starts the socket unit, and then the service if it does not wait for a client.
    fn start_behind(
        &self,
        socket: &str,
        is_changed: bool,
        before: Activity,
        systemd: &Systemd,
    ) -> Result<(), Failure> {
        let unit = self.service.unit();
        // Systemd starts no socket unit beside a service that tries to start; such a service has no commands yet.
        if before == Activity::Changing {
            systemd.control(&["stop", &unit])?;
        }
        // At a reload, an active socket unit closes its old address without opening the new one.
        systemd.control(&[if is_changed { "restart" } else { "start" }, socket])?;
        if self.enabled.contains(&unit) {
            systemd.control(&["start", &unit])?;
        }
        Ok(())
    }

    fn report(&self, layout: &Layout, is_outdated: bool, is_socket_outdated: bool) {
        let unit = self.service.unit();
        let enabled = if self.enabled.contains(&unit) { &unit } else { &self.enabled[0] };
        let started = if *enabled == unit { "started" } else { "listens" };
        let user = if layout.scope == Scope::User { " --user" } else { "" };
        for note in &self.notes {
            println!("{note}");
        }
        match (&self.address, self.starts) {
            (_, true) if is_socket_outdated => println!("{enabled} is enabled"),
            (Some(address), true) => println!("{enabled} is enabled and {started} at {address}"),
            (None, true) => println!("{enabled} is enabled and {started}"),
            (_, false) => println!("{enabled} is enabled, and starts with the system"),
        }
        // Systemd restarts no socket unit while its service runs, not even together with it.
        let commands = match &self.socket {
            Some((socket, _)) if is_socket_outdated => format!(
                "systemctl{user} stop {socket} {unit} && systemctl{user} start {}",
                self.enabled.join(" ")
            ),
            _ => format!("systemctl{user} restart {unit}"),
        };
        if is_outdated || is_socket_outdated {
            println!(
                "{unit} still runs with its old settings: `{commands}` applies the new ones, and ends its commands"
            );
        }
        if self.starts {
            println!("status: exec-server service status{user} {}", self.service.words());
        }
        if layout.scope == Scope::User && self.starts {
            println!("it ends when you log out, unless `loginctl enable-linger` was called once");
        }
        if self.service.kind == Kind::Rendezvous {
            let state = Kind::Rendezvous.state_dir(layout.scope);
            println!(
                "let a machine in: exec-server token create --data {state} --environment NAME --role executor"
            );
        }
    }
}

impl InstallArguments {
    fn check_combination(&self, kind: Kind) -> Result<(), Failure> {
        let is_executor = kind == Kind::Executor;
        let word = kind.word();
        let refused = [
            (
                is_executor && self.listen.is_some(),
                "--listen",
                "it dials its rendezvous and does not listen",
            ),
            (is_executor && self.socket, "--socket", "it dials its rendezvous and does not listen"),
            (
                !is_executor && self.remote.is_some(),
                "--remote",
                "it is of an executor: `service install executor NAME`",
            ),
            (
                kind == Kind::Rendezvous && self.token_file.is_some(),
                "--token-file",
                "it makes its own tokens",
            ),
            (self.encrypt && self.scope.user, "--encrypt", "only the system's systemd has a key"),
            (
                self.encrypt && self.root.is_some(),
                "--encrypt",
                "the key of this machine is not that of the image",
            ),
        ];
        if let Some((_, option, reason)) = refused.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            return Err(Failure::Usage(format!("{option} does not fit this {word}: {reason}")));
        }
        if is_executor && self.remote.is_none() {
            let text = "an executor needs --remote URL, the address of its rendezvous";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(())
    }

    /// The address of `--listen`, or the default of the unit.
    fn listen_address(&self, kind: Kind) -> Result<Option<String>, Failure> {
        let default = match kind {
            Kind::Server => "ws://127.0.0.1:7777",
            Kind::Executor => return Ok(None),
            Kind::Rendezvous => "http://127.0.0.1:7780",
        };
        let address = self.listen.as_deref().unwrap_or(default);
        if address.trim_end_matches('/').ends_with(":0") {
            let text = format!("{address}: a service needs a fixed port, so that clients find it");
            return Err(Failure::Usage(text));
        }
        Ok(Some(address.to_owned()))
    }

    /// The token to copy, without white space around it.
    fn token(&self, kind: Kind) -> Result<Option<Vec<u8>>, Failure> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = match (&self.token_file, kind) {
            (Some(path), _) if path.as_os_str() == "-" => {
                let mut text = String::new();
                let read = std::io::stdin().lock().take(MAX_TOKEN_BYTES).read_to_string(&mut text);
                read.map_err(|error| Failure::local("could not read the token from stdin", error))?;
                Some(text)
            }
            (Some(path), _) => Some(read_token(path)?),
            (None, Kind::Executor) => {
                match (set("EXEC_SERVER_REMOTE_TOKEN"), set("EXEC_SERVER_REMOTE_TOKEN_FILE")) {
                    (Some(token), _) => Some(token.to_string_lossy().into_owned()),
                    (None, Some(path)) => Some(read_token(Path::new(&path))?),
                    (None, None) => None,
                }
            }
            (None, _) => None,
        };
        let token = text.map(|text| text.trim().to_owned().into_bytes());
        if token.as_ref().is_some_and(Vec::is_empty) {
            return Err(Failure::Usage("the token is empty".to_owned()));
        }
        Ok(token)
    }

    /// The variables of the unit.
    fn variables(&self, listen: Option<&str>) -> Result<String, Failure> {
        let mut variables = Vec::new();
        if let Some(listen) = listen {
            variables.push(("EXEC_SERVER_LISTEN", listen.to_owned()));
        }
        if let Some(remote) = &self.remote {
            variables.push(("EXEC_SERVER_REMOTE", remote.to_string()));
        }
        variables.push(("EXEC_SERVER_OPTIONS", words(&self.options)?));
        lines(&variables)
    }

    /// Parses the command line of the unit, so that a mistake is found before the service fails.
    fn check_options(
        &self,
        service: &Service,
        listen: Option<&str>,
        has_auth: bool,
    ) -> Result<(), Failure> {
        let mut line = vec!["exec-server"];
        if service.kind == Kind::Rendezvous {
            line.extend(["rendezvous", "--data", "/nonexistent"]);
        }
        line.extend(listen.into_iter().flat_map(|listen| ["--listen", listen]));
        if let Some(remote) = &self.remote {
            line.extend(["--remote", remote.as_str(), "--environment-id", &service.name]);
        }
        if has_auth {
            line.extend(["--ws-auth", "capability-token", "--ws-token-file", "/nonexistent"]);
        }
        line.extend(self.options.iter().map(String::as_str));
        match Arguments::try_parse_from(&line) {
            Ok(parsed) if parsed.command.is_none() || service.kind == Kind::Rendezvous => Ok(()),
            Ok(_) => Err(Failure::Usage(format!(
                "`{}` is no option of a server",
                self.options.join(" ")
            ))),
            Err(error) => {
                let text = error.to_string();
                let text =
                    text.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
                let text = text.trim_start_matches("error: ").to_owned();
                Err(Failure::Usage(format!("the service would not start: {text}")))
            }
        }
    }

    /// The program that the unit starts; what the unit hides cannot be started.
    fn program(&self, layout: &Layout) -> Result<PathBuf, Failure> {
        let program = match &self.program {
            Some(path) => path.clone(),
            None => std::env::current_exe().map_err(|error| {
                Failure::local("could not find the path of this program", error)
            })?,
        };
        let hidden = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];
        let is_hidden = hidden.iter().any(|dir| program.starts_with(dir));
        if layout.scope == Scope::System && is_hidden {
            return Err(Failure::Usage(format!(
                "the unit cannot start {}: services of the system do not see /home, /root and /tmp (ProtectHome=, PrivateTmp=). \
                 Install the program first (`sh install.sh` as root), name it with --program, or use --user",
                program.display()
            )));
        }
        Ok(program)
    }
}

/// The drop-in that passes the token on, where the unit does not do it by itself.
fn credential(service: &Service, has_token: bool, is_encrypted: bool) -> Option<String> {
    let (directive, file) = match is_encrypted {
        true => ("LoadCredentialEncrypted", "cred"),
        false => ("LoadCredential", "token"),
    };
    match service.kind {
        Kind::Server if has_token => Some(format!(
            "[Service]\n{directive}=token:%E/exec-server/server.{file}\n\
             Environment=\"EXEC_SERVER_AUTH=--ws-auth capability-token --ws-token-file %d/token\"\n"
        )),
        // The unit has LoadCredential=, which an empty one resets.
        Kind::Executor if is_encrypted => Some(format!(
            "[Service]\nLoadCredential=\n{directive}=token:%E/exec-server/executor-%i.{file}\n"
        )),
        _ => None,
    }
}

/// Refuses a server that the network reaches without a token; it would not start.
fn check_exposure(
    kind: Kind,
    listen: &str,
    has_token: bool,
    options: &[String],
) -> Result<(), Failure> {
    if kind != Kind::Server {
        return Ok(());
    }
    let url: ListenUrl =
        listen.parse().map_err(|error: exec_server::ExecServerListenUrlParseError| {
            Failure::Usage(error.to_string())
        })?;
    if url == ListenUrl::Stdio {
        return Err(Failure::Usage(
            "a service cannot serve over stdio; give --listen an address".to_owned(),
        ));
    }
    let has = |name: &str| options.iter().any(|word| word.starts_with(name));
    if url.is_local() || has_token || has("--ws-auth") || has("--insecure-no-auth") {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{listen} is open to the network without authentication: give clients a token with --token-file FILE, listen on \
         127.0.0.1, or add `-- --insecure-no-auth`"
    )))
}

/// `IP:PORT` or the path of an address, for `ListenStream=`.
fn place_of(listen: &str) -> Result<String, Failure> {
    let place = match listen.strip_prefix("unix://") {
        Some(path) => path,
        None => listen.split_once("://").map_or(listen, |(_, rest)| rest).trim_end_matches('/'),
    };
    if place.contains(|letter: char| letter.is_whitespace() || letter == '%') {
        return Err(Failure::Usage(format!("{listen} cannot be the address of a .socket unit")));
    }
    Ok(place.to_owned())
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let failed =
        |error| Failure::local(format!("could not read the token in {}", path.display()), error);
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_TOKEN_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}
