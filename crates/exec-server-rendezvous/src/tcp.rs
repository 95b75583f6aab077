//! TCP sockets with bounded kernel buffers.
//!
//! A socket that is not read, or whose peer does not read, would otherwise hold several MiB of kernel memory, which the
//! buffer budget does not count.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

/// Receive buffer of an accepted socket; enough for 50 Mbit/s at a round trip of 40 ms.
const RECEIVE_BUFFER: usize = 256 * 1024;

/// Bytes in the kernel that were not sent yet; more would only wait there instead of in the fair queues.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 * 1024;

/// Connections that wait to be accepted, such as after a restart.
const BACKLOG: i32 = 4096;

/// Listens on an address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it; set later, it would not limit the window that was already announced.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Listens on a socket that another program has bound; it keeps a descriptor of its own.
pub fn adopt(listener: &std::net::TcpListener) -> io::Result<TcpListener> {
    let listener = listener.try_clone()?;
    let socket = SockRef::from(&listener);
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.set_nonblocking(true)?;
    // A second call changes the length of the queue only.
    socket.listen(BACKLOG)?;
    TcpListener::from_std(listener)
}

/// Sets the options of an accepted socket; fails only if the peer is gone.
pub fn tune_accepted(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT)?;
    #[cfg(not(target_os = "linux"))]
    let _ = SockRef::from(stream);
    Ok(())
}
