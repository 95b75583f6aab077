//! Runs the unmodified reference client against a server under test, with a scripted model in place of a real one.
//!
//! Owner: the test that calls [`ReferenceClient::run`]; when that returns or panics, the client process, the model's
//! threads and the folders of the run are gone.
//!
//! ```text
//!   Scenario ──▶ ScriptedModel ◀──HTTP, SSE──▶ codex exec ◀──websocket──▶ server under test
//!                     │ what the tools said, as the model got it
//!                     ▼
//!                    Run
//! ```
//!
//! Invariant: nothing here waits for time to pass. Output that is late is polled for until it is there, and one
//! deadline bounds the whole run.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Names the reference's native binary; set it where there is no npm or no network.
pub const REFERENCE_BIN: &str = "EXEC_SERVER_REFERENCE_BIN";

/// The version that the protocol notes describe; another one may send something else.
const PACKAGE: &str = "@openai/codex@0.166.0";

/// The package is some 100 MB; whoever needs longer for that should install it beforehand.
const INSTALL_DEADLINE: Duration = Duration::from_secs(300);

/// The reference client's binary, ready to run.
#[derive(Clone, Debug)]
pub struct ReferenceClient {
    binary: PathBuf,
}

impl ReferenceClient {
    /// Finds the client, or installs it below the target folder, or says on stderr why there is none.
    ///
    /// Panics if `EXEC_SERVER_REFERENCE_BIN` is set but names no file: to skip would then hide a mistake.
    pub fn find() -> Option<Self> {
        static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match FOUND.get_or_init(find_binary) {
            Ok(binary) => Some(Self { binary: binary.clone() }),
            Err(reason) => {
                eprintln!("skipped, no reference client: {reason}");
                None
            }
        }
    }

    /// Plays the scenario through one `codex exec` whose only environment is the server at `url`.
    ///
    /// Panics with all that was said so far if the client fails, stops half-way, or outlives `deadline`.
    pub fn run(&self, url: &str, scenario: Scenario, deadline: Duration) -> Run {
        let folder = RunFolder::create();
        let (home, workspace) = (folder.subfolder("home"), folder.subfolder("workspace"));
        let mut config = scenario.mcp_config(&workspace);
        for (name, text) in &scenario.files {
            fs::write(workspace.join(name), text).expect("the workspace is new and ours");
        }
        let model = ScriptedModel::start(scenario);
        config.insert_str(0, &base_config(model.address));
        fs::write(home.join("config.toml"), config).expect("the home is new and ours");

        let mut codex = Command::new(&self.binary);
        codex
            .args(["exec", "--strict-config", "--skip-git-repo-check"])
            .args(["--ephemeral", "--color", "never", "go"])
            .current_dir(&workspace)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &home)
            .env("CODEX_HOME", &home)
            .env("CODEX_EXEC_SERVER_URL", url)
            .env("SCRIPTED_MODEL_KEY", "unused");
        let ended = run_to_end(codex, deadline).expect("the client can be started");
        let scenario = model.stop();

        let problem = match ended.status {
            None => Some(format!("the client still ran after {deadline:?}")),
            Some(status) if !status.success() => Some(format!("the client ended with {status}")),
            Some(_) if !scenario.turns.is_empty() => Some("the client stopped half-way".to_owned()),
            Some(_) => None,
        };
        if let Some(problem) = problem {
            let Scenario { turns, results, .. } = scenario;
            panic!(
                "{problem}\n--- heard\n{results:#?}\n--- left to say\n{turns:#?}\n--- stdout\n{}\n--- stderr\n{}",
                ended.stdout, ended.stderr
            );
        }
        Run { results: scenario.results, last_message: ended.stdout.trim_end().to_owned() }
    }
}

/// What came out of a run.
#[derive(Debug)]
pub struct Run {
    results: BTreeMap<String, ToolResult>,
    /// The model's last message, as the client printed it.
    pub last_message: String,
}

