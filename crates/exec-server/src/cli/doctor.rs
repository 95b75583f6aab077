//! `exec-server doctor`: reports what this machine can enforce, and how to fix what is missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use exec_server_sandbox::Mechanism;
use exec_server_sandbox::probe::{Finding, LimitProbe, Probe, SandboxLevel};
use serde::Serialize;

use crate::cli::{self, Failure, Targeted, format};

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArguments {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Print an AppArmor profile that lets exec-server create user namespaces (Ubuntu 24.04).
    #[arg(long, conflicts_with = "json")]
    apparmor_profile: bool,
    /// Cgroup directory that the server would use.
    #[arg(long, value_name = "DIR")]
    cgroup: Option<PathBuf>,
    /// Show the report of a server instead of this machine.
    #[command(flatten)]
    target: Targeted,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis {
    level: SandboxLevel,
    meaning: &'static str,
    /// Result of a complete sandbox that was set up and torn down.
    sandbox: Finding,
    /// The same with Landlock only.
    landlock_sandbox: Finding,
    /// Process limits that can be enforced.
    limits: LimitProbe,
    #[serde(flatten)]
    probe: Probe,
}

/// Probes, prints the report, and exits with 0 if every policy can be enforced.
pub fn run(arguments: &DoctorArguments) -> ExitCode {
    if arguments.apparmor_profile {
        return print_profile();
    }
    if arguments.target.target.is_some() {
        return cli::finish(examine_server(arguments));
    }
    let diagnosis = Diagnosis::make(arguments.cgroup.as_deref());
    let text = if arguments.json {
        let text = serde_json::to_string_pretty(&diagnosis).expect("plain data can be written");
        text + "\n"
    } else {
        diagnosis.to_text()
    };
    // A closed stdout (`| head`) is not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if diagnosis.level == SandboxLevel::Full { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the report of a server.
async fn examine_server(arguments: &DoctorArguments) -> Result<u8, Failure> {
    let info = arguments.target.environment().await?;
    let Some(report) = &info.sandbox else {
        println!("the server says nothing about sandboxes");
        return Ok(1);
    };
    let is_full = report.level == SandboxLevel::Full.name();
    if arguments.json {
        format::print_json(report)?;
    } else {
        let lines = [
            Line::of("enforced", format::plain(&report.enforced.join(", ")), None),
            Line::of("missing", format::plain(&report.missing.join(", ")), None),
        ];
        let lines: String = lines.iter().map(Line::to_text).collect();
        let hint = if is_full {
            ""
        } else {
            "`exec-server doctor` on that machine says how to get the rest\n"
        };
        let level = format::plain(&report.level);
        format::print(&format!("{lines}\nsandbox level: {level}\n{hint}"))?;
    }
    Ok(u8::from(!is_full))
}

impl Diagnosis {
    fn make(cgroup: Option<&Path>) -> Self {
        let probe = exec_server_sandbox::probe();
        let trial = |mechanism| match exec_server_sandbox::sandbox_trial(mechanism) {
            Ok(()) => Finding::works(),
            Err(error) => Finding::missing(error.to_string(), "see what is missing above"),
        };
        let (sandbox, landlock_sandbox) =
            (trial(Mechanism::Namespaces), trial(Mechanism::Landlock));
        // Working parts do not help if a complete sandbox cannot be set up.
        let level = match SandboxLevel::of(&probe) {
            level @ (SandboxLevel::Full | SandboxLevel::FullOldLandlock) if sandbox.works => level,
            _ if landlock_sandbox.works => SandboxLevel::Landlock,
            _ => SandboxLevel::None,
        };
        let limits = exec_server_sandbox::probe_limits(cgroup);
        Self { level, meaning: meaning(level), sandbox, landlock_sandbox, limits, probe }
    }

    fn to_text(&self) -> String {
        let probe = &self.probe;
        let lines = [
            Line::of("kernel", probe.kernel_release.clone(), None),
            Line::found("user namespaces", &probe.user_namespaces),
            Line::of("AppArmor", apparmor(probe).to_owned(), None),
            Line::found("own /proc", &probe.proc_mount),
            Line::found("seccomp", &probe.seccomp),
            Line::of("Landlock", landlock(probe), probe.landlock.hint.clone()),
            Line::found("own cgroup", &probe.cgroup),
            Line::found("limit of memory", &self.limits.memory),
            Line::found("limit of CPU", &self.limits.cpu),
            Line::found("limit of pids", &self.limits.pids),
            Line::found("sandbox's pids", &self.limits.sandbox_pids),
            Line::found("trial sandbox", &self.sandbox),
            Line::found("Landlock alone", &self.landlock_sandbox),
        ];
        let lines: String = lines.iter().map(Line::to_text).collect();
        format!("{lines}\nsandbox level: {}\n{}\n", self.level.name(), self.meaning)
    }
}

fn meaning(level: SandboxLevel) -> &'static str {
    match level {
        SandboxLevel::Full => {
            "Commands with a policy are confined by mounts, namespaces, seccomp and Landlock."
        }
        SandboxLevel::FullOldLandlock => {
            "Commands with a policy are confined by mounts, namespaces and seccomp; the second lock is incomplete, and \
             with the network enabled they can reach abstract sockets."
        }
        SandboxLevel::Landlock => {
            "Commands with a policy are refused, because nothing runs weaker than asked. With --sandbox-fallback landlock, \
             policies without a network that read everything, and take nothing away inside of what can be written, are \
             kept by Landlock and seccomp; others stay refused."
        }
        SandboxLevel::None => {
            "Commands with a policy are refused: it cannot be enforced here, and nothing runs weaker than asked."
        }
    }
}

/// Prints the profile, with its path in comments.
fn print_profile() -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("exec-server: the path of this program: {error}");
            return ExitCode::FAILURE;
        }
    };
    // A closed stdout (`| head`) is not an error.
    let _ = std::io::stdout().write_all(apparmor_profile(&program.to_string_lossy()).as_bytes());
    ExitCode::SUCCESS
}

