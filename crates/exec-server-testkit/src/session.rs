//! A session of our client that checks every byte, while parts of a cluster fail.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use exec_server_client::{
    Child, ChildOutput, ChildStdin, ExecServerClient, ExecutorFileSystem, Stdin,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::DEADLINE;
use crate::rig::Rig;

/// A session with an echo.
pub struct Session {
    client: ExecServerClient,
    session: Option<String>,
    echo: (ChildStdin, BufReader<ChildOutput>),
    _echo: Child,
    lines: u64,
    background: Option<Background>,
}

/// A counter and copies of a file, which go on all the time.
struct Background {
    counter: Child,
    place: tempfile::TempDir,
    is_over: Arc<AtomicBool>,
    copies: JoinHandle<usize>,
}

impl Session {
    /// Starts an echo, a counter and copies of a file.
    pub async fn start(rig: &Rig) -> Self {
        let mut session = Self::start_echo(rig).await;
        let place = tempfile::tempdir_in(rig.place()).expect("there is room for a directory");
        let script =
            r#"i=0; while [ ! -e "$0" ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 7"#;
        let stop = place.path().join("stop").display().to_string();
        let counter = session.client.command("sh").args(["-c", script, &stop]).spawn().await;
        let counter = counter.expect("the shell starts");
        let content: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
        let file = place.path().join("file");
        std::fs::write(&file, &content).expect("the directory is ours");
        let is_over = Arc::<AtomicBool>::default();
        let copies = tokio::spawn(copy(session.client.fs(), file, content, is_over.clone()));
        session.background = Some(Background { counter, place, is_over, copies });
        session
    }

    /// Starts an echo only.
    pub async fn start_echo(rig: &Rig) -> Self {
        let client = rig.client().await;
        let echo = client.command("cat").stdin(Stdin::Piped).spawn().await;
        let mut echo = echo.expect("the program starts");
        let stdin = echo.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(echo.stdout.take().expect("stdout is piped"));
        let session = client.session_id();
        let (lines, background) = (0, None);
        Self { client, session, echo: (stdin, stdout), _echo: echo, lines, background }
    }

    /// Types a line and waits for its echo; returns how long that took.
    pub async fn echo(&mut self) -> Duration {
        let start = Instant::now();
        self.lines += 1;
        let line = format!("line {}\n", self.lines);
        let (stdin, stdout) = &mut self.echo;
        let echoed = async {
            stdin.write_all(line.as_bytes()).await.expect("the session goes on");
            let mut back = String::new();
            stdout.read_line(&mut back).await.expect("the session goes on");
            back
        };
        let back = timeout(DEADLINE, echoed).await.expect("the session comes back");
        assert_eq!(back, line, "every line once and in order");
        assert_eq!(self.client.session_id(), self.session, "the session is the same");
        start.elapsed()
    }

    /// Types lines until told to stop; returns the longest time that one took.
    pub async fn echo_until(&mut self, is_over: &AtomicBool, pause: Duration) -> Duration {
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            longest = longest.max(self.echo().await);
            tokio::time::sleep(pause).await;
        }
        longest
    }

    /// Ends the counter and the copies; the output has no hole and the exit code is right.
    pub async fn finish(mut self) {
        let Some(mut background) = self.background.take() else { return };
        background.is_over.store(true, Ordering::Relaxed);
        let copies = timeout(DEADLINE, background.copies).await.expect("they end in time");
        assert!(copies.expect("no copy fails") > 0);
        std::fs::write(background.place.path().join("stop"), "").expect("the directory is ours");
        let mut counted = String::new();
        let mut stdout = background.counter.stdout.take().expect("stdout is piped");
        let counting = timeout(DEADLINE, stdout.read_to_string(&mut counted)).await;
        counting.expect("it ends in time").expect("the session goes on");
        let count = counted.lines().count();
        let expected: String = (1..=count).map(|number| format!("{number}\n")).collect();
        assert!(count > 0 && counted == expected, "every number once and in order");
        let status = timeout(DEADLINE, background.counter.wait()).await.expect("it ends in time");
        assert_eq!(status.expect("the session goes on").code(), 7);
    }
}

/// Copies a file from the executor again and again; returns how often.
async fn copy(
    files: ExecutorFileSystem,
    path: PathBuf,
    content: Vec<u8>,
    is_over: Arc<AtomicBool>,
) -> usize {
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let read = files.read_file(path.to_str().expect("UTF-8"));
        let read = timeout(DEADLINE, read).await.expect("it ends in time");
        assert!(read.expect("no copy fails") == content, "every byte once and in order");
        count += 1;
        // Leaves the machine to the others.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    count
}