impl Run {
    /// What the model was told about the calls with this label.
    pub fn result(&self, label: &str) -> &ToolResult {
        let result = self.results.get(label);
        result.unwrap_or_else(|| panic!("the scenario has no call `{label}`"))
    }
}

/// What the model was told about one label, over all its calls and polls.
#[derive(Debug, Default)]
pub struct ToolResult {
    /// The text after the client's own header lines.
    pub output: String,
    /// The exit code, once the client reported one.
    pub exit_code: Option<i32>,
    /// A quarter of the bytes that reached the client, before it shortened them for the model.
    pub original_tokens: u64,
    /// How often the model heard of it; more than once means that the command outlived its first yield.
    pub answers: u32,
    /// Set while the command runs.
    session: Option<u64>,
}

impl ToolResult {
    fn handle_answer(&mut self, answer: &Value) {
        // An answer is text, or for MCP a list of which the first text is the client's header.
        let parts = answer.as_array().into_iter().flatten().skip(1);
        let parts: String = parts.filter_map(|part| part["text"].as_str()).collect();
        let text = answer.as_str().unwrap_or(&parts);
        let (header, output) = text.split_once("Output:\n").unwrap_or(("", text));

        self.answers += 1;
        self.session = None;
        for line in header.lines() {
            if let Some(id) = line.strip_prefix("Process running with session ID ") {
                self.session = id.parse().ok();
            } else if let Some(code) = line.strip_prefix("Process exited with code ") {
                self.exit_code = code.parse().ok();
            } else if let Some(count) = line.strip_prefix("Original token count: ") {
                self.original_tokens += count.parse::<u64>().unwrap_or_default();
            }
        }
        self.output.push_str(output);
    }
}

/// One tool call of the model; calls with the same label belong to the same command.
#[derive(Clone, Debug)]
pub struct ToolCall {
    label: String,
    namespace: Option<String>,
    name: String,
    arguments: Value,
    until: Until,
}

/// What has to be true of the label's result before the script goes on.
#[derive(Clone, Debug)]
enum Until {
    Answered,
    Output(String),
    Exit,
}

impl ToolCall {
    /// `exec_command`: a shell command on pipes, waited for until it ends.
    pub fn exec(label: &str, command: &str) -> Self {
        // Not a login shell: the profile of whoever runs the tests is none of our business.
        let arguments = json!({"cmd": command, "login": false});
        Self::new(label, "exec_command", arguments, Until::Exit)
    }

    /// `exec_command` with a terminal; it runs on while the script does.
    pub fn terminal(label: &str, command: &str) -> Self {
        let arguments = json!({"cmd": command, "login": false, "tty": true});
        Self::new(label, "exec_command", arguments, Until::Answered)
    }

    /// `write_stdin` to the running command of that label.
    pub fn write(label: &str, chars: &str) -> Self {
        Self::new(label, "write_stdin", json!({"chars": chars}), Until::Answered)
    }

    /// `write_stdin` of nothing: waits for the running command of that label to end.
    pub fn poll(label: &str) -> Self {
        Self::write(label, "").until_exit()
    }

    /// A tool of an MCP server.
    pub fn mcp(label: &str, server: &str, tool: &str, arguments: Value) -> Self {
        let mut call = Self::new(label, tool, arguments, Until::Answered);
        call.namespace = Some(format!("mcp__{server}"));
        call
    }

    /// Lets the command run on while the script does.
    pub fn in_background(mut self) -> Self {
        self.until = Until::Answered;
        self
    }

    /// The script goes on once the command has written this, or has ended.
    pub fn until(mut self, text: &str) -> Self {
        self.until = Until::Output(text.to_owned());
        self
    }

    /// The script goes on once the command has ended.
    pub fn until_exit(mut self) -> Self {
        self.until = Until::Exit;
        self
    }

