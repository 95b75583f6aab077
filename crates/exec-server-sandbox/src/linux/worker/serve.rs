//! The file worker inside a sandbox: performs file requests for the server, confined by the kernel.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use exec_server_fs::{FsError, FsReply, StagedFile, perform};

use super::wire::{Arriving, Outgoing, WorkerReply, WorkerRequest};
use exec_server_fs::search::{Search, SearchSpec};
use exec_server_fs::tree_watch::{Changes, ChangesRoom, TreeWatch, WatchError, WatchSpec};
use exec_server_protocol::fs::FsReadChangesResponse;

use crate::children::Watching;

/// Serves until the server closes the socket.
pub fn serve(socket: BorrowedFd) -> io::Result<()> {
    let mut worker = Worker {
        staged: BTreeMap::new(),
        next: 0,
        search: None,
        watch: None,
        socket: socket.try_clone_to_owned()?,
    };
    loop {
        let Some(frame) = Arriving::default().receive(socket)? else {
            return Err(io::Error::other("the socket of a worker must be blocking"));
        };
        let (reply, file) = worker.handle(frame.decode()?);
        let beside = file.as_ref().map(|file| file.as_fd());
        if !Outgoing::new(&reply)?.send(socket, beside)? {
            return Err(io::Error::other("the socket of a worker must be blocking"));
        }
    }
}

struct Worker {
    /// Staged files that the server fills and the worker publishes.
    staged: BTreeMap<u64, StagedFile>,
    next: u64,
    /// The search that the server reads page by page.
    search: Option<Search>,
    /// The watch that the server reads.
    watch: Option<TreeWatch>,
    socket: OwnedFd,
}

impl Worker {
    fn handle(&mut self, request: WorkerRequest) -> (WorkerReply, Option<std::fs::File>) {
        let outcome = match request {
            WorkerRequest::Search(spec) => return self.start_search(*spec),
            WorkerRequest::NextPage => return self.next_page(),
            WorkerRequest::Watch(spec) => return self.start_watch(&spec),
            WorkerRequest::AwaitChanges { seq, wait } => return self.await_changes(seq, wait),
            WorkerRequest::ReadChanges { seq } => return self.read_changes(seq),
            WorkerRequest::Perform(request) => perform(request),
            WorkerRequest::Publish(id) => self.take(id).and_then(|staged| {
                let (response, leftovers) = staged.publish()?;
                Ok(FsReply::Written(response, leftovers))
            }),
            WorkerRequest::Discard(id) => self.take(id).map(|_| FsReply::Done),
        };
        match self.answer(outcome) {
            Ok(answer) => answer,
            Err(error) => (WorkerReply::Failed(error), None),
        }
    }

    fn answer(
        &mut self,
        outcome: Result<FsReply, FsError>,
    ) -> Result<(WorkerReply, Option<std::fs::File>), FsError> {
        match outcome? {
            FsReply::Opened(file) => Ok((WorkerReply::Opened, Some(file.into_file()))),
            FsReply::Staged(staged) => {
                let file = staged.file().try_clone()?;
                let id = self.next;
                self.next += 1;
                self.staged.insert(id, staged);
                Ok((WorkerReply::Staged(id), Some(file)))
            }
            other => {
                let mut text = Vec::new();
                other.write_to(&mut text)?;
                let text = String::from_utf8(text).expect("JSON is UTF-8");
                Ok((WorkerReply::Text(text), None))
            }
        }
    }

    fn start_search(&mut self, spec: SearchSpec) -> (WorkerReply, Option<std::fs::File>) {
        let started = exit_with(&self.socket).map_err(FsError::System);
        match started.and_then(|()| Search::start(spec)) {
            Ok(search) => {
                self.search = Some(search);
                self.next_page()
            }
            Err(error) => (WorkerReply::Failed(error), None),
        }
    }

    fn next_page(&mut self) -> (WorkerReply, Option<std::fs::File>) {
        let reply = match &self.search {
            Some(search) => {
                let page = search.next_page();
                WorkerReply::Page(page.text, page.done)
            }
            None => WorkerReply::Failed(io::Error::from_raw_os_error(libc::EBADF).into()),
        };
        (reply, None)
    }

    fn start_watch(&mut self, spec: &WatchSpec) -> (WorkerReply, Option<std::fs::File>) {
        let started = exit_with(&self.socket).map_err(WatchError::Path);
        let reply = match started.and_then(|()| TreeWatch::start(spec, &ChangesRoom::default())) {
            Ok(watch) => {
                let (directories, skipped) = (watch.directories(), watch.skipped());
                self.watch = Some(watch);
                WorkerReply::Watching(Watching { directories, skipped })
            }
            Err(error) => WorkerReply::NotWatching(error),
        };
        (reply, None)
    }

    fn await_changes(&self, seq: u64, wait: Duration) -> (WorkerReply, Option<std::fs::File>) {
        let reply = match &self.watch {
            Some(watch) => WorkerReply::Changed(watch.wait_after_blocking(seq, wait)),
            None => WorkerReply::Failed(io::Error::from_raw_os_error(libc::EBADF).into()),
        };
        (reply, None)
    }

    fn read_changes(&self, seq: u64) -> (WorkerReply, Option<std::fs::File>) {
        let reply = match &self.watch {
            Some(watch) => {
                let Changes { changes, ended, .. } = watch.changes_after(seq);
                let answer = FsReadChangesResponse { changes, ended };
                let text = serde_json::to_string(&answer).expect("plain data can be written");
                WorkerReply::Changes(text)
            }
            None => WorkerReply::Failed(io::Error::from_raw_os_error(libc::EBADF).into()),
        };
        (reply, None)
    }

    fn take(&mut self, id: u64) -> Result<StagedFile, FsError> {
        let staged = self.staged.remove(&id);
        staged.ok_or_else(|| FsError::System(io::Error::from_raw_os_error(libc::EBADF)))
    }
}

/// Ends this process when the server closes the socket, also during the wait for a page.
fn exit_with(socket: &OwnedFd) -> io::Result<()> {
    let socket = socket.try_clone()?;
    let wait = move || {
        let mut fds = [PollFd::new(&socket, PollFlags::empty())];
        // Without events, only a hangup or an error ends the wait.
        while let Err(rustix::io::Errno::INTR) = poll(&mut fds, None) {}
        std::process::exit(0);
    };
    std::thread::Builder::new().name("hangup".to_owned()).spawn(wait).map(drop)
}
