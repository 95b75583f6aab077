//! Web server for `http/request` measurements, with minimal cost.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::failure::Result;

/// Bytes per write.
const PIECE: usize = 256 << 10;

/// Longer than any request.
const REQUEST: usize = 16 << 10;

/// A web server, stopped on drop.
pub struct Web {
    /// Listening address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    listening: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Kept for the shutdown, because a client that does not read would block their threads.
    streams: Mutex<Vec<TcpStream>>,
}

impl Web {
    /// Starts the server. `GET /N` returns `N` zero bytes.
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
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
        if let Some(listening) = self.listening.take() {
            // A panic was printed already.
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
        // The thread ends when the stream is shut down.
        thread::spawn(move || serve(stream));
    }
}

/// Answers requests until the client or the benchmark closes the connection.
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

/// A cached response, reused for equal requests.
#[derive(Default)]
struct Answer {
    length: Option<usize>,
    /// The head and the first part of the body.
    begin: Vec<u8>,
    /// Length of the rest of the body.
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

/// Length that the next request asks for; `None` at the end. Requests are not pipelined, so the read bytes belong to
/// one.
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
