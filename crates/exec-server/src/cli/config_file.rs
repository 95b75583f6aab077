//! Configuration files: the names of the flags, in one section per command.
//!
//! Settings become arguments in front of those of the user, so that a flag and a setting are parsed by the same rules.
//! A flag or a variable replaces the setting of the same name.

mod load;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, Args, Command, CommandFactory};

use super::{Arguments, JoinArguments};
pub use load::{ConfigFile, Setting};

/// Sections of a file: `server` is the program without a command.
pub const SECTIONS: [&str; 4] = ["server", "rendezvous", "forward", "update"];

/// Names a file in place of the usual ones; empty for none.
const CONFIG_VARIABLE: &str = "EXEC_SERVER_CONFIG";
/// Names the system's file in place of `/etc/exec-server.toml`; empty for none.
const SYSTEM_VARIABLE: &str = "EXEC_SERVER_SYSTEM_CONFIG";

/// Options that no file can set.
const ONLY_FLAGS: [&str; 5] = ["check", "config", "help", "json", "version"];

/// Variables that are read where an option is missing, beside those that clap knows.
const VARIABLES: [(&str, &[&str]); 4] = [
    ("ca-file", &["EXEC_SERVER_CA_FILE"]),
    ("data", &["EXEC_SERVER_RENDEZVOUS_DATA"]),
    ("store", &["EXEC_SERVER_STORE", "EXEC_SERVER_STORE_FILE"]),
    ("remote-token-file", &["EXEC_SERVER_REMOTE_TOKEN", "EXEC_SERVER_REMOTE_TOKEN_FILE"]),
];

/// The option of commands that read configuration files.
#[derive(Debug, Args)]
pub struct ConfigOption {
    /// Read settings from this file instead of ~/.config/exec-server/config.toml and /etc/exec-server.toml; see
    /// docs/configuration.md [default: $EXEC_SERVER_CONFIG].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A file that cannot be used, with the line if it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    pub line: Option<usize>,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(formatter, ":{line}")?;
        }
        write!(formatter, ": {}", self.text)
    }
}

/// A place for a file, and whether the file must exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub path: PathBuf,
    pub is_required: bool,
}

/// The command line of one section.
pub struct CommandLine {
    pub section: &'static str,
    pub command: Command,
    pub words: Vec<OsString>,
}

impl CommandLine {
    /// A command line for a section; the words come after the name of the command.
    pub fn new(section: &'static str, words: &[OsString]) -> Self {
        let mut all = Arguments::command();
        all.build();
        let command = match section {
            "server" => all,
            name => all.find_subcommand(name).expect("sections are commands").clone(),
        };
        Self { section, command, words: words.to_vec() }
    }

    /// Whether the user gave an option.
    pub fn has_flag(&self, long: &str) -> bool {
        self.value(long).is_some()
    }

    /// The value of an option, empty if it has none.
    fn value(&self, long: &str) -> Option<&OsStr> {
        let before_separator = self.words.iter().take_while(|word| *word != "--");
        let words: Vec<&OsString> = before_separator.collect();
        words.iter().enumerate().find_map(|(place, word)| {
            let rest = word.to_str()?.strip_prefix("--")?.strip_prefix(long)?;
            match rest.strip_prefix('=') {
                Some(value) => Some(OsStr::new(value)),
                None if rest.is_empty() => {
                    Some(words.get(place + 1).map_or(OsStr::new(""), |next| next.as_os_str()))
                }
                None => None,
            }
        })
    }

    /// The files that `--config` names; the reference's `KEY=VALUE` is no file.
    fn config_files(&self) -> Vec<PathBuf> {
        let mut words = self.words.iter().take_while(|word| *word != "--");
        let mut files = Vec::new();
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            let value = match text {
                "--config" | "-c" => words.next().cloned(),
                _ => text.strip_prefix("--config=").or_else(|| short_value(text)).map(Into::into),
            };
            files.extend(value.filter(|value| !value.as_encoded_bytes().contains(&b'=')));
        }
        files.into_iter().map(PathBuf::from).collect()
    }

    /// The files to read, strongest first.
    pub fn places(&self) -> Vec<Place> {
        let named = self.config_files();
        if !named.is_empty() {
            let required = |path| Place { path, is_required: true };
            return named.into_iter().rev().map(required).collect();
        }
        if let Some(path) = std::env::var_os(CONFIG_VARIABLE) {
            let is_named = !path.is_empty();
            return is_named
                .then(|| Place { path: path.into(), is_required: true })
                .into_iter()
                .collect();
        }
        // A server that another program started has the settings of that program.
        let is_owned = self.has_flag("exit-on-stdin-close")
            || (self.section == "server" && self.value("listen").is_some_and(|url| url == "stdio"));
        if is_owned { Vec::new() } else { usual_places() }
    }

    /// The settings in effect, strongest file first for each name.
    pub fn settings(&self, files: &[ConfigFile]) -> Vec<Setting> {
        let mut settings: Vec<Setting> = Vec::new();
        for setting in files.iter().flat_map(|file| file.section(self.section)) {
            if settings.iter().all(|known| known.name != setting.name) {
                settings.push(setting.clone());
            }
        }
        settings.retain(|setting| !self.is_replaced(setting));
        settings
    }

    /// The words with the settings in front of them.
    pub fn with_settings(&self, settings: &[Setting]) -> Vec<OsString> {
        let injected = settings.iter().flat_map(|setting| setting.words.clone());
        injected.chain(self.words.iter().cloned()).collect()
    }

    fn is_replaced(&self, setting: &Setting) -> bool {
        let Some(option) = option(&self.command, &setting.name) else { return true };
        if self.has_flag(&setting.name) || variable_of(option).is_some() {
            return true;
        }
        let given = self.command.get_arguments().filter(|it| {
            it.get_long().is_some_and(|long| !ONLY_FLAGS.contains(&long) && self.has_flag(long))
        });
        given.into_iter().any(|given| {
            conflict(&self.command, option, given)
                || (conflict_with_remote(&self.command, given) && is_about_remote(&setting.name))
        })
    }
}

