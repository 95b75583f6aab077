//! The other side of `http/request`: a small web server that costs as little as possible.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::failure::Result;

/// Bytes that are written at once.
const PIECE: usize = 256 << 10;

/// More than a contestant says in a request.
const REQUEST: usize = 16 << 10;

/// A web server; it is gone when its value is dropped.
pub struct Web {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Kept to be shut down, because a client that does not read would hold them.
    streams: Mutex<Vec<TcpStream>>,
}

impl Web {
    /// Starts it. `GET /N` is answered with `N` zero bytes.
    pub fn start() -> Result<Web> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let listening = thread::spawn({
            let shared = shared.clone();
            move || listen(&listener, &shared)
        });
        Ok(Web { address, shared, listening: Some(listening) })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for stream in self.shared.streams.lock().expect("no holder panics").drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread that listens.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            // A thread that panicked has said why.
            let _ = listening.join();
        }
    }
}

fn listen(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.is_over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(held) = stream.try_clone() else { continue };
        shared.streams.lock().expect("no holder panics").push(held);
        // Ends when the stream is shut down.
        thread::spawn(move || serve(stream));
    }
}

/// Answers requests until the client or the bench hangs up.
fn serve(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let zeros = vec![0; PIECE];
    let mut request = vec![0; REQUEST];
    let mut last = Answer::default();
    loop {
        let length = read_request(&mut stream, &mut request)?;
        if last.length != Some(length) {
            last = Answer::new(length, &zeros);
        }
        stream.write_all(&last.begin).ok()?;
        let mut left = last.rest;
        while left > 0 {
            let piece = left.min(zeros.len());
            stream.write_all(&zeros[..piece]).ok()?;
            left -= piece;
        }
    }
}

/// What is said to a request; the same is said again to the next one like it.
#[derive(Default)]
struct Answer {
    length: Option<usize>,
    /// The head, with as much of the body as is written at once.
    begin: Vec<u8>,
    /// How much of the body comes after that.
    rest: usize,
}

impl Answer {
    fn new(length: usize, zeros: &[u8]) -> Answer {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let first = length.min(zeros.len());
        let begin = [head.as_bytes(), &zeros[..first]].concat();
        Answer { length: Some(length), begin, rest: length - first }
    }
}

/// How many bytes the next request asks for; none at the end. No request is sent before the last was
/// answered, so what is read belongs to one.
fn read_request(stream: &mut TcpStream, request: &mut [u8]) -> Option<usize> {
    let mut filled = 0;
    while !request[..filled].ends_with(b"\r\n\r\n") {
        let count = stream.read(&mut request[filled..]).ok()?;
        if count == 0 {
            return None;
        }
        filled += count;
    }
    let line = request.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(line).ok()?.split(' ').nth(1)?.strip_prefix('/')?.parse().ok()
}
