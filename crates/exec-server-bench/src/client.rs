//! The measuring client: sends requests, receives events and checks every one of them.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::failure::{Failure, Result};
use super::ledger::{Content, Ledger};
use super::relayed::Relayed;
use super::transport::{MessageRef, Transport};
use super::websocket::{QuickAck, WebSocket};
use super::wire::{self, Incoming};

/// A server that does not answer its first request within this time counts as failed.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Events that a measurement waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The request with this id was answered.
    Reply(u64),
    /// This process wrote output.
    Output(u64),
    /// This process was closed; earlier events may still be in flight.
    Closed(u64),
    /// Anything else.
    Other,
}

/// A process to start.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The program with its arguments.
    pub argv: &'a [&'a str],
    /// Its standard streams.
    pub stdio: Stdio,
    /// Its expected output.
    pub content: Content,
    /// Its sandbox policy as JSON.
    pub sandbox: Option<&'a str>,
    /// Where its output is kept.
    pub kept: Kept,
}

/// Where the output of a process is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The latest output, in memory.
    InMemory,
    /// All output, in a spool.
    InSpool,
}

/// Standard streams of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stdio {
    /// Output pipes, no input.
    Output,
    /// Output pipes and an input pipe.
    Piped,
    /// A terminal.
    Terminal,
}

impl<'a> Launch<'a> {
    /// A process without input and with any output.
    pub fn new(argv: &'a [&'a str]) -> Launch<'a> {
        Launch {
            argv,
            stdio: Stdio::Output,
            content: Content::Any,
            sandbox: None,
            kept: Kept::InMemory,
        }
    }
}

/// A process whose start was requested.
#[derive(Clone, Copy)]
pub struct Started {
    /// The number of the process.
    pub process: u64,
    /// The id of the request.
    pub request: u64,
}

/// An initialised connection.
pub struct Client {
    socket: Transport,
    ledger: Ledger,
    last_request: u64,
    last_process: u64,
    session: String,
}

impl Client {
    /// Connects and initialises within [`CONNECT_TIME`]; afterwards the client has `time`.
    pub fn connect(address: SocketAddr, quickack: QuickAck, time: Duration) -> Result<Client> {
        let socket = WebSocket::connect(address, quickack, Instant::now() + CONNECT_TIME)?;
        let mut client = Client::new(Transport::Direct(socket));
        client.begin(None, time)?;
        Ok(client)
    }

    /// The same over an open stream.
    pub fn over(stream: Relayed, time: Duration) -> Result<Client> {
        let mut client = Client::new(Transport::Relayed(Box::new(stream)));
        client.begin(None, time)?;
        Ok(client)
    }

    /// Resumes a session over an open stream.
    pub fn resume(stream: Relayed, session: &str, time: Duration) -> Result<Client> {
        let mut client = Client::new(Transport::Relayed(Box::new(stream)));
        client.begin(Some(session), time)?;
        Ok(client)
    }

    fn new(socket: Transport) -> Client {
        let ledger = Ledger::default();
        Client { socket, ledger, last_request: 0, last_process: 0, session: String::new() }
    }

