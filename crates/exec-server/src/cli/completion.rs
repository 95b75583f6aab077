//! Shell completion: the scripts for each shell, and the `__complete` command that they call.
//!
//! Subcommands, options and their values come from the clap definition; targets from environments.toml; ids and paths
//! from the server. A query takes at most [`QUERY_TIMEOUT`], and a failure produces no candidates.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use clap_complete::engine::CompletionCandidate;

use super::{Arguments, Command};
use crate::cli::{
    ClientCommand, CpPath, ResumeOptions, TargetOptions, entries, remote_path, sessions,
    with_signal_option,
};

/// Every script quotes what it inserts, because names of a server must not become syntax of the local shell.
const BASH: &str = include_str!("completion/exec-server.bash");
const ZSH: &str = include_str!("completion/exec-server.zsh");
const FISH: &str = include_str!("completion/exec-server.fish");

/// Longest wait for a server after the Tab key.
const QUERY_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longer lists are useless at a prompt.
const MAX_CANDIDATES: usize = 1000;

/// Arguments of the hidden `__complete` command.
#[derive(Debug, clap::Args)]
pub struct CompleteArguments {
    /// Index of the word to complete; 0 is the program.
    index: usize,
    /// The words of the line, at least up to that index.
    #[arg(last = true, required = true)]
    words: Vec<OsString>,
}

/// The line that is being completed, because clap passes only the current word to a completer.
static LINE: OnceLock<Vec<OsString>> = OnceLock::new();

/// Prints one candidate per line.
pub fn run(arguments: CompleteArguments) -> ExitCode {
    let CompleteArguments { index, mut words } = arguments;
    words.truncate(index.saturating_add(1));
    if words.len() <= index {
        return ExitCode::SUCCESS;
    }
    // Options are candidates only if the word begins with a dash.
    let is_empty = words[index].is_empty();
    LINE.get_or_init(|| words.clone());
    let mut command = Arguments::command();
    let found = clap_complete::engine::complete(&mut command, words, index, None);
    let mut text = Vec::new();
    for candidate in found.unwrap_or_default().iter().filter(|it| !it.is_hide_set()) {
        if let Some(value) = candidate.get_value().to_str()
            && !value.contains(char::is_control)
            && !(is_empty && value.starts_with('-'))
        {
            text.extend_from_slice(value.as_bytes());
            text.push(b'\n');
        }
    }
    // A closed stdout is not an error.
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}

/// Prints the completion script of a shell.
pub fn print_script(shell: Shell) -> ExitCode {
    let mut text = Vec::new();
    match shell {
        Shell::Bash => text.extend_from_slice(BASH.as_bytes()),
        Shell::Zsh => text.extend_from_slice(ZSH.as_bytes()),
        Shell::Fish => text.extend_from_slice(FISH.as_bytes()),
        other => {
            clap_complete::generate(other, &mut Arguments::command(), "exec-server", &mut text)
        }
    }
    // A closed stdout is not an error.
    let _ = std::io::stdout().write_all(&text);
    ExitCode::SUCCESS
}

/// Completes TARGET with the names in environments.toml.
pub fn targets(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let names = current_options().map(|options| options.listed_names()).unwrap_or_default();
    names
        .into_iter()
        .filter(|name| name.starts_with(current))
        .map(CompletionCandidate::new)
        .collect()
}

/// Completes TARGET:PATH: target names up to the colon, remote paths after it.
pub fn cp_paths(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(text) = current.to_str() else { return Vec::new() };
    if text.contains(':') {
        return paths(text).unwrap_or_default();
    }
    let names = current_options().map(|options| options.listed_names()).unwrap_or_default();
    let names = names.into_iter().filter(|name| name.starts_with(text));
    names.map(|name| CompletionCandidate::new(format!("{name}:"))).collect()
}

/// Completes process ids, and target names in the first position.
pub fn processes(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    let mut found = ids(current).unwrap_or_default();
    if LINE.get().is_some_and(|line| !line.iter().skip(2).any(|word| is_plain(word))) {
        found.extend(targets(OsStr::new(current)));
    }
    found
}

/// Whether a word is a positional argument before the current word.
fn is_plain(word: &OsStr) -> bool {
    let is_current = LINE.get().and_then(|line| line.last()).is_some_and(|last| last == word);
    !is_current && !word.as_encoded_bytes().starts_with(b"-")
}

