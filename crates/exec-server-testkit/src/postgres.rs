//! A PostgreSQL server of Debian's package, private to the tests: its own data, loopback only, an unprivileged user.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::DEADLINE;
use crate::isolation::free_address;

/// Printed once where the tests are skipped.
const MISSING: &str =
    "tests with PostgreSQL are skipped: not installed (on Debian: apt-get install postgresql)";

/// Settings of a server that lives for minutes: durability costs time and is not what is tested.
const SETTINGS: [&str; 8] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=400",
    "autovacuum=off",
    "logging_collector=off",
];

/// Settings of a server that is measured: commits are synced, as by default.
const DURABLE_SETTINGS: [&str; 4] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=400",
    "logging_collector=off",
];

/// A running PostgreSQL server; it ends with its value, and with the test program at the latest.
pub struct Postgres {
    programs: PathBuf,
    data: tempfile::TempDir,
    address: SocketAddr,
    settings: Vec<&'static str>,
    /// A shell that ends the server when its stdin is closed.
    keeper: Option<Child>,
}

impl Postgres {
    /// Starts a server with new data; none if PostgreSQL is not installed.
    pub fn start() -> Option<Self> {
        Self::start_with(SETTINGS.to_vec(), |_| {})
    }

    /// Starts a server that syncs what it commits, for measurements.
    pub fn start_durable() -> Option<Self> {
        Self::start_with(DURABLE_SETTINGS.to_vec(), |_| {})
    }

