//! The progress line of a copy, on stderr.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::format;

/// Refresh interval.
pub const EVERY: Duration = Duration::from_millis(100);
/// A shorter copy shows no progress line.
const NOT_BEFORE: Duration = Duration::from_millis(300);

/// Counters of a copy and the line that shows them.
#[derive(Debug)]
pub struct Progress {
    is_shown: bool,
    noted: Mutex<BTreeSet<String>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    started: Instant,
    printed: Option<Instant>,
    files: u64,
    all_files: u64,
    bytes: u64,
    all_bytes: u64,
    /// Sources whose files are not all known yet.
    unlisted: usize,
}

impl Progress {
    /// The line is shown only if stderr is a terminal.
    pub fn new(is_quiet: bool) -> Self {
        let state = State {
            started: Instant::now(),
            printed: None,
            files: 0,
            all_files: 0,
            bytes: 0,
            all_bytes: 0,
            unlisted: 1,
        };
        Self {
            is_shown: !is_quiet && io::stderr().is_terminal(),
            noted: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// Sets the number of sources whose files will be listed.
    pub fn expect(&self, sources: usize) {
        self.update(|state| state.unlisted = sources);
    }

    /// All files of one source were found.
    pub fn listed(&self) {
        self.update(|state| state.unlisted = state.unlisted.saturating_sub(1));
    }

    /// Counts a file that will be copied.
    pub fn found(&self, bytes: u64) {
        self.update(|state| {
            state.all_files += 1;
            // Sizes come from a server, so their sum may overflow.
            state.all_bytes = state.all_bytes.saturating_add(bytes);
        });
    }

    /// Counts copied bytes; negative if they must be copied again.
    pub fn moved(&self, bytes: i64) {
        self.update(|state| state.bytes = state.bytes.saturating_add_signed(bytes));
    }

    /// One file is done.
    pub fn done(&self) {
        self.update(|state| state.files += 1);
    }

    /// Like [`Progress::note`], but prints the same text only once.
    pub fn note_once(&self, text: String) {
        let is_new = self.noted.lock().expect("no holder panics").insert(text.clone());
        if is_new {
            self.note(&text);
        }
    }

    /// Prints a message after clearing the progress line.
    pub fn note(&self, text: &str) {
        let start = self.clear();
        eprintln!("{start}exec-server: {}", format::plain(text));
    }

    /// Clears the progress line.
    pub fn finish(&self) {
        let start = self.clear();
        if !start.is_empty() {
            // A closed stderr shows no line.
            let _ = write!(io::stderr(), "{start}");
        }
    }

    fn clear(&self) -> &'static str {
        let mut state = self.state.lock().expect("no holder panics");
        if state.printed.take().is_some() { "\r\x1b[K" } else { "" }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("no holder panics"));
        self.show();
    }

    /// Redraws the line if the refresh interval has passed.
    pub fn show(&self) {
        let mut state = self.state.lock().expect("no holder panics");
        let now = Instant::now();
        let is_due = state.printed.is_none_or(|at| now - at >= EVERY);
        if self.is_shown && is_due && now - state.started >= NOT_BEFORE {
            state.printed = Some(now);
            let width = exec_server_os::terminal_size().map_or(80, |size| size.cols.into());
            let _ = write!(io::stderr(), "\r{}\x1b[K", state.line(now, width));
        }
    }
}

impl State {
    fn line(&self, now: Instant, width: usize) -> String {
        let seconds = (now - self.started).as_secs_f64();
        let rate = self.bytes as f64 / seconds.max(0.001);
        if self.unlisted > 0 {
            // The total is not known yet, so a percentage would be wrong.
            let text = format!(
                "{}/{}+ files  {} of {}+  {}/s",
                self.files,
                self.all_files,
                format::size(self.bytes),
                format::size(self.all_bytes),
                format::size(rate as u64),
            );
            return text.chars().take(width.saturating_sub(1)).collect();
        }
        let percent = (u128::from(self.bytes) * 100)
            .checked_div(u128::from(self.all_bytes))
            .map_or(100, |percent| percent.min(100));
        let left = self.all_bytes.saturating_sub(self.bytes) as f64 / rate.max(1.0);
        let text = format!(
            "{}/{} files  {} of {}  {percent}%  {}/s  {} left",
            self.files,
            self.all_files,
            format::size(self.bytes),
            format::size(self.all_bytes),
            format::size(rate as u64),
            format::duration(Duration::from_secs_f64(left.min(1e9))),
        );
        text.chars().take(width.saturating_sub(1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_progress_and_fits_the_width() {
        let started = Instant::now();
        let mut state = State {
            started,
            printed: None,
            files: 1,
            all_files: 3,
            bytes: 50_000_000,
            all_bytes: 200_000_000,
            unlisted: 0,
        };
        let now = started + Duration::from_secs(1);
        assert_eq!(state.line(now, 200), "1/3 files  50.0 MB of 200.0 MB  25%  50.0 MB/s  3s left");
        assert_eq!(state.line(now, 10), "1/3 files");
        state.unlisted = 1;
        assert_eq!(state.line(now, 200), "1/3+ files  50.0 MB of 200.0 MB+  50.0 MB/s");
    }
}