    fn begin(&mut self, session: Option<&str>, time: Duration) -> Result<()> {
        let session = serde_json::json!(session);
        let params = format!(r#"{{"clientName":"bench","resumeSessionId":{session}}}"#);
        let id = self.queue("initialize", &params);
        self.flush()?;
        let (answered, begun): (_, Begun) = wire::parse_result(self.next_text()?)?;
        if answered != id {
            return Err(Failure::new("another request was answered"));
        }
        self.session = begun.session_id;
        self.socket.queue(&[br#"{"method":"initialized","params":{}}"#]);
        self.socket.flush()?;
        self.set_time(time);
        Ok(())
    }

    /// The session id, for resuming.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Gives the client this much time from now on.
    pub fn set_time(&mut self, time: Duration) {
        self.socket.set_deadline(Instant::now() + time);
    }

    /// Queues a request and returns its id.
    pub fn queue(&mut self, method: &str, params: &str) -> u64 {
        self.queue_pieces(method, &[params.as_bytes()])
    }

    /// Queues a request whose params are given in pieces, so that large ones are copied once.
    pub fn queue_pieces(&mut self, method: &str, params: &[&[u8]]) -> u64 {
        self.last_request += 1;
        let id = self.last_request;
        let head = format!(r#"{{"id":{id},"method":"{method}","params":"#);
        let mut pieces = Vec::with_capacity(params.len() + 2);
        pieces.push(head.as_bytes());
        pieces.extend_from_slice(params);
        pieces.push(b"}");
        self.socket.queue(&pieces);
        id
    }

    /// Queues a write of base64 input; `write` must be a new id.
    pub fn queue_write(&mut self, process: u64, write: u64, chunk: &str) -> u64 {
        let head = format!(r#"{{"processId":"p{process}","writeId":"{write}","chunk":""#);
        self.queue_pieces("process/write", &[head.as_bytes(), chunk.as_bytes(), br#""}"#])
    }

    /// Queues the start of a process.
    pub fn queue_start(&mut self, launch: Launch<'_>) -> Started {
        self.last_process += 1;
        let process = self.last_process;
        self.ledger.open(process, launch.content);
        let argv = serde_json::json!(launch.argv);
        let tty = launch.stdio == Stdio::Terminal;
        let pipe = launch.stdio == Stdio::Piped;
        let sandbox =
            launch.sandbox.map(|policy| format!(r#","sandbox":{policy}"#)).unwrap_or_default();
        let spool = match launch.kept {
            Kept::InMemory => "",
            Kept::InSpool => r#","outputSpool":{}"#,
        };
        let params = format!(
            r#"{{"processId":"p{process}","argv":{argv},"cwd":"file:///","env":{{"PATH":"/usr/bin:/bin"}},"tty":{tty},"pipeStdin":{pipe},"arg0":null{sandbox}{spool}}}"#
        );
        let request = self.queue("process/start", &params);
        Started { process, request }
    }

    /// Sends what was queued.
    pub fn flush(&mut self) -> Result<()> {
        self.socket.flush()
    }

    /// Sends all queued messages and returns the next message with the time in between, without the time for parsing a
    /// large reply.
    pub fn exchange(&mut self) -> Result<(Duration, &[u8])> {
        let begun = Instant::now();
        self.flush()?;
        let text = self.next_text()?;
        Ok((begun.elapsed(), text))
    }

    /// Waits for the next message and returns it unparsed.
    pub fn next_text(&mut self) -> Result<&[u8]> {
        let place = self.socket.next_message()?;
        Ok(self.socket.bytes(&place))
    }

    /// Sends one request and waits for its reply.
    pub fn call(&mut self, method: &str, params: &str) -> Result<()> {
        let id = self.queue(method, params);
        self.flush()?;
        self.wait_for(Event::Reply(id))
    }

    /// Sends `environment/status` and waits for the reply.
    pub fn status(&mut self) -> Result<()> {
        self.call("environment/status", "{}")
    }

    /// Starts a process and waits for the reply.
    pub fn start(&mut self, launch: Launch<'_>) -> Result<Started> {
        let started = self.queue_start(launch);
        self.flush()?;
        self.wait_for(Event::Reply(started.request))?;
        Ok(started)
    }

    /// Waits for one event and ignores others.
    pub fn wait_for(&mut self, event: Event) -> Result<()> {
        while self.next_event()? != event {}
        Ok(())
    }

    /// Waits until every event of a process has arrived.
    pub fn wait_finished(&mut self, process: u64) -> Result<()> {
        while !self.ledger.is_finished(process) {
            self.next_event()?;
        }
        Ok(())
    }

    /// Waits for the next event.
    pub fn next_event(&mut self) -> Result<Event> {
        let place = self.socket.next_message()?;
        self.digest(&place)
    }

    /// The next buffered event, if any.
    pub fn ready_event(&mut self) -> Result<Option<Event>> {
        match self.socket.buffered_message()? {
            Some(place) => Ok(Some(self.digest(&place)?)),
            None => Ok(None),
        }
    }

    /// Reads once and handles every complete event; the socket should be readable.
    pub fn take_in(&mut self) -> Result<()> {
        self.socket.fill()?;
        while self.ready_event()?.is_some() {}
        Ok(())
    }

    /// The accounts of the processes started here.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The socket, for polling.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn digest(&mut self, place: &MessageRef) -> Result<Event> {
        Ok(match wire::parse(self.socket.bytes(place))? {
            Incoming::Output { process, seq, chunk } => {
                self.ledger.handle_output(process, seq, chunk)?;
                Event::Output(process)
            }
            Incoming::Exited { process, seq, code } => {
                self.ledger.handle_exited(process, seq, code)?;
                Event::Other
            }
            Incoming::Closed { process, seq } => {
                self.ledger.handle_closed(process, seq)?;
                Event::Closed(process)
            }
            Incoming::Reply { id, result } => {
                check_status(result)?;
                Event::Reply(id)
            }
            Incoming::Refusal { id, error } => {
                return Err(wire::refused(id, error));
            }
            Incoming::Other => Event::Other,
        })
    }
}

#[derive(serde::Deserialize)]
struct Begun {
    /// The bare server has no sessions.
    #[serde(rename = "sessionId", default)]
    session_id: String,
}

/// Any other status means that the request was rejected.
fn check_status(result: &str) -> Result<()> {
    match result.strip_prefix(r#"{"status":""#) {
        Some(rest) if !rest.starts_with("ready\"") && !rest.starts_with("accepted\"") => {
            Err(Failure::new(format!("unexpected answer {result}")))
        }
        _ => Ok(()),
    }
}
