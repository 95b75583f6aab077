//! The other side of `http/request`: a small web server that costs as little as possible.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use super::failure::Result;

/// Bytes that are written at once.
const PIECE: usize = 256 << 10;

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
fn serve(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    let zeros = vec![0; PIECE];
    loop {
        let length = read_request(&mut reader)?;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let first = length.min(zeros.len());
        writer.write_all(&[head.as_bytes(), &zeros[..first]].concat()).ok()?;
        let mut left = length - first;
        while left > 0 {
            let piece = left.min(zeros.len());
            writer.write_all(&zeros[..piece]).ok()?;
            left -= piece;
        }
    }
}

/// How many bytes the next request asks for; none at the end.
fn read_request(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = line.split(' ').nth(1)?.strip_prefix('/')?.parse().ok()?;
    while line.trim_end() != "" {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
    }
    Some(length)
}
