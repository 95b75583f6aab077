//! Connection attempts from inside a sandbox to the address in `DIAL`.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::attempt::variable;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Requests the health route; any answer but a refusal counts.
pub fn dial() -> io::Result<()> {
    let address = variable("DIAL");
    match address.strip_prefix("unix://") {
        Some(path) => ask(UnixStream::connect(path)?),
        None => ask(TcpStream::connect(address)?),
    }
}

/// The same with a socket that no process holds while the server identifies its owner.
pub fn dial_in_flight() -> io::Result<()> {
    let mut socket = TcpStream::connect(variable("DIAL"))?;
    socket.write_all(REQUEST)?;
    let (one, other) = UnixStream::pair()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed = [socket.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&passed)), "there is room for one");
    sendmsg(&one, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    drop(socket);
    std::thread::sleep(Duration::from_millis(700));
    ask_on(TcpStream::from(take_back(&other)?))
}

fn take_back(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut [0])], &mut control, RecvFlags::empty())?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn ask(mut link: impl Read + Write) -> io::Result<()> {
    link.write_all(REQUEST)?;
    ask_on(link)
}

fn ask_on(mut link: impl Read) -> io::Result<()> {
    let mut answer = Vec::new();
    // Unread data may turn the end into an error.
    let _ = link.read_to_end(&mut answer);
    // Routes differ between listeners, but a peer that may not connect gets 403 or nothing.
    let is_served = answer.starts_with(b"HTTP/1.1 ") && !answer.starts_with(b"HTTP/1.1 403 ");
    if is_served { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EACCES)) }
}
