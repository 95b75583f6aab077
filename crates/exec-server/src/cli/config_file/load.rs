//! Reads a configuration file and checks each of its settings.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{CommandLine, Place, Problem, SECTIONS, option, options};

/// A configuration file whose settings are valid, each by itself.
#[derive(Debug)]
pub struct ConfigFile {
    pub path: PathBuf,
    settings: Vec<(&'static str, Setting)>,
}

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub name: String,
    /// The arguments that have the same effect.
    pub words: Vec<OsString>,
    pub file: PathBuf,
    pub line: usize,
}

impl ConfigFile {
    /// Reads a file; `None` if it need not exist and does not.
    pub fn read(place: &Place) -> Result<Option<Self>, Vec<Problem>> {
        let path = &place.path;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !place.is_required => {
                return Ok(None);
            }
            Err(error) => {
                let text = format!("cannot read the configuration file: {error}");
                return Err(vec![Problem { file: path.clone(), line: None, text }]);
            }
        };
        Self::parse(path, &text).map(Some)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader { path, text, settings: Vec::new(), problems: Vec::new() };
        match DeTable::parse(text) {
            Ok(table) => reader.read_sections(table.get_ref()),
            Err(error) => {
                let line = error.span().map(|span| reader.line(&span));
                let text = error.message().to_owned();
                reader.problems.push(Problem { file: path.to_owned(), line, text });
            }
        }
        let Reader { settings, problems, .. } = reader;
        match problems.is_empty() {
            true => Ok(Self { path: path.to_owned(), settings }),
            false => Err(problems),
        }
    }

    /// The settings of a section.
    pub fn section(&self, name: &str) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(move |(section, _)| *section == name).map(|(_, it)| it)
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    settings: Vec<(&'static str, Setting)>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn read_sections(&mut self, table: &DeTable) {
        for (name, value) in table {
            let found = SECTIONS.into_iter().find(|section| *section == name.get_ref());
            match (found, value.get_ref().as_table()) {
                (Some(section), Some(settings)) => self.read_section(section, settings),
                (Some(section), None) => {
                    self.refuse(name.span(), format!("`{section}` is a section: [{section}]"));
                }
                (None, Some(_)) => {
                    let known = SECTIONS.into_iter();
                    let text = unknown("section", name.get_ref(), known);
                    self.refuse(name.span(), text);
                }
                (None, None) => {
                    let text = format!("put `{}` into a section, such as [server]", name.get_ref());
                    self.refuse(name.span(), text);
                }
            }
        }
    }

    fn read_section(&mut self, section: &'static str, settings: &DeTable) {
        let command = CommandLine::new(section, &[]).command;
        for (name, value) in settings {
            let Some(option) = option(&command, name.get_ref()) else {
                let known = options(&command).filter_map(Arg::get_long);
                let text = unknown("setting", name.get_ref(), known);
                self.refuse(name.span(), format!("{text} (in [{section}])"));
                continue;
            };
            let checked = words(option, value, self.path).and_then(|words| {
                check(&command, &words)?;
                Ok(words)
            });
            match checked {
                Ok(words) => {
                    let line = self.line(&name.span());
                    let name = name.get_ref().to_string();
                    let setting = Setting { name, words, file: self.path.to_owned(), line };
                    self.settings.push((section, setting));
                }
                Err(text) => self.refuse(value.span(), format!("`{}`: {text}", name.get_ref())),
            }
        }
    }

    fn refuse(&mut self, span: Range<usize>, text: String) {
        let line = Some(self.line(&span));
        self.problems.push(Problem { file: self.path.to_owned(), line, text });
    }

    fn line(&self, span: &Range<usize>) -> usize {
        self.text[..span.start.min(self.text.len())].matches('\n').count() + 1
    }
}

/// The arguments that have the effect of a setting.
fn words(option: &Arg, value: &Spanned<DeValue>, file: &Path) -> Result<Vec<OsString>, String> {
    let long = option.get_long().expect("settings are named like flags");
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return match value.get_ref() {
            DeValue::Boolean(true) => Ok(vec![format!("--{long}").into()]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            other => Err(format!("expected true or false, not {}", article(other))),
        };
    }
    let is_list = matches!(option.get_action(), ArgAction::Append);
    let values: Vec<&DeValue> = match value.get_ref() {
        DeValue::Array(values) if is_list => values.iter().map(Spanned::get_ref).collect(),
        single => vec![single],
    };
    let is_path = option.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>();
    values
        .into_iter()
        .map(|value| {
            let text = match value {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
                DeValue::Boolean(is_true) => is_true.to_string(),
                other => return Err(format!("expected a text, not {}", article(other))),
            };
            let text = if is_path { resolve(&text, file).into_os_string() } else { text.into() };
            let mut word = OsString::from(format!("--{long}="));
            word.push(text);
            Ok(word)
        })
        .collect()
}

fn article(value: &DeValue) -> String {
    let kind = value.type_str();
    if kind.starts_with(['a', 'i']) { format!("an {kind}") } else { format!("a {kind}") }
}

/// Relative paths are relative to the file; `~/` is the home directory.
fn resolve(text: &str, file: &Path) -> PathBuf {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            folder.map_or_else(|| text.into(), |folder| folder.join(text))
        }
    }
}

/// Checks the value alone; what it needs or excludes is checked with the whole command line.
fn check(command: &Command, words: &[OsString]) -> Result<(), String> {
    let name = OsString::from(command.get_name());
    let line = std::iter::once(&name).chain(words);
    let Err(error) = command.clone().try_get_matches_from(line) else { return Ok(()) };
    match error.kind() {
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::NoEquals => {
            let text = error.to_string();
            let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            Err(lines.join(" ").trim_start_matches("error: ").to_owned())
        }
        _ => Ok(()),
    }
}

/// Less similar names are not worth suggesting.
const SIMILAR: f64 = 0.75;

fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let name = name.trim_start_matches("--");
    let scored = known.map(|known| (strsim::jaro_winkler(known, &name.replace('_', "-")), known));
    let best = scored.max_by(|one, other| one.0.total_cmp(&other.0));
    match best {
        Some((score, best)) if score >= SIMILAR => {
            format!("unknown {what} `{name}`; did you mean `{best}`?")
        }
        _ => format!("unknown {what} `{name}`"),
    }
}
