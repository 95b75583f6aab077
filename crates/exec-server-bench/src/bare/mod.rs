//! A minimal websocket server that starts processes, reads files and sends HTTP requests: the baseline of the
//! benchmark, not a product.
//!
//! One blocking thread per connection; nothing is retained, resumed, sandboxed or limited. Its cost is the cost of
//! the machine, the wire format and the measuring client.

mod child;
mod connection;
mod files;
mod messages;
mod web;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;

use connection::Connection;

/// Listens on a free loopback port, prints its address and serves until it is killed.
pub fn run() -> ExitCode {
    match listen() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn listen() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "ws://{}", listener.local_addr()?)?;
    stdout.flush()?;
    loop {
        let (socket, _) = listener.accept()?;
        std::thread::spawn(move || match serve(socket) {
            // A connection ends when its client disconnects.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                eprintln!("bare server: a connection failed: {error}");
            }
            _ => {}
        });
    }
}

fn serve(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    accept_upgrade(&mut socket)?;
    Connection::new(socket)?.run()
}

/// Answers any upgrade with the accept value of the one key that the measuring client uses.
fn accept_upgrade(socket: &mut TcpStream) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    socket.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
          sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    )
}
