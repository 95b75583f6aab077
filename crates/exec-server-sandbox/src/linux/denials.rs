//! Counts the network calls that the filter refuses, so that a refused command is distinguished from a failed one.
//!
//! ```text
//! command ──refused call──▶ kernel ──notification──▶ launcher: counts it, replies EPERM
//!                                                       │ a counter in shared memory
//!                                                       ▼
//!                                                    server reads it when the command has exited
//! ```
//!
//! The launcher replies because it is outside, is otherwise idle, and its exit ends every process inside, so no call
//! waits forever. (Without a listener the kernel replies `ENOSYS`.) The filter alone decides what is refused, from
//! registers. The socket address is read only to leave lookups of the C library out of the count, so it is harmless
//! that the address can change meanwhile.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use exec_server_os::linux::standard_streams::move_up;

/// The server's side of the counter.
#[derive(Debug, Default)]
pub struct RefusedCalls(Option<File>);

impl RefusedCalls {
    /// Creates the shared memory: a handle for the server and one for a launcher. It is empty until a call is refused.
    pub fn share() -> io::Result<(Self, OwnedFd)> {
        let memory = rustix::fs::memfd_create("refused", MemfdFlags::CLOEXEC)?;
        let theirs = move_up(memory.try_clone()?)?;
        Ok((Self(Some(memory.into())), theirs))
    }

    /// The number of refused calls so far.
    pub fn count(&self) -> u64 {
        let mut bytes = [0; 8];
        let read = self.0.as_ref().map(|memory| memory.read_exact_at(&mut bytes, 0));
        if matches!(read, Some(Ok(()))) { u64::from_ne_bytes(bytes) } else { 0 }
    }
}

/// The socket pair between the launcher and its child.
pub fn connect() -> io::Result<(File, File)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((ours.into(), theirs.into()))
}

/// Inside: sends the notification listener to the launcher.
pub fn hand_over(listener: &OwnedFd, launcher: BorrowedFd) -> io::Result<()> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(launcher, &[io::IoSlice::new(b"l")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Outside: replies to notifications until the command has exited.
pub struct SeccompNotifier {
    inside: Option<File>,
    /// Becomes readable when the command exits; set if pid 1 does not report the exit.
    end: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    denial_count: Option<File>,
    refused: u64,
}

impl SeccompNotifier {
    /// Reads the listener and the exit status from `inside`, and writes the count to `denial_count`.
    pub fn new(inside: File, denial_count: Option<File>) -> Self {
        Self { inside: Some(inside), end: None, listener: None, denial_count, refused: 0 }
    }

    /// Waits for `end` to become readable instead of a status message.
    #[must_use]
    pub fn until(self, end: OwnedFd) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Returns the wait status that was received, or `None` if `inside` closed without one.
    pub fn run(mut self) -> Option<i32> {
        loop {
            match self.wait() {
                Ok(Event::Refused) => self.answer(),
                Ok(Event::NoCallers) => self.listener = None,
                Ok(Event::Message) => match self.receive() {
                    Ok(Message::Listener(listener)) => self.listener = Some(listener),
                    Ok(Message::Ending(status)) => return Some(status),
                    // The program was executed, which closed the socket.
                    Ok(Message::Nothing) if self.end.is_some() => self.inside = None,
                    Ok(Message::Nothing) | Err(_) => return None,
                },
                Err(Errno::INTR) => {}
                Ok(Event::Ended) | Err(_) => return None,
            }
        }
    }

    fn wait(&self) -> rustix::io::Result<Event> {
        let sources = [
            // A call is refused before its caller can exit, so the exit is checked last.
            (Event::Refused, self.listener.as_ref().map(AsFd::as_fd)),
            (Event::Message, self.inside.as_ref().map(AsFd::as_fd)),
            (Event::Ended, self.end.as_ref().map(AsFd::as_fd)),
        ];
        let sources: Vec<_> =
            sources.into_iter().filter_map(|(event, fd)| Some((event, fd?))).collect();
        let mut fds: Vec<_> =
            sources.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        poll(&mut fds, None)?;
        let ready = sources.iter().zip(&fds).find(|(_, fd)| !fd.revents().is_empty());
        let ((event, _), fd) = ready.ok_or(Errno::INTR)?;
        let is_over = *event == Event::Refused && !fd.revents().contains(PollFlags::IN);
        Ok(if is_over { Event::NoCallers } else { *event })
    }

    fn receive(&self) -> io::Result<Message> {
        let Some(inside) = &self.inside else { return Ok(Message::Nothing) };
        let mut bytes = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffer = [io::IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::io::retry_on_intr(|| recvmsg(inside, &mut buffer, &mut control, flags))?;
        let fds = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        Ok(match (fds, received.bytes) {
            (Some(listener), _) => Message::Listener(listener),
            (None, 4) => Message::Ending(i32::from_ne_bytes(bytes)),
            (None, _) => Message::Nothing,
        })
    }

    /// Replies to one call. If its caller was killed meanwhile, both ioctls fail harmlessly.
    fn answer(&mut self) {
        let Some(listener) = &self.listener else { return };
        // SAFETY: all zeros is a valid value, and the kernel requires zeros.
        let mut notification = unsafe { std::mem::zeroed::<libc::seccomp_notif>() };
        let fd = listener.as_raw_fd();
        // SAFETY: fills a live local of the size that the request's number says.
        let received =
            unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
        if received == -1 {
            return;
        }
        if is_counted(&notification) {
            self.refused += 1;
            if let Some(denial_count) = &self.denial_count {
                // On failure the denial is still recognised by the command's error output.
                let _ = denial_count.write_all_at(&self.refused.to_ne_bytes(), 0);
            }
        }
        let answer =
            libc::seccomp_notif_resp { id: notification.id, val: 0, error: -libc::EPERM, flags: 0 };
        // SAFETY: the kernel only reads the answer.
        unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Refused,
    /// Every process under the filter has exited.
    NoCallers,
    Message,
    Ended,
}

enum Message {
    Listener(OwnedFd),
    Ending(i32),
    Nothing,
}

/// Sockets that the C library and loggers try without a request by the program. Refusing them does not make a command
/// fail, so they are not counted.
const IMPLICIT_SOCKETS: [&[u8]; 6] = [
    b"/var/run/nscd/",
    b"/run/nscd/",
    b"/run/systemd/",
    b"/var/run/systemd/",
    b"/var/lib/sss/",
    b"/dev/log",
];

fn is_counted(notification: &libc::seccomp_notif) -> bool {
    let data = &notification.data;
    match libc::c_long::from(data.nr) {
        libc::SYS_connect | libc::SYS_bind => {
            let mut address = [0; size_of::<libc::sockaddr_un>()];
            let length = (data.args[2] as usize).min(address.len());
            let read = read_memory(notification.pid, data.args[1], &mut address[..length]);
            read.is_some_and(|length| names_a_peer(&address[..length]))
        }
        _ => true,
    }
}

/// Whether the address is that of a Unix socket that a program connects to on purpose.
fn names_a_peer(address: &[u8]) -> bool {
    let Some((family, path)) = address.split_first_chunk::<2>() else { return false };
    u16::from_ne_bytes(*family) == libc::AF_UNIX as u16
        && !IMPLICIT_SOCKETS.iter().any(|socket| path.starts_with(socket))
}

/// Reads up to `into.len()` bytes of another process's memory.
fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> Option<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: writes at most `iov_len` bytes into a live buffer; the remote address is resolved in the other process only.
    let count = unsafe {
        libc::process_vm_readv(pid.cast_signed(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(count).ok()
}

#[cfg(test)]
mod tests;
