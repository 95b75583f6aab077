//! One client of the bare server: an epoll loop over its socket, its children's streams and their
//! pidfds.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use base64_turbo::STANDARD;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::retry_on_intr;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::child::{Child, StartParams};
use super::files::Files;
use super::messages::{self, FileWrite, WriteRequest};
use super::web::Web;
use crate::frame;

/// Capacity of a pipe, so the most that one read returns.
const READ_SIZE: usize = 64 * 1024;

/// Large enough to amortise a system call, and small enough to stay in the cache.
const FLUSH_SIZE: usize = 256 * 1024;

/// Minimal reply to `initialize`.
const SESSION: &str =
    r#"{"sessionId":"bare","environmentInfo":{"shell":{"name":"sh","path":"/bin/sh"}}}"#;

const SOCKET: u64 = u64::MAX;

/// A token identifies a child and one of its sources: first stream, second stream or exit.
const SOURCES: u64 = 3;
const EXIT: usize = 2;

/// The state of one connection.
pub struct Connection {
    socket: TcpStream,
    epoll: OwnedFd,
    input: Vec<u8>,
    filled: usize,
    output: Vec<u8>,
    chunk: Vec<u8>,
    decoded: Vec<u8>,
    files: Files,
    web: Web,
    children: HashMap<u64, Child>,
    keys: HashMap<String, u64>,
    next_key: u64,
}

