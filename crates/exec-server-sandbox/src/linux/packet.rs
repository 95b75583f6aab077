//! Messages with descriptors over a `SOCK_SEQPACKET` socket pair, between the server, zygote, launcher and init.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message is a few numbers and at most the name of a step.
const MAX_BYTES: usize = 512;
/// Standard streams, plan and cgroup.
const MAX_FDS: usize = 5;

/// A received message.
pub struct Packet {
    bytes: Vec<u8>,
    /// Descriptors that came with the message.
    pub fds: Vec<OwnedFd>,
}

/// A connected pair of blocking sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd]) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [io::IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| sendmsg(&socket, &bytes, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for a message; a closed peer is `UnexpectedEof`.
pub fn receive(socket: impl AsFd) -> io::Result<Packet> {
    receive_with(socket, RecvFlags::empty())
}

/// Receives a message without waiting; `WouldBlock` if there is none.
pub fn try_receive(socket: impl AsFd) -> io::Result<Packet> {
    receive_with(socket, RecvFlags::DONTWAIT)
}

fn receive_with(socket: impl AsFd, flags: RecvFlags) -> io::Result<Packet> {
    let mut bytes = [0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let count = loop {
        let mut room = [io::IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut room, &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?.bytes,
        }
    };
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(Packet { bytes: bytes[..count].to_vec(), fds })
}

impl Packet {
    pub fn decode<T: DeserializeOwned>(&self) -> io::Result<T> {
        postcard::from_bytes(&self.bytes).map_err(io::Error::other)
    }
}
