//! The standard streams of a child: the server's ends, and the ends that the child gets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Gid, MemfdFlags, Mode, OFlags, Uid, fchown};
use rustix::pipe::PipeFlags;

use super::terminal;
use crate::accounts::Credentials;
use crate::spawn::{StdinKind, Stdio};

/// The server's ends.
pub(super) enum OurEnds {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { master: OwnedFd },
    Socket { socket: OwnedFd },
    None,
}

/// The child's ends.
pub(super) enum TheirEnds {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal { slave: OwnedFd },
    Socket { socket: OwnedFd },
    Inherited,
}

impl TheirEnds {
    /// Makes the user the owner, so that its programs can open `/dev/stdout` and use the terminal as their own.
    pub fn give_to(&self, user: &Credentials) -> io::Result<()> {
        let (uid, gid) = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
        match self {
            Self::Pipes { stdin, stdout, stderr } => {
                for end in stdin.iter().chain([stdout, stderr]) {
                    fchown(end, uid, gid)?;
                }
            }
            // Its group is the one for terminals.
            Self::Terminal { slave } => fchown(slave, uid, None)?,
            Self::Socket { .. } | Self::Inherited => {}
        }
        Ok(())
    }

    /// Descriptors 0, 1 and 2 of the child.
    pub fn as_stdio(&self) -> io::Result<[BorrowedFd<'_>; 3]> {
        let null = null_device()?;
        Ok(match self {
            Self::Pipes { stdin, stdout, stderr } => {
                [stdin.as_ref().map_or(null, |stdin| stdin.as_fd()), stdout.as_fd(), stderr.as_fd()]
            }
            Self::Terminal { slave } => [slave.as_fd(); 3],
            Self::Socket { socket } => [socket.as_fd(), null, null],
            Self::Inherited => {
                [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
            }
        })
    }
}

/// Opens both ends of the streams.
pub(super) fn open(stdio: Stdio) -> io::Result<(OurEnds, TheirEnds)> {
    match stdio {
        Stdio::Inherited => Ok((OurEnds::None, TheirEnds::Inherited)),
        Stdio::Terminal(size) => {
            let (master, slave) = terminal::open(size)?;
            Ok((OurEnds::Terminal { master }, TheirEnds::Terminal { slave }))
        }
        Stdio::Socket => {
            let (ours, theirs) = rustix::net::socketpair(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::CLOEXEC,
                None,
            )?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            Ok((OurEnds::Socket { socket: ours }, TheirEnds::Socket { socket: theirs }))
        }
        Stdio::Pipes { stdin } => {
            let (stdout, their_stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            let (stderr, their_stderr) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&stdout, true)?;
            rustix::io::ioctl_fionbio(&stderr, true)?;
            let (our_stdin, their_stdin) = match stdin {
                StdinKind::Null => (None, None),
                StdinKind::Pipe => {
                    let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
                    rustix::io::ioctl_fionbio(&ours, true)?;
                    (Some(ours), Some(theirs))
                }
            };
            Ok((
                OurEnds::Pipes { stdin: our_stdin, stdout, stderr },
                TheirEnds::Pipes { stdin: their_stdin, stdout: their_stdout, stderr: their_stderr },
            ))
        }
    }
}

/// The host's null device, opened once.
pub fn null_device() -> io::Result<BorrowedFd<'static>> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return Ok(null.as_fd());
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(NULL.get_or_init(|| null).as_fd())
}

/// A memfd with this content, so that the content is never on disk; its descriptor number is at least 10.
pub fn memory_of(content: &[u8]) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("exec-server", MemfdFlags::CLOEXEC)?;
    let mut rest = content;
    while !rest.is_empty() {
        let written = rustix::io::write(&memory, rest)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&memory, rustix::fs::SeekFrom::Start(0))?;
    move_up(memory)
}

/// Moves a descriptor above the numbers that a child's standard and extra descriptors use.
pub fn move_up(fd: OwnedFd) -> io::Result<OwnedFd> {
    const FIRST_FREE: i32 = 10;
    if fd.as_raw_fd() >= FIRST_FREE {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE)?)
}