impl Connection {
    /// Takes over an upgraded socket.
    pub fn new(socket: TcpStream) -> io::Result<Connection> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(SOCKET), epoll::EventFlags::IN)?;
        Ok(Connection {
            socket,
            epoll,
            input: vec![0; 4096],
            filled: 0,
            output: Vec::new(),
            chunk: vec![0; READ_SIZE],
            decoded: Vec::new(),
            files: Files::default(),
            web: Web::default(),
            children: HashMap::new(),
            keys: HashMap::new(),
            next_key: 0,
        })
    }

    /// Serves the client until it disconnects; its children are killed then.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            // SIGCHLD interrupts the wait.
            retry_on_intr(|| epoll::wait(&self.epoll, spare_capacity(&mut events), None))?;
            for event in &events {
                match event.data.u64() {
                    SOCKET => self.handle_readable_socket()?,
                    token => self.handle_child(token / SOURCES, (token % SOURCES) as usize)?,
                }
                self.flush_if_full()?;
            }
            self.flush()?;
        }
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        match self.output.len() >= FLUSH_SIZE {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    fn handle_readable_socket(&mut self) -> io::Result<()> {
        if self.filled == self.input.len() {
            self.input.resize(self.filled * 2, 0);
        }
        let count = self.socket.read(&mut self.input[self.filled..])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.filled += count;

        let mut input = std::mem::take(&mut self.input);
        let mut done = 0;
        // Every frame is one message, because the measuring client sends no fragments.
        while let Some(next) = frame::parse(&input[done..self.filled]) {
            let payload = &mut input[done..][next.payload.clone()];
            frame::apply_mask(payload, next.mask.unwrap_or_default());
            self.handle_message(payload)?;
            done += next.payload.end;
        }
        input.copy_within(done..self.filled, 0);
        self.filled -= done;
        self.input = input;
        Ok(())
    }

    fn handle_message(&mut self, text: &[u8]) -> io::Result<()> {
        if let Some(write) = messages::parse_write(text) {
            self.handle_write(&write);
            return Ok(());
        }
        if let Some(write) = messages::parse_file_write(text) {
            self.handle_file_write(&write);
            return Ok(());
        }
        let request: Request = serde_json::from_slice(text)?;
        let Some(id) = request.id else { return Ok(()) };
        let params = request.params.map_or("{}", RawValue::get);
        match request.method {
            "initialize" => self.reply(id, SESSION),
            "environment/status" => self.reply(id, r#"{"status":"ready"}"#),
            "process/start" => self.handle_start(id, &serde_json::from_str(params)?)?,
            "process/terminate" => self.handle_terminate(id, &serde_json::from_str(params)?),
            "http/request" => {
                let params = serde_json::from_str(params)?;
                if let Err(error) = self.web.answer(&mut self.output, id, &params) {
                    self.refuse(id, &error.to_string());
                }
            }
            method if method.starts_with("fs/") => self.handle_file_request(id, method, params)?,
            _ => self.refuse(id, "not a method of the bare server"),
        }
        Ok(())
    }

    fn handle_start(&mut self, id: i64, params: &StartParams) -> io::Result<()> {
        let child = match Child::start(params) {
            Ok(child) => child,
            Err(error) => {
                self.refuse(id, &error.to_string());
                return Ok(());
            }
        };
        let key = self.next_key;
        self.next_key += 1;
        for place in 0..2 {
            if let Some(stream) = child.stream(place) {
                self.watch(stream, key, place)?;
            }
        }
        self.watch(&child.pidfd, key, EXIT)?;
        let name = &child.name;
        self.reply(id, &format!(r#"{{"processId":{name},"sandboxType":"none"}}"#));
        self.keys.insert(params.process_id.clone(), key);
        self.children.insert(key, child);
        Ok(())
    }

    fn handle_write(&mut self, write: &WriteRequest<'_>) {
        let child = self.keys.get(write.process).and_then(|key| self.children.get_mut(key));
        let Some(child) = child else {
            return self.reply(write.id, r#"{"status":"unknownProcess"}"#);
        };
        self.decoded.clear();
        let decoded = STANDARD.decode_vec(write.chunk, &mut self.decoded).is_ok();
        match decoded && child.write(&self.decoded).is_ok() {
            true => self.reply(write.id, r#"{"status":"accepted"}"#),
            false => self.refuse(write.id, "could not write"),
        }
    }

    fn handle_terminate(&mut self, id: i64, params: &NameParams) {
        let child = self.keys.get(params.process_id).and_then(|key| self.children.get(key));
        let running = child.is_some_and(|child| !child.exited);
        if let Some(child) = child {
            child.kill();
        }
        self.reply(id, &format!(r#"{{"running":{running}}}"#));
    }

    fn handle_file_request(&mut self, id: i64, method: &str, params: &str) -> io::Result<()> {
        let params = serde_json::from_str(params)?;
        if let Err(error) = self.files.answer(&mut self.output, id, method, &params) {
            self.refuse(id, &error.to_string());
        }
        // The client can process a block while the next one is read.
        self.flush_if_full()
    }

    fn handle_file_write(&mut self, write: &FileWrite<'_>) {
        match self.files.write(write) {
            Ok(()) => self.reply(write.id, "{}"),
            Err(error) => self.refuse(write.id, &error.to_string()),
        }
    }

    fn handle_child(&mut self, key: u64, source: usize) -> io::Result<()> {
        let Some(child) = self.children.get_mut(&key) else { return Ok(()) };
        if source == EXIT {
            let code = child.wait()?;
            child.exited = true;
            // A sibling between fork and exec may hold a copy, so closing alone does not end the watch.
            epoll::delete(&self.epoll, &child.pidfd)?;
            let (seq, name) = (child.next_seq(), &child.name);
            let text = format!(
                r#"{{"method":"process/exited","params":{{"processId":{name},"seq":{seq},"exitCode":{code},"sandboxDenied":false}}}}"#
            );
            messages::push_text(&mut self.output, &text);
        } else if let Some(stream) = child.stream(source) {
            // A terminal whose other end is closed reports an error instead of an end.
            let count = rustix::io::read(stream, &mut self.chunk[..]).unwrap_or(0);
            if count == 0 {
                epoll::delete(&self.epoll, stream)?;
                child.streams[source] = None;
            } else {
                let seq = child.next_seq();
                let stream = if source == 0 { child.first_stream } else { "stderr" };
                messages::push_output(
                    &mut self.output,
                    &child.name,
                    seq,
                    stream,
                    &self.chunk[..count],
                );
            }
        }
        self.close_if_done(key);
        Ok(())
    }

    fn close_if_done(&mut self, key: u64) {
        let Some(child) = self.children.get_mut(&key).filter(|child| child.is_done()) else {
            return;
        };
        let (seq, name) = (child.next_seq(), &child.name);
        let text =
            format!(r#"{{"method":"process/closed","params":{{"processId":{name},"seq":{seq}}}}}"#);
        messages::push_text(&mut self.output, &text);
        self.keys.remove(&child.id);
        self.children.remove(&key);
    }

    fn watch(&self, source: impl std::os::fd::AsFd, key: u64, place: usize) -> io::Result<()> {
        let token = epoll::EventData::new_u64(key * SOURCES + place as u64);
        Ok(epoll::add(&self.epoll, source, token, epoll::EventFlags::IN)?)
    }

    fn reply(&mut self, id: i64, result: &str) {
        messages::push_text(&mut self.output, &format!(r#"{{"id":{id},"result":{result}}}"#));
    }

    fn refuse(&mut self, id: i64, message: &str) {
        let error = serde_json::json!({"error": {"code": -32603, "message": message}, "id": id});
        messages::push_text(&mut self.output, &error.to_string());
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    id: Option<i64>,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NameParams<'a> {
    process_id: &'a str,
}
