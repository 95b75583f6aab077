//! `exec-server doctor`: what this machine can enforce, and how to get what is missing.

use std::io::Write;
use std::process::ExitCode;

use exec_server_os::probe::{Finding, Probe, SandboxLevel};
use serde::Serialize;

/// What the doctor is asked.
#[derive(Debug, clap::Args)]
pub struct DoctorArguments {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis {
    level: SandboxLevel,
    meaning: &'static str,
    /// A whole sandbox, made and taken down.
    sandbox: Finding,
    #[serde(flatten)]
    probe: Probe,
}

/// Examines, prints, and exits with 0 if everything that a policy can ask for is enforced.
pub fn run(arguments: &DoctorArguments) -> ExitCode {
    let diagnosis = Diagnosis::make();
    let text = if arguments.json {
        let text = serde_json::to_string_pretty(&diagnosis).expect("plain data can be written");
        text + "\n"
    } else {
        diagnosis.to_text()
    };
    // Whoever stopped reading has seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if diagnosis.level == SandboxLevel::Full { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl Diagnosis {
    fn make() -> Self {
        let probe = exec_server_os::probe();
        let sandbox = match exec_server_os::sandbox_trial() {
            Ok(()) => Finding::works(),
            Err(error) => Finding::missing(error.to_string(), "see what is missing above"),
        };
        let level = match SandboxLevel::of(&probe) {
            // What the parts promise is worth nothing if the whole cannot be made.
            SandboxLevel::Full | SandboxLevel::FullOldLandlock if !sandbox.works => {
                SandboxLevel::None
            }
            level => level,
        };
        Self { level, meaning: meaning(level), sandbox, probe }
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
            Line::found("trial sandbox", &self.sandbox),
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
        SandboxLevel::LandlockOnly => {
            "Commands with a policy are refused: Landlock alone cannot keep one, and nothing runs weaker than asked."
        }
        SandboxLevel::None => {
            "Commands with a policy are refused: it cannot be enforced here, and nothing runs weaker than asked."
        }
    }
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

/// One line of the table, and below it what to do about it.
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