    fn new(label: &str, name: &str, arguments: Value, until: Until) -> Self {
        Self { label: label.to_owned(), namespace: None, name: name.to_owned(), arguments, until }
    }

    fn poll_again(&self) -> Self {
        Self { until: self.until.clone(), ..Self::poll(&self.label) }
    }

    /// The call as an item of the Responses API.
    fn to_item(&self, call_id: &str, session: Option<u64>) -> Value {
        let mut arguments = self.arguments.clone();
        if self.namespace.is_none() {
            // The client sits a yield out unless the command ends, so only a wait for the end may be long.
            let longest = matches!(self.until, Until::Exit);
            arguments["yield_time_ms"] = json!(if longest { 30_000 } else { 250 });
        }
        if self.name == "write_stdin" {
            arguments["session_id"] = json!(session);
        }
        let arguments = arguments.to_string();
        let mut item = json!({"type": "function_call", "call_id": call_id, "name": self.name, "arguments": arguments});
        if let Some(namespace) = &self.namespace {
            item["namespace"] = json!(namespace);
        }
        item
    }
}

/// What the model says, what it has heard, and what the client's workspace and configuration hold.
#[derive(Debug, Default)]
pub struct Scenario {
    files: Vec<(String, String)>,
    mcp_servers: Vec<(String, Vec<String>)>,
    turns: VecDeque<Vec<ToolCall>>,
    last_message: String,
    calls_made: u32,
    /// Calls without an answer, by call id.
    open: BTreeMap<String, ToolCall>,
    /// Calls with an answer, whose `until` may not have come true.
    unsettled: Vec<ToolCall>,
    results: BTreeMap<String, ToolResult>,
}

impl Scenario {
    /// A scenario in which the model has nothing to say.
    pub fn new() -> Self {
        Self::default()
    }

    /// The model's next answer: these calls, which the client may run at the same time.
    pub fn turn(mut self, calls: impl IntoIterator<Item = ToolCall>) -> Self {
        self.turns.push_back(calls.into_iter().collect());
        self
    }

    /// The model's last answer, which ends the run.
    pub fn say(mut self, message: &str) -> Self {
        message.clone_into(&mut self.last_message);
        self
    }

    /// Puts a file into the workspace, which is the current folder of every command.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Configures an MCP server that the client starts through the server under test and talks to over stdio.
    pub fn mcp_server<const N: usize>(mut self, name: &str, argv: [&str; N]) -> Self {
        let argv = argv.map(str::to_owned).to_vec();
        self.mcp_servers.push((name.to_owned(), argv));
        self
    }

    /// The client insists on a `cwd` for MCP servers that run elsewhere, and ignores one that fails unless `required`.
    fn mcp_config(&self, workspace: &Path) -> String {
        let table = |(name, argv): &(String, Vec<String>)| {
            let (command, args) = argv.split_first().expect("an MCP server has a program");
            // A JSON string is a TOML string, too, and so is a list of them.
            format!(
                "\n[mcp_servers.{name}]\ncommand = {}\nargs = {}\ncwd = {}\nenvironment_id = \"remote\"\nrequired = true\n",
                json!(command),
                json!(args),
                json!(workspace)
            )
        };
        self.mcp_servers.iter().map(table).collect()
    }

    /// Takes the answers out of a request, which repeats the whole conversation, and says what comes next.
    fn handle_request(&mut self, request: &Value) -> Vec<Value> {
        for item in request["input"].as_array().into_iter().flatten() {
            let call_id = item["call_id"].as_str().unwrap_or_default();
            if item["type"] == "function_call_output"
                && let Some(call) = self.open.remove(call_id)
            {
                let result = self.results.entry(call.label.clone()).or_default();
                result.handle_answer(&item["output"]);
                self.unsettled.push(call);
            }
        }
        self.settle();
        let calls = if self.unsettled.is_empty() {
            self.turns.pop_front().unwrap_or_default()
        } else {
            self.unsettled.drain(..).map(|call| call.poll_again()).collect()
        };
        if calls.is_empty() {
            let content = json!([{"type": "output_text", "text": self.last_message}]);
            return vec![
                json!({"type": "message", "role": "assistant", "id": "last", "content": content}),
            ];
        }
        calls.into_iter().map(|call| self.open_call(call)).collect()
    }

