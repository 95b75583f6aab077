//! `ps`: lists processes; also resolves process ids for other commands.

use clap_complete::engine::ArgValueCompleter;
use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{ExitReason, ProcessSummary};
use exec_server_protocol::session::{SessionListResponse, SessionSummary};
use serde_json::{Value, json};

use super::failure::Failure;
use super::format::{self, FormatOptions};
use super::target::{ResumeOptions, TargetOptions, Targeted, is_address};
use crate::cli::completion;

/// Arguments of `ps`.
#[derive(Debug, clap::Args)]
pub struct PsArguments {
    /// Include exited processes whose output is still retained.
    #[arg(short, long)]
    all: bool,
    /// Print only ids.
    #[arg(short, long, conflicts_with_all = ["format", "json"])]
    quiet: bool,
    #[command(flatten)]
    format: FormatOptions,
    #[command(flatten)]
    target: Targeted,
}

/// A process argument with its optional target.
#[derive(Debug, Clone, clap::Args)]
pub struct ProcessReference {
    /// Process id or a unique prefix of it; put a target before it if the default server is not meant.
    #[arg(value_names = ["[TARGET] ID"], num_args = 1..=2, required = true, add = ArgValueCompleter::new(completion::processes))]
    words: Vec<String>,
    #[command(flatten)]
    pub options: TargetOptions,
}

/// A process that was found on a server.
#[derive(Debug)]
pub struct Located {
    /// Its session.
    pub session: SessionSummary,
    /// Its current state.
    pub process: ProcessSummary,
}

impl ProcessReference {
    /// Connection options and the target, if one is given.
    pub fn place(&self) -> (&TargetOptions, Option<&str>) {
        (&self.options, self.target())
    }

    /// The target, if one is given.
    pub fn target(&self) -> Option<&str> {
        (self.words.len() > 1).then(|| self.words[0].as_str())
    }

    /// Connects with a new session and finds the process.
    pub async fn find(&self) -> Result<(RemoteExecServerClient, Located), Failure> {
        self.check_order()?;
        let client = self.options.connect(self.target(), &ResumeOptions::default()).await?;
        let id = self.words.last().expect("at least one is required");
        let located = find(sessions(&client).await?, id)?;
        Ok((client, located))
    }

    /// Rejects a URL in place of an id, with a hint.
    fn check_order(&self) -> Result<(), Failure> {
        check_order(&self.words)
    }
}

/// Process arguments of one server.
#[derive(Debug, Clone, clap::Args)]
pub struct ProcessReferences {
    /// Process ids or unique prefixes of them; put a target before them if the default server is not meant.
    #[arg(value_names = ["[TARGET] ID"], num_args = 1.., required = true, add = ArgValueCompleter::new(completion::processes))]
    words: Vec<String>,
    #[command(flatten)]
    pub options: TargetOptions,
}

impl ProcessReferences {
    /// Connection options and the target, if one is given.
    pub fn place(&self) -> (&TargetOptions, Option<&str>) {
        (&self.options, self.split().0)
    }

    /// The target, if one is given, and the ids.
    pub fn split(&self) -> (Option<&str>, &[String]) {
        match self.words.split_first() {
            Some((first, ids)) if !ids.is_empty() && self.options.is_target(first) => {
                (Some(first), ids)
            }
            _ => (None, &self.words),
        }
    }

    /// Connects with a new session and looks up each id.
    pub async fn find(
        &self,
    ) -> Result<(RemoteExecServerClient, Vec<Result<Located, Failure>>), Failure> {
        check_order(&self.words)?;
        let (target, ids) = self.split();
        let client = self.options.connect(target, &ResumeOptions::default()).await?;
        let sessions = sessions(&client).await?;
        let found = ids.iter().map(|id| find(sessions.clone(), id)).collect();
        Ok((client, found))
    }
}

