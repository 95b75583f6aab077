//! The audit log in the systemd journal, by the native protocol of its socket.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix};

use super::writer::Sink;

/// A connection to the journal.
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

/// The fields of an entry before the message; `journalctl -t exec-server-audit` selects them.
const FIELDS: &str = "PRIORITY=6\nSYSLOG_IDENTIFIER=exec-server-audit\nMESSAGE=";

impl Journal {
    pub fn open(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // The writer retries; a thread that blocks here could not be stopped.
        socket.set_nonblocking(true)?;
        // Fails early if there is no journal.
        UnixDatagram::unbound()?.connect(path)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Sends an entry that is too long for a datagram as a sealed file in memory.
    fn send_file(&self, entry: &[u8]) -> io::Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("journal", flags)?);
        file.write_all(entry)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let to = SocketAddrUnix::new(&self.path)?;
        let nothing = [IoSlice::new(&[])];
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg_addr(&self.socket, &to, &nothing, &mut ancillary, flags)?;
        Ok(())
    }
}

impl Sink for Journal {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // JSON has no newline inside, so the short form of a field is enough.
        let entry = [FIELDS.as_bytes(), line].concat();
        match self.socket.send_to(&entry, &self.path) {
            Ok(_) => Ok(()),
            Err(error) if is_too_long(&error) => self.send_file(&entry),
            Err(error) => Err(error),
        }
    }
}

fn is_too_long(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::MSGSIZE | rustix::io::Errno::NOBUFS))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::mem::MaybeUninit;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

    use super::*;

    #[test]
    fn entries_are_datagrams_or_sealed_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(Journal::open(&path).is_err(), "no journal listens");
        let listening = UnixDatagram::bind(&path).unwrap();
        let mut journal = Journal::open(&path).unwrap();
        journal.write(b"{}\n").unwrap();
        let mut short = [0; 1000];
        let count = listening.recv(&mut short).unwrap();
        let expected = "PRIORITY=6\nSYSLOG_IDENTIFIER=exec-server-audit\nMESSAGE={}\n";
        assert_eq!(std::str::from_utf8(&short[..count]), Ok(expected));

        let long = "x".repeat(8 * 1024 * 1024) + "\n";
        journal.write(long.as_bytes()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::empty();
        rustix::net::recvmsg(&listening, &mut [], &mut ancillary, flags).unwrap();
        let files = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let mut file = File::from(files.expect("the entry is a file"));
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("{FIELDS}{long}"));
        assert!(file.set_len(0).is_err(), "sealed");
    }
}
