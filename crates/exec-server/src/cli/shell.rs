//! `shell`: opens the login shell of the server's user.

use std::io::{self, IsTerminal};

use clap_complete::engine::ArgValueCompleter;

use super::compat;
use super::console::Console;
use super::detach_keys::DetachKeys;
use super::escapes::EscapeChar;
use super::exec_options::{Attachment, ExecOptions, StartSpec};
use super::failure::Failure;
use super::follow::Input;
use super::input_queue::LocalKeys;
use super::run::{NOTHING_STARTED, new_id, start_and_follow};
use super::target::{ResumeOptions, TargetOptions};

/// Arguments of `shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArguments {
    /// Working directory on the server [default: the user's home].
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// Key sequence that detaches from the shell, or none.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    /// Escape character after Enter, as in ssh: ~. leaves, ~? lists all sequences; ^X means Ctrl-X, none disables them.
    #[arg(long, value_name = "CHAR", default_value = EscapeChar::DEFAULT, allow_hyphen_values = true)]
    escape_char: EscapeChar,
    #[command(flatten)]
    options: TargetOptions,
    /// The server: a URL, env:NAME, stdio:COMMAND, or a name from environments.toml.
    #[arg(value_name = "TARGET", add = ArgValueCompleter::new(crate::cli::completion::targets))]
    target: Option<String>,
}

/// Starts the login shell that the server reports, or /bin/sh.
pub async fn run(arguments: ShellArguments) -> Result<u8, Failure> {
    let target = arguments.target.as_deref();
    let mut console =
        Console::open(LocalKeys { detach: arguments.detach_keys, escape: arguments.escape_char })?;
    if arguments.options.outlives_us(target)? {
        console.read_keys()?;
    }
    let resume_options = ResumeOptions::default();
    let client = console
        .wait_for(NOTHING_STARTED, arguments.options.connect(target, &resume_options))
        .await?;
    let info = console.wait_for(NOTHING_STARTED, client.known_environment()).await?;
    compat::check_script(info.as_ref().map(|info| info.capabilities).unwrap_or_default())?;
    let shell = info.as_ref().map_or("/bin/sh", |info| &info.shell.path).to_owned();
    // A script on stdin is run without a terminal.
    let has_terminal = io::stdin().is_terminal();
    let wanted = StartSpec {
        id: new_id(),
        is_named: false,
        argv: vec![shell, "-l".to_owned()],
        has_terminal,
        has_input: true,
        timeout: None,
        attachment: Attachment::Attached,
    };
    let has_home = info.as_ref().is_some_and(|info| info.user_home_dir.is_some());
    let workdir = arguments.workdir.or_else(|| has_home.then(|| "~".to_owned()));
    let params = ExecOptions::in_directory(workdir).params(wanted, info.as_ref())?;
    start_and_follow(&client, target, params, console, Input::Stdin).await
}