    fn settle(&mut self) {
        let results = &self.results;
        self.unsettled.retain(|call| {
            let result = &results[&call.label];
            let wanted = match &call.until {
                Until::Answered => false,
                Until::Output(text) => !result.output.contains(text),
                Until::Exit => true,
            };
            wanted && result.session.is_some()
        });
    }

    fn open_call(&mut self, call: ToolCall) -> Value {
        self.calls_made += 1;
        let call_id = format!("call-{}", self.calls_made);
        let session = self.results.get(&call.label).and_then(|result| result.session);
        let item = call.to_item(&call_id, session);
        self.open.insert(call_id, call);
        item
    }
}

/// A Responses API on loopback that plays a [`Scenario`].
struct ScriptedModel {
    address: SocketAddr,
    scenario: Arc<Mutex<Scenario>>,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl ScriptedModel {
    fn start(scenario: Scenario) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let scenario = Arc::new(Mutex::new(scenario));
        let stopping = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&scenario), Arc::clone(&stopping));
        let acceptor = thread::spawn(move || run_acceptor(&listener, &shared.0, &shared.1));
        Self { address, scenario, stopping, acceptor: Some(acceptor) }
    }

    /// Hands the scenario back; the client must be gone, for its open connections are waited for.
    fn stop(mut self) -> Scenario {
        self.end_threads();
        std::mem::take(&mut *lock(&self.scenario))
    }

    fn end_threads(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            self.stopping.store(true, Ordering::SeqCst);
            // A connection of our own wakes the acceptor, which then sees the flag.
            drop(TcpStream::connect(self.address));
            // Its panic is on stderr already, and the client has failed for want of an answer.
            let _ = acceptor.join();
        }
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        self.end_threads();
    }
}

fn run_acceptor(listener: &TcpListener, scenario: &Mutex<Scenario>, stopping: &AtomicBool) {
    thread::scope(|scope| {
        for connection in listener.incoming().flatten() {
            if stopping.load(Ordering::SeqCst) {
                return;
            }
            // A connection that breaks shows in how the client ends.
            scope.spawn(move || run_connection(&connection, scenario).unwrap_or_default());
        }
    });
}

fn run_connection(mut connection: &TcpStream, scenario: &Mutex<Scenario>) -> io::Result<()> {
    let mut reader = BufReader::new(connection);
    while let Some((target, body)) = read_request(&mut reader)? {
        if !target.starts_with("POST /v1/responses ") {
            connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        }
        let items = lock(scenario).handle_request(&serde_json::from_slice(&body)?);
        let events = server_sent_events(items);
        let length = events.len();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length:";
        write!(connection, "{head} {length}\r\n\r\n{events}")?;
    }
    Ok(())
}

/// One request with a `content-length`, as the client sends them; `None` once it has closed.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut target = String::new();
    if reader.read_line(&mut target)? == 0 {
        return Ok(None);
    }
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((target, body)))
}

fn server_sent_events(items: Vec<Value>) -> String {
    let item_done = |item| json!({"type": "response.output_item.done", "item": item});
    let usage = json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    let mut events = vec![json!({"type": "response.created", "response": {"id": "scripted"}})];
    events.extend(items.into_iter().map(item_done));
    events.push(
        json!({"type": "response.completed", "response": {"id": "scripted", "usage": usage}}),
    );
    let text = |event: &Value| {
        format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default())
    };
    events.iter().map(text).collect()
}

fn lock(scenario: &Mutex<Scenario>) -> MutexGuard<'_, Scenario> {
    // A panic in a model thread must not keep the run from reporting what was said until then.
    scenario.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All that would reach for the network is off; the scripted model and the server under test remain.
