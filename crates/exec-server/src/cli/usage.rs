//! Parses the command line and prints usage errors.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser};

use super::Arguments;
use crate::cli::{self, TargetOptions, config_file, format};

/// Commands that exit with the code of the command that they run.
const LIKE_A_COMMAND: [&str; 5] = ["sandbox", "run", "shell", "attach", "wait"];

/// Parses the arguments of this process; prints help, the version or an error.
pub fn parse() -> Result<Arguments, ExitCode> {
    let words = cli::with_signal_option(std::env::args_os().collect());
    let words = config_file::apply(words).map_err(|problems| {
        problems.iter().for_each(|problem| eprintln!("exec-server: {problem}"));
        ExitCode::FAILURE
    })?;
    Arguments::try_parse_from(&words).map_err(|error| refuse(&error, &words))
}

fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    match missing_separator(error.kind(), words) {
        Some(text) => eprintln!("exec-server: {text}"),
        // A failed print is ignored; the exit code remains.
        None => drop(error.print()),
    }
    let command = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if LIKE_A_COMMAND.contains(&command) => ExitCode::from(cli::OUR_FAILURE),
        code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

/// The corrected command line for a `run` without `--`.
fn missing_separator(kind: ErrorKind, words: &[OsString]) -> Option<String> {
    let is_of_words =
        matches!(kind, ErrorKind::UnknownArgument | ErrorKind::MissingRequiredArgument);
    let is_run = words.get(1).is_some_and(|word| word == "run");
    if !is_of_words || !is_run || words.iter().any(|word| word == "--") {
        return None;
    }
    let mut words: Vec<String> =
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words[0] = "exec-server".to_owned();
    let first = first_word(&words)?;
    let is_target = is_known_target(&words[first]);
    let start = if is_target { first + 1 } else { first };
    if start == words.len() {
        words.extend(["--".to_owned(), "COMMAND".to_owned()]);
        return Some(format!("which command? `{}`", format::command(&words)));
    }
    words.insert(start, "--".to_owned());
    Some(format!("put -- before the command: `{}`", format::command(&words)))
}

/// Index of the first word of a `run` that is neither an option nor an option value.
fn first_word(words: &[String]) -> Option<usize> {
    let mut command = Arguments::command();
    command.build();
    let run = command.find_subcommand("run")?;
    let takes_value = |option: &str| {
        run.get_arguments().any(|argument| {
            let long =
                option.strip_prefix("--").is_some_and(|name| argument.get_long() == Some(name));
            let is_cluster = !option.starts_with("--");
            let short = is_cluster && option.chars().last() == argument.get_short();
            (long || short) && matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
        })
    };
    let mut index = 2;
    while let Some(word) = words.get(index) {
        match word.as_str() {
            option if option.len() > 1 && option.starts_with('-') => {
                index += if takes_value(option) { 2 } else { 1 };
            }
            _ => return Some(index),
        }
    }
    None
}

fn is_known_target(word: &str) -> bool {
    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        options: TargetOptions,
    }
    let listed = Alone::try_parse_from(["exec-server"]).map(|alone| alone.options.listed_names());
    cli::is_address(word) || listed.is_ok_and(|names| names.iter().any(|name| name == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_without_a_separator_is_written_with_one() {
        let hint = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let kind = Arguments::try_parse_from(&words).unwrap_err().kind();
            missing_separator(kind, &words)
        };
        for (line, written) in [
            ("e run uname -a", "exec-server run -- uname -a"),
            ("e run uname", "exec-server run -- uname"),
            ("e run -it -w /x ws://h:1 vim a", "exec-server run -it -w /x ws://h:1 -- vim a"),
            ("e run --name=a -e A=1 ls /", "exec-server run --name=a -e A=1 -- ls /"),
        ] {
            let text = format!("put -- before the command: `{written}`");
            assert_eq!(hint(line), Some(text), "{line}");
        }
        let which = "which command? `exec-server run ws://h:1 -- COMMAND`".to_owned();
        assert_eq!(hint("e run ws://h:1"), Some(which));
        assert_eq!(hint("e run --bogus"), None);
        assert_eq!(hint("e run --bogus -- x"), None);
        assert_eq!(hint("e ps --bogus"), None);
    }
}