/// The value in `-cVALUE`.
fn short_value(word: &str) -> Option<&str> {
    word.strip_prefix("-c").filter(|value| !value.is_empty())
}

/// The option of a command that a file can set.
pub fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    options(command).find(|option| option.get_long() == Some(name))
}

/// All options of a command that a file can set; those for scripts of the reference are flags only.
pub fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_settable = |long: &str| !ONLY_FLAGS.contains(&long);
    let is_shown = |option: &&Arg| !option.is_hide_set();
    let options = command.get_arguments().filter(is_shown);
    options.filter(move |option| option.get_long().is_some_and(is_settable))
}

/// The variable that replaces a setting, if it is set.
pub fn variable_of(option: &Arg) -> Option<String> {
    let long = option.get_long().unwrap_or_default();
    let more = VARIABLES.iter().find(|(name, _)| *name == long).map_or(&[][..], |(_, names)| names);
    let of_clap = option.get_env().and_then(OsStr::to_str);
    let mut names = of_clap.into_iter().chain(more.iter().copied());
    names.find(|name| std::env::var_os(name).is_some_and(|it| !it.is_empty())).map(str::to_owned)
}

fn conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let has = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|it| it.get_id() == other.get_id())
    };
    has(one, other) || has(other, one)
}

/// Whether an option replaces `--remote`, and so everything that belongs to it.
fn conflict_with_remote(command: &Command, given: &Arg) -> bool {
    option(command, "remote").is_some_and(|remote| conflict(command, remote, given))
}

fn is_about_remote(name: &str) -> bool {
    let join = JoinArguments::augment_args(Command::new("join"));
    join.get_arguments().any(|option| option.get_long() == Some(name))
}

/// The user's file and the system's file.
fn usual_places() -> Vec<Place> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let config_home = set("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".config")));
    let of_user = config_home.map(|dir| dir.join("exec-server/config.toml"));
    let of_system = match std::env::var_os(SYSTEM_VARIABLE) {
        Some(path) => Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty()),
        None => Some(PathBuf::from("/etc/exec-server.toml")),
    };
    let optional = |path| Place { path, is_required: false };
    of_user.into_iter().chain(of_system).map(optional).collect()
}

/// Reads the files of these places that exist.
pub fn read(places: &[Place]) -> Result<Vec<ConfigFile>, Vec<Problem>> {
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for place in places {
        match ConfigFile::read(place) {
            Ok(file) => files.extend(file),
            Err(found) => problems.extend(found),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

/// Adds the settings of configuration files to the words of this process.
pub fn apply(words: Vec<OsString>) -> Result<Vec<OsString>, Vec<Problem>> {
    let Some((section, place)) = section_of(&words) else { return Ok(words) };
    let line = CommandLine::new(section, &words[place..]);
    let files = read(&line.places())?;
    let settings = line.settings(&files);
    Ok(words[..place].iter().cloned().chain(line.with_settings(&settings)).collect())
}

/// The section of a command line, and the index of its first argument.
fn section_of(words: &[OsString]) -> Option<(&'static str, usize)> {
    let asks_for_help =
        |word: &OsString| ["-h", "--help", "-V", "--version"].iter().any(|help| *help == word);
    if words.iter().any(asks_for_help) {
        return None;
    }
    let is_option =
        |word: Option<&OsString>| word.is_none_or(|word| word.as_encoded_bytes().starts_with(b"-"));
    if is_option(words.get(1)) {
        return Some(("server", words.len().min(1)));
    }
    let section = SECTIONS[1..].iter().find(|name| words[1] == **name)?;
    // Commands of a command have arguments of their own.
    is_option(words.get(2)).then_some((*section, 2))
}

#[cfg(test)]
mod tests;