fn base_config(model: SocketAddr) -> String {
    format!(
        r#"model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.scripted]
name = "scripted"
base_url = "http://{model}/v1"
wire_api = "responses"
env_key = "SCRIPTED_MODEL_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[otel]
exporter = "none"
metrics_exporter = "none"

[features]
apps = false
plugins = false
enable_request_compression = false
"#
    )
}

/// The folder of one run, removed with it.
struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Below the target folder, because the client keeps no helpers in a home below the temporary folder.
    fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name =
                format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = reference_folder().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // A test that was killed left it behind, and its process id has come round again.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("could not create `{}`: {error}", path.display()),
            }
        }
    }

    fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir(&path).expect("the run's folder is new and ours");
        path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove `{}`: {error}", self.path.display());
        }
    }
}

fn find_binary() -> Result<PathBuf, String> {
    if let Some(binary) = std::env::var_os(REFERENCE_BIN).map(PathBuf::from) {
        assert!(binary.is_file(), "{REFERENCE_BIN} names no file: `{}`", binary.display());
        return Ok(binary);
    }
    let folder = reference_folder();
    // Test processes may run side by side: one installs, the others wait and find.
    let guard = File::create(folder.join("install.lock")).map_err(|error| error.to_string())?;
    guard.lock().map_err(|error| error.to_string())?;
    if let Some(binary) = installed_binary(&folder) {
        return Ok(binary);
    }
    install(&folder)
        .map_err(|reason| format!("{reason}\nset {REFERENCE_BIN} to use one that is there"))?;
    installed_binary(&folder).ok_or_else(|| format!("{PACKAGE} has no binary for this platform"))
}

fn install(folder: &Path) -> Result<(), String> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--prefer-offline", "--fetch-retries=0", PACKAGE, "--prefix"])
        .arg(folder);
    let ended = run_to_end(npm, INSTALL_DEADLINE)
        .map_err(|error| format!("could not start npm: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        _ => Err(format!("npm could not install {PACKAGE}: {}", ended.stderr)),
    }
}

/// The package itself is a launcher script; the binary sits in the package of the platform.
fn installed_binary(folder: &Path) -> Option<PathBuf> {
    let subfolders = |path: PathBuf| {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    let name = format!("bin/codex{}", std::env::consts::EXE_SUFFIX);
    subfolders(folder.join("node_modules/@openai"))
        .flat_map(|package| subfolders(package.join("vendor")))
        .map(|platform| platform.join(&name))
        .find(|binary| binary.is_file())
}

/// `target/reference`, wherever cargo has the target folder that this test was built into.
fn reference_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let mut folders = test.ancestors();
    let target = folders.find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let folder = target.expect("cargo marks its target folder with this file").join("reference");
    fs::create_dir_all(&folder).expect("cargo could write to the target folder, so we can");
    folder
}

struct Ended {
    /// `None` if the deadline came first.
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

/// Runs a program to its end or to the deadline, and reaps it either way.
fn run_to_end(mut command: Command, deadline: Duration) -> io::Result<Ended> {
    let deadline = Instant::now() + deadline;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdout = read_in_background(child.stdout.take().expect("stdout is piped"));
    let stderr = read_in_background(child.stderr.take().expect("stderr is piped"));
    let wait = |text: &Receiver<String>| {
        text.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    };
    let texts = (wait(&stdout), wait(&stderr));
    let in_time = texts.0.is_some() && texts.1.is_some();
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    // After a kill the streams end at once, unless the program left a child that holds them open.
    let rest =
        |text: Receiver<String>| text.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Ok(Ended {
        status: in_time.then_some(status),
        stdout: texts.0.unwrap_or_else(|| rest(stdout)),
        stderr: texts.1.unwrap_or_else(|| rest(stderr)),
    })
}

/// Reads a stream to its end and sends the whole.
fn read_in_background(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
