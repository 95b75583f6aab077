//! Formats tables, sizes and times for a terminal.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use serde::Serialize;

use super::failure::Failure;

/// Output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table, for people.
    #[default]
    Table,
    /// One JSON value, for programs.
    Json,
}

/// Options for the output format.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct FormatOptions {
    /// Output format.
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table",
        id = "format"
    )]
    format: Format,
    /// The same as -o json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormatOptions {
    /// Whether the output is JSON.
    pub fn is_json(self) -> bool {
        self.json || self.format == Format::Json
    }
}

/// Prints text; a closed stdout (`| head`) is not an error.
pub fn print(text: &str) -> Result<(), Failure> {
    print_bytes(text.as_bytes())
}

/// The same for bytes that need not be text.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::local("could not write the output", error))
        }
        _ => Ok(()),
    }
}

/// Prints one JSON value.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).expect("plain data can be written");
    print(&(harmless_json(&text) + "\n"))
}

/// Escapes characters in JSON strings that a terminal may act upon.
fn harmless_json(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter != '\n' && acts_on_terminals(letter) {
            harmless.push_str(&format!("\\u{:04x}", u32::from(letter)));
        } else {
            harmless.push(letter);
        }
    }
    harmless
}

/// A table whose columns fit their content; cells are escaped, and the last column is not padded.
pub fn table(rows: &[Vec<String>]) -> String {
    let plain_row = |row: &Vec<String>| row.iter().map(|cell| plain(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(plain_row).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `3s`, `12m`, `5h`, `2d`.
pub fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..=119 => format!("{seconds}s"),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds @ 7200..=172_799 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

/// Time since `since_ms` (Unix milliseconds).
pub fn age(since_ms: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    duration(now.saturating_sub(Duration::from_millis(since_ms)))
}

/// `17 B`, `2.4 MB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Text as one line without control characters.
pub fn plain(text: &str) -> String {
    text.chars().map(|letter| if acts_on_terminals(letter) { '?' } else { letter }).collect()
}

/// Text without control characters except line feeds.
pub fn plain_lines(text: &str) -> String {
    text.trim_end().split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Control characters, and characters that change the text direction.
fn acts_on_terminals(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A command as it is typed in a shell.
pub fn command(argv: &[String]) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./=:,@%+~".contains(letter);
    let word = |word: &String| match word {
        word if !word.is_empty() && word.chars().all(is_plain) => word.clone(),
        word => format!("'{}'", word.replace('\'', "'\\''")),
    };
    plain(&argv.iter().map(word).collect::<Vec<_>>().join(" "))
}

/// A time in UTC, as `2009-02-13 23:31`.
pub fn time(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, rest) = (seconds.div_euclid(86400), seconds.rem_euclid(86400));
    // Days since March 1st of year 0, so that the leap day is the last day of its year.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", rest / 3600, rest % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_printed_acts_on_a_terminal() {
        let hostile = "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}b\r\n";
        assert_eq!(plain(hostile), "a?[2J?2J??b??");
        assert_eq!(plain_lines("one\u{1b}c\r\ntwo\n"), "one?c?\ntwo");
        assert_eq!(table(&[vec![hostile.to_owned(), "x".to_owned()]]), "a?[2J?2J??b??  x\n");
        let json = serde_json::to_string(hostile).unwrap();
        let harmless = harmless_json(&json);
        assert!(!harmless.chars().any(acts_on_terminals), "{harmless}");
        assert_eq!(serde_json::from_str::<String>(&harmless).unwrap(), hostile);
    }

    #[test]
    fn facts_are_short() {
        assert_eq!(size(999), "999 B");
        assert_eq!(size(1000), "1.0 kB");
        assert_eq!(size(268_435_456), "268.4 MB");
        assert_eq!(duration(Duration::from_secs(119)), "119s");
        assert_eq!(duration(Duration::from_secs(86_400)), "24h");
        assert_eq!(time(1_234_567_890_123), "2009-02-13 23:31");
        assert_eq!(time(951_782_400_000), "2000-02-29 00:00");
        assert_eq!(time(-1), "1969-12-31 23:59");
    }

    #[test]
    fn commands_look_as_they_are_typed_and_cannot_touch_the_terminal() {
        let argv = ["sh", "-c", "echo it's; \x1b[2J", ""].map(str::to_owned);
        assert_eq!(command(&argv), "sh -c 'echo it'\\''s; ?[2J' ''");
    }

    #[test]
    fn columns_fit_their_widest_cell() {
        let rows =
            [vec!["ID".to_owned(), "X".to_owned()], vec!["abc".to_owned(), "y z".to_owned()]];
        assert_eq!(table(&rows), "ID   X\nabc  y z\n");
    }
}
