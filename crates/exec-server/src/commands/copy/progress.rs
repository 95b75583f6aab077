//! One line on a terminal that tells how far a copy is.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::super::show;

/// Often enough to look alive.
pub const EVERY: Duration = Duration::from_millis(100);
/// A copy that is done by then needs no line.
const NOT_BEFORE: Duration = Duration::from_millis(300);

/// How far a copy is.
pub struct Progress {
    is_shown: bool,
    state: Mutex<State>,
}

struct State {
    started: Instant,
    printed: Option<Instant>,
    files: u64,
    all_files: u64,
    bytes: u64,
    all_bytes: u64,
}

impl Progress {
    /// Shown if somebody can see it.
    pub fn new(is_quiet: bool) -> Self {
        let state = State {
            started: Instant::now(),
            printed: None,
            files: 0,
            all_files: 0,
            bytes: 0,
            all_bytes: 0,
        };
        Self { is_shown: !is_quiet && io::stderr().is_terminal(), state: Mutex::new(state) }
    }

    /// One more file was found.
    pub fn found(&self, bytes: u64) {
        self.update(|state| {
            state.all_files += 1;
            state.all_bytes += bytes;
        });
    }

    /// Some bytes were copied; fewer than none if they have to be copied again.
    pub fn moved(&self, bytes: i64) {
        self.update(|state| state.bytes = state.bytes.saturating_add_signed(bytes));
    }

    /// One file is done.
    pub fn done(&self) {
        self.update(|state| state.files += 1);
    }

    /// Says something without tearing the line.
    pub fn note(&self, text: &str) {
        let start = self.clear();
        eprintln!("{start}exec-server: {text}");
    }

    /// Takes the line away.
    pub fn finish(&self) {
        let start = self.clear();
        if !start.is_empty() {
            // Without a stderr there is no line.
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

    /// Shows the line if it is time, whether or not anything has changed.
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
        let percent = (self.bytes * 100).checked_div(self.all_bytes).unwrap_or(100).min(100);
        let left = self.all_bytes.saturating_sub(self.bytes) as f64 / rate.max(1.0);
        let text = format!(
            "{}/{} files  {} of {}  {percent}%  {}/s  {} left",
            self.files,
            self.all_files,
            show::size(self.bytes),
            show::size(self.all_bytes),
            show::size(rate as u64),
            show::duration(Duration::from_secs_f64(left.min(1e9))),
        );
        text.chars().take(width.saturating_sub(1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_it_is_and_fits() {
        let started = Instant::now();
        let state = State {
            started,
            printed: None,
            files: 1,
            all_files: 3,
            bytes: 50_000_000,
            all_bytes: 200_000_000,
        };
        let now = started + Duration::from_secs(1);
        assert_eq!(state.line(now, 200), "1/3 files  50.0 MB of 200.0 MB  25%  50.0 MB/s  3s left");
        assert_eq!(state.line(now, 10), "1/3 files");
    }
}
