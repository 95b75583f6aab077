//! Counts the network calls that the filter refuses, so that a failed command can be told from a refused one.
//!
//! ```text
//! command ──refused call──▶ kernel ──notification──▶ launcher: notes it, answers EPERM
//!                                                       │ a number in memory that the server shares
//!                                                       ▼
//!                                                    server reads it when the command has ended
//! ```
//!
//! The launcher answers because it is outside, has nothing else to do, and its end ends everything inside; so nobody
//! ever waits for an answer that does not come. (If it were gone, the kernel would answer `ENOSYS`.) What is refused was
//! decided by the filter from registers alone. The address of a socket is looked at only to leave out what programs
//! do behind their user's back, so it does no harm that it could change meanwhile.

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

use crate::linux::spawner::move_up;

/// The server's side: how many calls were refused.
#[derive(Debug, Default)]
pub struct RefusedCalls(Option<File>);

impl RefusedCalls {
    /// The memory that is shared, once for the server and once for a launcher; it has no size until something is refused.
    pub fn share() -> io::Result<(Self, OwnedFd)> {
        let memory = rustix::fs::memfd_create("refused", MemfdFlags::CLOEXEC)?;
        let theirs = move_up(memory.try_clone()?)?;
        Ok((Self(Some(memory.into())), theirs))
    }

    /// How many there were so far.
    pub fn count(&self) -> u64 {
        let mut bytes = [0; 8];
        let read = self.0.as_ref().map(|memory| memory.read_exact_at(&mut bytes, 0));
        if matches!(read, Some(Ok(()))) { u64::from_ne_bytes(bytes) } else { 0 }
    }
}

/// The two ends between the launcher and what it has started.
pub fn connect() -> io::Result<(File, File)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((ours.into(), theirs.into()))
}

/// Inside: hands the kernel's notifications to the launcher.
pub fn hand_over(listener: &OwnedFd, launcher: BorrowedFd) -> io::Result<()> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(launcher, &[io::IoSlice::new(b"l")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Outside: answers the notifications until it is told how the command ended.
pub struct Attendant {
    inside: Option<File>,
    /// Readable when the command has ended, if nobody inside will tell.
    end: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    tally: Option<File>,
    refused: u64,
}

impl Attendant {
    /// Hears of the end on `inside`, and notes what is refused in `tally`.
    pub fn new(inside: File, tally: Option<File>) -> Self {
        Self { inside: Some(inside), end: None, listener: None, tally, refused: 0 }
    }

    /// Also ends when `end` becomes readable, and not before.
    #[must_use]
    pub fn until(self, end: OwnedFd) -> Self {
        Self { end: Some(end), ..self }
    }

    /// The status that was told, or nothing if everybody inside has ended without a word.
    pub fn run(mut self) -> Option<i32> {
        loop {
            match self.wait() {
                Ok(Event::Refused) => self.answer(),
                Ok(Event::NobodyToAnswer) => self.listener = None,
                Ok(Event::Told) => match self.receive() {
                    Ok(Told::Listener(listener)) => self.listener = Some(listener),
                    Ok(Told::Ending(status)) => return Some(status),
                    // The program runs, and took nothing along.
                    Ok(Told::Nothing) if self.end.is_some() => self.inside = None,
                    Ok(Told::Nothing) | Err(_) => return None,
                },
                Err(Errno::INTR) => {}
                Ok(Event::Ended) | Err(_) => return None,
            }
        }
    }

    fn wait(&self) -> rustix::io::Result<Event> {
        let sources = [
            // A call is refused before its caller can end, so the end comes last.
            (Event::Refused, self.listener.as_ref().map(AsFd::as_fd)),
            (Event::Told, self.inside.as_ref().map(AsFd::as_fd)),
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
        Ok(if is_over { Event::NobodyToAnswer } else { *event })
    }

    fn receive(&self) -> io::Result<Told> {
        let Some(inside) = &self.inside else { return Ok(Told::Nothing) };
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
            (Some(listener), _) => Told::Listener(listener),
            (None, 4) => Told::Ending(i32::from_ne_bytes(bytes)),
            (None, _) => Told::Nothing,
        })
    }

    /// Refuses one call. Whoever made it may have been killed meanwhile, and then there is nothing to do.
    fn answer(&mut self) {
        let Some(listener) = &self.listener else { return };
        // SAFETY: all zeros is a valid value, and what the kernel wants to be given.
        let mut notification = unsafe { std::mem::zeroed::<libc::seccomp_notif>() };
        let fd = listener.as_raw_fd();
        // SAFETY: fills a live local of the size that the request's number says.
        let received =
            unsafe { libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut notification) };
        if received == -1 {
            return;
        }
        if is_worth_telling(&notification) {
            self.refused += 1;
            if let Some(tally) = &self.tally {
                // Without it the words of the command still tell.
                let _ = tally.write_all_at(&self.refused.to_ne_bytes(), 0);
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
    /// Everything that the filter was for has ended.
    NobodyToAnswer,
    Told,
    Ended,
}

enum Told {
    Listener(OwnedFd),
    Ending(i32),
    Nothing,
}

/// Sockets that the C library looks for whenever a program asks for a name, and where programs leave notes: nobody
/// misses them, so a failure is not because of them.
const BEHIND_THE_BACK: [&[u8]; 6] = [
    b"/var/run/nscd/",
    b"/run/nscd/",
    b"/run/systemd/",
    b"/var/run/systemd/",
    b"/var/lib/sss/",
    b"/dev/log",
];

fn is_worth_telling(notification: &libc::seccomp_notif) -> bool {
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

/// Whether somebody wanted to be connected to what the address says.
fn names_a_peer(address: &[u8]) -> bool {
    let Some((family, path)) = address.split_first_chunk::<2>() else { return false };
    u16::from_ne_bytes(*family) == libc::AF_UNIX as u16
        && !BEHIND_THE_BACK.iter().any(|socket| path.starts_with(socket))
}

/// Reads what it can of another process's memory.
fn read_memory(pid: u32, address: u64, into: &mut [u8]) -> Option<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: writes at most as much as there is room for; the other address is only looked up in the other process.
    let count = unsafe {
        libc::process_vm_readv(pid.cast_signed(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(count).ok()
}

#[cfg(test)]
mod tests;