fn check_order(words: &[String]) -> Result<(), Failure> {
    let text = match words {
        [target] if is_address(target) => {
            format!("which process? its id comes after {target}; `exec-server ps` lists them")
        }
        [id, .., target] if is_address(target) && !is_address(id) => {
            format!("the server comes before the process: {target} {id}")
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(text))
}

/// Prints the processes of a server.
pub async fn list(arguments: PsArguments) -> Result<u8, Failure> {
    let target = &arguments.target;
    let client =
        target.options.connect(target.target.as_deref(), &ResumeOptions::default()).await?;
    let sessions = sessions(&client).await?;
    let own = client.session().session_id();
    let mut all: Vec<(&SessionSummary, &ProcessSummary)> = sessions
        .iter()
        .filter(|session| Some(&session.session_id) != own.as_ref())
        .flat_map(|session| session.processes.iter().map(move |process| (session, process)))
        .filter(|(_, process)| arguments.all || !process.exited)
        .collect();
    all.sort_by_key(|(_, process)| process.started_at_ms);
    if arguments.quiet {
        let ids: String =
            all.iter().map(|(_, process)| format::plain(&process.process_id) + "\n").collect();
        format::print(&ids)?;
    } else if arguments.format.is_json() {
        format::print_json(
            &all.iter().map(|(session, process)| to_json(session, process)).collect::<Vec<_>>(),
        )?;
    } else {
        let title = ["ID", "SESSION", "USER", "PID", "STATUS", "AGE", "CLIENT", "COMMAND"];
        let title = title.map(str::to_owned).to_vec();
        let rows = all.iter().map(|(session, process)| row(session, process));
        format::print(&format::table(&std::iter::once(title).chain(rows).collect::<Vec<_>>()))?;
    }
    Ok(0)
}

fn to_json(session: &SessionSummary, process: &ProcessSummary) -> Value {
    let mut value = serde_json::to_value(process).expect("plain data can be written");
    value["sessionId"] = json!(session.session_id);
    value["clientName"] = json!(session.client_name);
    value["attached"] = json!(session.attached);
    value
}

fn row(session: &SessionSummary, process: &ProcessSummary) -> Vec<String> {
    let client = if session.attached { "attached" } else { "detached" };
    vec![
        format::plain(&process.process_id),
        format::plain(&short(&session.session_id)),
        format::plain(process.user.as_deref().unwrap_or("?")),
        process.pid.to_string(),
        status(process),
        format::age(process.started_at_ms),
        client.to_owned(),
        format::command(&process.argv),
    ]
}

/// Short form of a session id for display.
fn short(session_id: &str) -> String {
    session_id.chars().take(8).collect()
}

fn status(process: &ProcessSummary) -> String {
    let details = &process.details;
    match (process.exit_code, &details.signal, details.reason) {
        (None, ..) => "running".to_owned(),
        (Some(_), _, Some(ExitReason::Timeout | ExitReason::IdleTimeout)) => "timed out".to_owned(),
        (Some(_), Some(signal), _) => signal.clone(),
        (Some(code), None, _) => format!("exited {code}"),
    }
}

/// All sessions of the server that this credential may use.
pub async fn sessions(client: &RemoteExecServerClient) -> Result<Vec<SessionSummary>, Failure> {
    let can = client.session().connection().await?.capabilities();
    if !can.session_directory {
        return Err(ExecServerError::Unsupported("looking at other sessions").into());
    }
    let list: SessionListResponse = client.call(Method::SessionList.name(), &Value::Null).await?;
    Ok(list.sessions)
}

/// Finds the process by its full id, else by a unique prefix.
fn find(sessions: Vec<SessionSummary>, id: &str) -> Result<Located, Failure> {
    let (session_part, process_part) = match id.split_once('/') {
        Some((session, process)) => (session, process),
        None => ("", id),
    };
    let candidates = |is_meant: &dyn Fn(&str) -> bool| -> Vec<Located> {
        let in_session = |session: &&SessionSummary| session.session_id.starts_with(session_part);
        sessions
            .iter()
            .filter(in_session)
            .flat_map(|session| {
                let meant =
                    session.processes.iter().filter(|process| is_meant(&process.process_id));
                meant.map(|process| Located { session: session.clone(), process: process.clone() })
            })
            .collect()
    };
    let mut found = candidates(&|id| id == process_part);
    if found.is_empty() && !process_part.is_empty() {
        found = candidates(&|id| id.starts_with(process_part));
    }
    // Names are unique among running processes only: prefer the running one, else the one that started last.
    if found.len() > 1 && found.iter().all(|located| *located.process.process_id == *process_part) {
        let live = found.iter().filter(|located| !located.process.exited).count();
        if live <= 1 {
            found.sort_by_key(|it| (!it.process.exited, it.process.started_at_ms));
            found = found.pop().into_iter().collect();
        }
    }
    match found.len() {
        0 => Err(Failure::NoProcess(id.to_owned())),
        1 => Ok(found.remove(0)),
        _ => {
            let name = |located: &Located| {
                let session = short(&located.session.session_id);
                format!("{session}/{}", located.process.process_id)
            };
            Err(Failure::ManyProcesses {
                id: id.to_owned(),
                found: found.iter().map(name).collect(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::path_uri::PathUri;
    use exec_server_protocol::process::ExitDetails;

    use super::*;

    #[test]
    fn a_process_is_meant_by_its_id_or_by_a_beginning_that_only_one_has() {
        let sessions = || vec![session("aaaa", &["p1", "p10", "q"]), session("bbbb", &["q", "r"])];
        let found = |id: &str| {
            find(sessions(), id)
                .map(|located| {
                    format!("{}/{}", located.session.session_id, located.process.process_id)
                })
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(found("p1"), Ok("aaaa/p1".to_owned()));
        assert_eq!(found("p10"), Ok("aaaa/p10".to_owned()));
        assert_eq!(found("r"), Ok("bbbb/r".to_owned()));
        assert_eq!(found("b/q"), Ok("bbbb/q".to_owned()));
        assert_eq!(found("q"), Err("`q` is more than one process: aaaa/q, bbbb/q".to_owned()));
        assert_eq!(found("p"), Err("`p` is more than one process: aaaa/p1, aaaa/p10".to_owned()));
        assert_eq!(found("x"), Err("there is no process `x`".to_owned()));
        assert_eq!(found(""), Err("there is no process ``".to_owned()));
    }

    #[test]
    fn a_name_means_the_running_process_else_the_latest() {
        let mut sessions = vec![session("aaaa", &["job"]), session("bbbb", &["job"])];
        sessions[0].processes[0].exited = true;
        sessions[0].processes[0].started_at_ms = 9;
        let found = |sessions: &[SessionSummary]| {
            find(sessions.to_vec(), "job").unwrap().session.session_id
        };
        assert_eq!(found(&sessions), "bbbb");
        sessions[1].processes[0].exited = true;
        assert_eq!(found(&sessions), "aaaa");
    }

    fn session(id: &str, processes: &[&str]) -> SessionSummary {
        let process = |id: &&str| ProcessSummary {
            process_id: (*id).into(),
            pid: 1,
            argv: Vec::new(),
            cwd: PathUri::from_posix(b"/"),
            tty: false,
            user: None,
            started_at_ms: 0,
            next_seq: 1,
            exited: false,
            exit_code: None,
            closed: false,
            details: ExitDetails::default(),
        };
        SessionSummary {
            session_id: id.to_owned(),
            client_name: String::new(),
            opened_at_ms: 0,
            attached: false,
            session_linger_ms: 0,
            processes: processes.iter().map(process).collect(),
        }
    }
}