    /// Starts a server that also accepts TLS, with this certificate and key.
    pub fn start_tls(certificate: &str, key: &str) -> Option<Self> {
        Self::start_with([&SETTINGS[..], &["ssl=on"]].concat(), |place| {
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                let path = place.join(name);
                fs::write(&path, text).expect("the directory is ours");
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
                if let Some((user, group)) = servant() {
                    chown(&path, Some(user), Some(group)).expect("root may");
                }
            }
        })
    }

    fn start_with(settings: Vec<&'static str>, prepare: impl FnOnce(&Path)) -> Option<Self> {
        let Some(programs) = programs() else {
            static SAID: OnceLock<()> = OnceLock::new();
            SAID.get_or_init(|| {
                // Past the capture of the test harness: a skipped test must be noticed.
                let _ = writeln!(io::stderr(), "{MISSING}");
            });
            return None;
        };
        let data = tempfile::tempdir().expect("there is room for a directory");
        let place = data.path().join("data");
        fs::create_dir(&place).expect("the directory is new");
        if let Some((user, group)) = servant() {
            chown(data.path(), Some(user), Some(group)).expect("root may");
            chown(&place, Some(user), Some(group)).expect("root may");
        }
        let mut initdb = command(&programs.join("initdb"));
        initdb.args(["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"]);
        let made = initdb.args(["--locale=C", "--pgdata"]).arg(&place).output();
        let made = made.expect("initdb can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        prepare(&place);
        let address = free_address();
        let mut server = Self { programs, data, address, settings, keeper: None };
        server.resume();
        Some(server)
    }

    /// A new database on a server that all tests of this program share.
    pub fn shared_database() -> Option<String> {
        Some(Self::shared()?.database())
    }

    /// Runs a statement on a database of the shared server; returns what it answers.
    pub fn run_shared_sql(url: &str, statement: &str) -> String {
        Self::shared().expect("the database was made there").run_sql(url, statement)
    }

    /// Opens a session on a database of the shared server.
    pub fn shared_session(url: &str) -> PostgresSession {
        let server = Self::shared().expect("the database was made there");
        PostgresSession::open(server.psql(url))
    }

    fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Postgres>> = OnceLock::new();
        SHARED.get_or_init(Self::start).as_ref()
    }

    /// Creates a database and returns its URL.
    pub fn database(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("test{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.run_sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// The URL of a database, without TLS.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://postgres@{}/{name}?sslmode=disable", self.address)
    }

    /// Runs a statement on a database, by name or URL; returns what it answers.
    pub fn run_sql(&self, database: &str, statement: &str) -> String {
        let done = self.psql(database).args(["--command", statement]).output();
        let done = done.expect("psql can be started");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// The command that runs statements on a database, by name or URL.
    fn psql(&self, database: &str) -> Command {
        let name = database.split('?').next().and_then(|it| it.rsplit('/').next());
        let mut psql = command(&self.programs.join("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
            .args(["--username=postgres", "--host=127.0.0.1"])
            .arg(format!("--port={}", self.address.port()))
            .args(["--set=ON_ERROR_STOP=1", "--dbname", name.unwrap_or(database)]);
        psql
    }

    /// Stops all processes of the server without ending them.
    pub fn stop(&mut self) {
        self.signal_postmaster(Signal::STOP);
        // A stopped postmaster starts no more of them.
        self.signal_workers(Signal::STOP);
    }

    /// Lets the server go on that was stopped.
    pub fn go_on(&mut self) {
        self.signal_workers(Signal::CONT);
        self.signal_postmaster(Signal::CONT);
    }

    fn signal_postmaster(&self, signal: Signal) {
        kill_process(self.postmaster(), signal).expect("it runs");
    }

    fn signal_workers(&self, signal: Signal) {
        let pid = self.postmaster().as_raw_nonzero();
        let workers = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let workers = workers.expect("the server runs");
        for worker in workers.split_ascii_whitespace() {
            let worker = worker.parse().ok().and_then(Pid::from_raw).expect("a process id");
            // It may end at this moment.
            let _ = kill_process(worker, signal);
        }
    }

    fn postmaster(&self) -> Pid {
        let file = fs::read_to_string(self.data.path().join("data/postmaster.pid"));
        let file = file.expect("the server runs");
        let pid = file.lines().next().and_then(|line| line.trim().parse().ok());
        pid.and_then(Pid::from_raw).expect("its first line is a process id")
    }

    /// Kills the server's first process, as the kernel does when memory runs out; its data stays.
    ///
    /// The other processes notice that by themselves. When this returns, they have ended too.
    pub fn crash(&mut self) {
        self.end("crash");
    }

    fn end(&mut self, how: &str) {
        if let Some(mut keeper) = self.keeper.take() {
            if let Some(mut stdin) = keeper.stdin.take() {
                stdin.write_all(how.as_bytes()).expect("the shell reads");
            }
            keeper.wait().expect("the shell was started here");
        }
    }

    /// Starts the server again on its data.
    pub fn resume(&mut self) {
        // A shared server lives in a static, which is never dropped, so the shell removes its data. A server does not start
        // while a process of the one before holds its memory; a zombie holds none.
        let script = r#""$0" "$@" </dev/null & server=$!
            case $(cat) in
            crash)
                kill -STOP $server; rest=$(cat /proc/$server/task/$server/children)
                kill -KILL $server; wait $server
                for it in $rest; do
                    while grep -qs 'State:[[:space:]][^Z]' /proc/$it/status; do sleep 0.01; done
                done;;
            stop) kill -QUIT $server; kill -CONT $server; wait $server;;
            *) kill -QUIT $server; kill -CONT $server; wait $server; rm -rf "$DATA";;
            esac"#;
        let mut shell = command(Path::new("/bin/sh"));
        shell.env("DATA", self.data.path());
        shell.args(["-c", script]).arg(self.programs.join("postgres")).arg("-D");
        shell.arg(self.data.path().join("data")).arg("-p").arg(self.address.port().to_string());
        shell.args(self.settings.iter().flat_map(|setting| ["-c", setting]));
        let keeper =
            shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.keeper = Some(keeper.expect("a shell can be started"));
        let deadline = Instant::now() + DEADLINE;
        while !self.is_ready() {
            assert!(Instant::now() < deadline, "PostgreSQL does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is_ready(&self) -> bool {
        let asked = command(&self.programs.join("pg_isready"))
            .args(["--quiet", "--host=127.0.0.1"])
            .arg(format!("--port={}", self.address.port()))
            .status();
        asked.is_ok_and(|status| status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end("stop");
    }
}

/// A connection of its own, whose transaction holds its locks from one statement to the next.
pub struct PostgresSession {
    psql: Child,
    statements: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PostgresSession {
    /// The line that follows the answer to a statement.
    const END: &str = "-- end";

    fn open(mut psql: Command) -> Self {
        let psql = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut psql = psql.expect("psql can be started");
        let statements = psql.stdin.take().expect("stdin is a pipe");
        let answers = BufReader::new(psql.stdout.take().expect("stdout is a pipe"));
        Self { psql, statements, answers }
    }

    /// Runs statements and returns what they answer; a statement that fails ends the session and the test.
    pub fn run(&mut self, statements: &str) -> String {
        writeln!(self.statements, "{statements};\n\\echo '{}'", Self::END).expect("psql reads");
        let mut answer = String::new();
        loop {
            let start = answer.len();
            let read = self.answers.read_line(&mut answer).expect("psql writes text");
            assert!(read > 0, "psql has ended: {statements}");
            if answer[start..].trim() == Self::END {
                answer.truncate(start);
                return answer.trim().to_owned();
            }
        }
    }
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

/// A command that runs as an unprivileged user: PostgreSQL refuses to run as root.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C").env("PGSSLMODE", "disable");
    if let Some((user, group)) = servant() {
        command.uid(user).gid(group);
    }
    command
}

/// The user and group to run as; none if this is not root.
fn servant() -> Option<(u32, u32)> {
    // The package makes the user; its home directory belongs to it.
    let home = fs::metadata("/var/lib/postgresql").ok().filter(|home| home.uid() != 0);
    let ids = home.map_or((65_534, 65_534), |home| (home.uid(), home.gid()));
    rustix::process::geteuid().is_root().then_some(ids)
}

/// The directory with the programs of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let debian = versions.map(|version| version.path()).max_by_key(number);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = debian.map(|version| version.join("bin"));
    let candidates = found.into_iter().chain(std::env::split_paths(&path).collect::<Vec<_>>());
    candidates.into_iter().find(|place| {
        ["initdb", "postgres", "psql", "pg_isready"].iter().all(|name| place.join(name).is_file())
    })
}
