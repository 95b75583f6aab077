//! `exec-server config`: checks configuration files, and says where each value comes from.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction};

use super::config_file::{
    CommandLine, Place, Problem, SECTIONS, Setting, options, read, variable_of,
};

/// Subcommands of `config`.
#[derive(Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Check the configuration files: names, values, and whether they fit together.
    ///
    /// Exits with 1 and prints each problem with its line if a file cannot be used.
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// Check this file instead of the user's and the system's.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Print the settings in effect, and where each of them comes from.
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Read this file instead of the user's and the system's.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Section to print: server, rendezvous, forward or update.
        #[arg(value_name = "SECTION", default_value = "server", value_parser = SECTIONS)]
        section: String,
        /// Flags to take into account, as on the command line of the section.
        #[arg(last = true, value_name = "FLAG")]
        flags: Vec<OsString>,
    },
}

const CHECK_EXAMPLES: &str = "\
Examples:
  exec-server config check
  exec-server config check --config /etc/exec-server.toml";

const SHOW_EXAMPLES: &str = "\
Examples:
  exec-server config show
  exec-server config show rendezvous
  exec-server config show server -- --max-sessions 5";

pub const EXAMPLES: &str = "\
Examples:
  exec-server config check
  exec-server config show rendezvous";

/// Runs a `config` command.
pub fn run(command: ConfigCommand) -> ExitCode {
    let result = match command {
        ConfigCommand::Check { config } => check(config),
        ConfigCommand::Show { config, section, flags } => show(config, &section, flags),
    };
    match result {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("exec-server: {problem}"));
            ExitCode::FAILURE
        }
    }
}

fn line(section: &str, config: Option<PathBuf>, flags: Vec<OsString>) -> CommandLine {
    let section = SECTIONS.into_iter().find(|known| *known == section).expect("clap has checked");
    let named = config.into_iter().flat_map(|path| ["--config".into(), path.into_os_string()]);
    let words: Vec<OsString> = named.chain(flags).collect();
    CommandLine::new(section, &words)
}

fn check(config: Option<PathBuf>) -> Result<String, Vec<Problem>> {
    let mut text = String::new();
    let places = line("server", config.clone(), Vec::new()).places();
    let files = read(&places)?;
    for Place { path, .. } in &places {
        let is_read = files.iter().any(|file| file.path == *path);
        let state = if is_read { "ok" } else { "not there" };
        let _ = writeln!(text, "{}: {state}", path.display());
    }
    let mut problems = Vec::new();
    for section in SECTIONS {
        let line = line(section, config.clone(), Vec::new());
        let settings = line.settings(&files);
        if let (Some(error), Some(first)) = (refusal(&line, &settings), settings.first()) {
            let text = format!("[{section}]: {error}");
            problems.push(Problem { file: first.file.clone(), line: None, text });
        }
    }
    if problems.is_empty() { Ok(text) } else { Err(problems) }
}

/// Why the settings of a section do not fit together; flags may add what is missing.
fn refusal(line: &CommandLine, settings: &[Setting]) -> Option<String> {
    let words = std::iter::once(OsString::from("exec-server")).chain(line.with_settings(settings));
    let error = line.command.clone().try_get_matches_from(words).err()?;
    let may_be_incomplete = matches!(line.section, "forward" | "update");
    if error.kind() == ErrorKind::MissingRequiredArgument && may_be_incomplete {
        return None;
    }
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    Some(lines.join(" ").trim_start_matches("error: ").to_owned())
}

fn show(
    config: Option<PathBuf>,
    section: &str,
    flags: Vec<OsString>,
) -> Result<String, Vec<Problem>> {
    let line = line(section, config, flags);
    let places = line.places();
    let files = read(&places)?;
    let settings = line.settings(&files);
    if let Some(text) = refusal(&line, &settings) {
        let file = settings.first().map_or_else(|| "flags".into(), |setting| setting.file.clone());
        return Err(vec![Problem { file, line: None, text }]);
    }
    let words = std::iter::once(OsString::from("exec-server")).chain(line.with_settings(&settings));
    let matches = line.command.clone().ignore_errors(true).get_matches_from(words);
    let mut text = String::new();
    for Place { path, .. } in &places {
        let is_read = files.iter().any(|file| file.path == *path);
        let state = if is_read { "" } else { " (not there)" };
        let _ = writeln!(text, "# {}{state}", path.display());
    }
    let _ = writeln!(text, "[{section}]");
    for option in options(&line.command) {
        let id = option.get_id().as_str();
        let Some(source) = matches.value_source(id) else { continue };
        let values: Vec<String> = matches
            .get_raw(id)
            .into_iter()
            .flatten()
            .map(|value| toml::Value::from(value.to_string_lossy().into_owned()).to_string())
            .collect();
        let Some(value) = shown(option, &values) else { continue };
        let from = origin(&line, option, source, &settings);
        // Defaults are comments, so that the text is a file with the same effect.
        let mark = if from == DEFAULT { "# " } else { "" };
        let entry = format!("{mark}{} = {value}", option.get_long().unwrap_or_default());
        let _ = writeln!(text, "{entry:<40} # {from}");
    }
    Ok(text)
}

/// The origin of a value that nothing has set.
const DEFAULT: &str = "default";

/// A value as a file would have it; `None` for a switch that is off.
fn shown(option: &Arg, values: &[String]) -> Option<String> {
    match (option.get_action(), values) {
        (ArgAction::SetTrue, [value]) => (value == "\"true\"").then(|| "true".to_owned()),
        (ArgAction::Append, values) => Some(format!("[{}]", values.join(", "))),
        (_, [value]) => Some(value.clone()),
        (_, values) => Some(format!("[{}]", values.join(", "))).filter(|_| !values.is_empty()),
    }
}

fn origin(line: &CommandLine, option: &Arg, source: ValueSource, settings: &[Setting]) -> String {
    let long = option.get_long().unwrap_or_default();
    if line.has_flag(long) {
        return format!("--{long}");
    }
    if let Some(setting) = settings.iter().find(|setting| setting.name == long) {
        return format!("{}:{}", setting.file.display(), setting.line);
    }
    match (source, variable_of(option)) {
        (ValueSource::EnvVariable, Some(variable)) => format!("${variable}"),
        _ => DEFAULT.to_owned(),
    }
}
