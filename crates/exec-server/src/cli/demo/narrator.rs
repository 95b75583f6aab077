//! Prints what happens, with pauses for reading.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use super::Outcome;
use crate::cli::format::plain;

/// How long a viewer has for a line that matters.
const READING: Duration = Duration::from_millis(900);

/// Writes to stdout, with colours on a terminal.
pub struct Narrator {
    is_quick: bool,
    has_colours: bool,
}

/// Colours of terminals (SGR).
#[derive(Clone, Copy)]
enum Style {
    Bold = 1,
    Dim = 2,
    Red = 31,
    Green = 32,
    Yellow = 33,
}

impl Narrator {
    pub fn new(is_quick: bool) -> Self {
        let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { is_quick, has_colours: io::stdout().is_terminal() && !is_unwanted }
    }

    pub async fn opening(&self, directory: &Path) {
        self.line(
            "exec-server runs commands on other machines. This shows three things that go wrong,",
        );
        self.line(
            "and what becomes of the command. All programs run on this machine, on loopback, in",
        );
        self.line(
            &self.styled(Style::Dim, &format!("{} (removed at the end)", directory.display())),
        );
        self.pause(1).await;
    }

    /// The heading of an act.
    pub async fn act(&self, number: u8, title: &str) {
        self.line("");
        self.line(&self.styled(Style::Bold, &format!("{number}. {title}")));
        self.pause(1).await;
    }

    /// A command line as a user would type it.
    pub async fn prompt(&self, line: &str) {
        self.line(&format!("   {} {line}", self.styled(Style::Green, "$")));
        self.pause(1).await;
    }

    /// A line that a program printed.
    pub fn output(&self, line: &str) {
        self.line(&format!("   {} {}", self.styled(Style::Dim, "│"), plain(line)));
    }

    /// Something that the demo does or sees.
    pub fn event(&self, text: &str) {
        self.line(&format!(
            "   {} {}",
            self.styled(Style::Yellow, "▸"),
            self.styled(Style::Yellow, text)
        ));
    }

    /// What an act has shown.
    pub async fn verdict(&self, outcome: Outcome, text: &str) {
        let (style, mark) = match outcome {
            Outcome::Shown => (Style::Green, "✓"),
            Outcome::Failed => (Style::Red, "✗"),
            Outcome::Skipped => (Style::Yellow, "–"),
        };
        self.line(&format!("   {} {text}", self.styled(style, mark)));
        self.pause(1).await;
    }

    pub fn summary(&self, shown: usize, failed: usize, skipped: usize) {
        self.line("");
        let mut text = format!("{shown} of {} shown", shown + failed + skipped);
        if skipped > 0 {
            text.push_str(&format!(", {skipped} not possible on this machine"));
        }
        let style = if failed > 0 { Style::Red } else { Style::Green };
        self.line(&self.styled(style, &text));
        if failed > 0 {
            self.line("What failed is told above; `exec-server doctor` examines this machine.");
        } else {
            self.line(
                "Next: `exec-server --listen ws://127.0.0.1:7777` in one terminal, and in another",
            );
            self.line("      `exec-server run ws://127.0.0.1:7777 -- uname -a`; `exec-server --help` has the rest.");
        }
    }

    /// Waits as long as some lines take to read.
    pub async fn pause(&self, lines: u32) {
        if !self.is_quick {
            tokio::time::sleep(READING * lines).await;
        }
    }

    fn line(&self, text: &str) {
        let mut stdout = io::stdout().lock();
        // A closed stdout (`| head`) is not an error.
        let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    }

    fn styled(&self, style: Style, text: &str) -> String {
        if self.has_colours {
            format!("\x1b[{}m{text}\x1b[0m", style as u8)
        } else {
            text.to_owned()
        }
    }
}