/// Like Ubuntu's profiles for browsers: unrestricted, with user namespaces allowed.
fn apparmor_profile(program: &str) -> String {
    // Escapes characters that AppArmor treats as patterns or as the end of the path.
    let mut path = String::new();
    for letter in program.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '{' | '}' | '\\' | '"' | '^') {
            path.push('\\');
        }
        path.push(letter);
    }
    format!(
        "# Lets exec-server make user namespaces. As root, with this program at its final place:\n\
         #   exec-server doctor --apparmor-profile > /etc/apparmor.d/exec-server\n\
         #   apparmor_parser -r /etc/apparmor.d/exec-server\n\
         # Then start the server again. Any user who can replace this program gets the same right.\n\
         abi <abi/4.0>,\n\
         include <tunables/global>\n\
         \n\
         profile exec-server \"{path}\" flags=(unconfined) {{\n  \
           userns,\n\
         \n  \
           include if exists <local/exec-server>\n\
         }}\n"
    )
}

fn apparmor(probe: &Probe) -> &'static str {
    match probe.apparmor_restricts_user_namespaces {
        None => "no restriction of user namespaces known",
        Some(false) => "does not restrict user namespaces",
        Some(true) => "restricts user namespaces to programs with a profile",
    }
}

fn landlock(probe: &Probe) -> String {
    match (probe.landlock_abi, &probe.landlock.reason) {
        (0, Some(reason)) => format!("no: {reason}"),
        (abi, _) if probe.landlock_missing.is_empty() => format!("version {abi}"),
        (abi, _) => format!("version {abi}, without {}", probe.landlock_missing.join(", ")),
    }
}

/// One row of the table with its fix.
struct Line {
    name: &'static str,
    value: String,
    hint: Option<String>,
}

impl Line {
    fn of(name: &'static str, value: String, hint: Option<String>) -> Self {
        Self { name, value, hint }
    }

    fn found(name: &'static str, finding: &Finding) -> Self {
        let value = match &finding.reason {
            None => "yes".to_owned(),
            Some(reason) => format!("no: {reason}"),
        };
        Self { name, value, hint: finding.hint.clone() }
    }

    fn to_text(&self) -> String {
        let mut text = format!("{:<16} {}\n", self.name, self.value);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("{:<16} -> {hint}\n", ""));
        }
        text
    }
}