fn ids(current: &str) -> Option<Vec<CompletionCandidate>> {
    let command = parsed("x")?;
    let (options, target) = match &command {
        ClientCommand::Attach(arguments) => arguments.reference().place(),
        ClientCommand::Logs(arguments) => arguments.reference().place(),
        ClientCommand::Kill(arguments) => arguments.references().place(),
        ClientCommand::Wait(arguments) => arguments.references().place(),
        _ => return None,
    };
    let wants_ended = matches!(command, ClientCommand::Logs(_) | ClientCommand::Wait(_));
    let sessions = ask(options, target, async |client| sessions(&client).await.ok())?;
    let processes = sessions.into_iter().flat_map(|session| session.processes);
    let processes = processes.filter(|process| wants_ended || !process.exited);
    let ids = processes.map(|process| process.process_id.to_string());
    let matching = ids.filter(|id| id.starts_with(current)).take(MAX_CANDIDATES);
    Some(matching.map(CompletionCandidate::new).collect())
}

fn paths(current: &str) -> Option<Vec<CompletionCandidate>> {
    let CpPath::Remote { target, path } = CpPath::from(OsString::from(current)) else {
        return None;
    };
    let (directory, name) = match path.rfind('/') {
        Some(slash) => path.split_at(slash + 1),
        None => ("", path.as_str()),
    };
    let command = parsed(":/x")?;
    let options = match &command {
        ClientCommand::Ls(arguments) => arguments.options(),
        ClientCommand::Cat(arguments) => arguments.options(),
        ClientCommand::Grep(arguments) => arguments.options(),
        ClientCommand::Find(arguments) => arguments.options(),
        ClientCommand::Watch(arguments) => arguments.options(),
        ClientCommand::Replace(arguments) => arguments.options(),
        ClientCommand::Cp(arguments) => arguments.options(),
        _ => return None,
    };
    let found = ask(options, target.as_deref(), async |client| {
        let info = client.known_environment().await.ok()?;
        let cwd = info.as_ref().and_then(|info| info.cwd.as_ref());
        let home = info.as_ref().and_then(|info| info.user_home_dir.as_ref());
        let directory = remote_path(directory.as_bytes(), cwd, home).ok()?;
        entries(&client, &directory, &None).await.ok()
    })?;
    let start = &current[..current.len() - name.len()];
    let is_meant =
        |file: &str| file.starts_with(name) && (name.starts_with('.') || !file.starts_with('.'));
    let mut candidates: Vec<String> = found
        .iter()
        .filter(|(_, entry)| is_meant(&entry.file_name))
        .map(|(_, entry)| {
            let end = if entry.is_directory { "/" } else { "" };
            format!("{start}{}{end}", entry.file_name)
        })
        .take(MAX_CANDIDATES)
        .collect();
    candidates.sort();
    Some(candidates.into_iter().map(CompletionCandidate::new).collect())
}

/// Parses the line with `placeholder` in place of the current word.
fn parsed(placeholder: &str) -> Option<ClientCommand> {
    let mut words = LINE.get()?.clone();
    *words.last_mut()? = placeholder.into();
    let arguments = Arguments::try_parse_from(with_signal_option(words)).ok()?;
    match arguments.command {
        Some(Command::Client(command)) => Some(command),
        _ => None,
    }
}

/// The target options from environment variables, and `--environments` from the line.
fn current_options() -> Option<TargetOptions> {
    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        options: TargetOptions,
    }
    let file = LINE.get().and_then(|line| {
        let place = line.iter().position(|word| word == "--environments")?;
        line.get(place + 1).cloned()
    });
    let words = [OsString::from("exec-server")].into_iter();
    let words = words.chain(file.into_iter().flat_map(|file| ["--environments".into(), file]));
    Alone::try_parse_from(words).ok().map(|alone| alone.options)
}

/// Queries a server at a URL; completion never starts a program and never trusts a new executor key.
fn ask<T>(
    options: &TargetOptions,
    target: Option<&str>,
    question: impl AsyncFnOnce(exec_server_client::RemoteExecServerClient) -> Option<T>,
) -> Option<T> {
    if !options.only_listens(target) {
        return None;
    }
    let options = options.clone().hurried(QUERY_TIMEOUT);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async {
        let asking = async {
            let client = options.connect(target, &ResumeOptions::default()).await.ok()?;
            question(client).await
        };
        tokio::time::timeout(QUERY_TIMEOUT, asking).await.ok().flatten()
    });
    runtime.shutdown_background();
    answer
}
