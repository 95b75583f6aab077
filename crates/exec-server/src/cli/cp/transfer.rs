//! Copies a file or a tree with many concurrent requests, and retries after a lost connection.
//!
//! A directory is created before it is listed, so that no entry precedes its parent. Permission bits and times of
//! directories are set last, deepest first: the bits may forbid writing, and writing changes the times.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::super::failure::Failure;
use super::destination_path::DestinationPath;
use super::endpoint::{Attributes, Endpoint, Entry, Kind, join};
use super::progress::Progress;

/// Files up to this size are sent in one message.
const SMALL: u64 = 256 * 1024;
/// Concurrent small files and directories: enough to hide the round-trip time.
const AT_ONCE: usize = 64;
/// Concurrent large files: each saturates a link by itself.
const LARGE_AT_ONCE: usize = 2;
/// Twice the limit of Linux (4096); stops an endlessly nested listing from a hostile server.
const MAX_PATH_BYTES: usize = 8192;
/// Attempts per file when the connection is lost.
const TRIES: usize = 5;

/// A copy from one endpoint to another.
pub struct Transfer {
    pub from: Endpoint,
    pub to: Endpoint,
    /// Whether permission bits and times are kept.
    pub keep: bool,
    pub progress: Arc<Progress>,
}

#[derive(Debug, Clone)]
struct Job {
    from: Vec<u8>,
    to: DestinationPath,
    entry: Entry,
    /// Whether a symbolic link with this name exists at the destination.
    is_blocked: bool,
}

impl Transfer {
    /// Copies a file or a tree; returns the number of entries that could not be copied.
    pub async fn run(
        self,
        from: Vec<u8>,
        to: DestinationPath,
        entry: Entry,
    ) -> Result<usize, Failure> {
        let this = Arc::new(self);
        let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let mut queue = VecDeque::new();
        // Directories that are not listed yet.
        let mut unlisted = 0;
        let first = Job { from, to, entry, is_blocked: false };
        this.enqueue(&mut queue, &mut unlisted, vec![first]);
        let mut is_listed = false;
        let mut directories = Vec::new();
        let mut failures = 0;
        let mut tasks = JoinSet::new();
        loop {
            if unlisted == 0 && !is_listed {
                is_listed = true;
                this.progress.listed();
            }
            while tasks.len() < AT_ONCE
                && let Some(job) = queue.pop_front()
            {
                let (this, large) = (this.clone(), large.clone());
                tasks.spawn(async move {
                    let result = this.perform(&job, &large).await;
                    (job, result)
                });
            }
            let (job, result) = match tasks.join_next().await {
                None => break,
                Some(Ok(done)) => done,
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            };
            let is_directory = job.entry.kind == Kind::Directory;
            unlisted -= usize::from(is_directory);
            match result {
                Ok(below) => {
                    this.enqueue(&mut queue, &mut unlisted, below);
                    if is_directory {
                        directories.push(job);
                    }
                }
                Err(failure) if failure.exit_code(false) == 1 => {
                    failures += 1;
                    this.report(&failure);
                }
                // Without a connection every other entry would fail, too.
                Err(failure) => return Err(failure),
            }
        }
        if this.keep {
            for directory in directories.into_iter().rev() {
                match this.to.set_attributes(&directory.to, &directory.entry).await {
                    Err(failure) if failure.exit_code(false) == 1 => {
                        failures += 1;
                        this.report(&failure);
                    }
                    result => result?,
                }
            }
        }
        Ok(failures)
    }

    /// Queues jobs and counts them for the progress line.
    fn enqueue(&self, queue: &mut VecDeque<Job>, unlisted: &mut usize, found: Vec<Job>) {
        for job in &found {
            if job.entry.kind == Kind::Directory {
                *unlisted += 1;
            } else {
                self.progress.found(job.entry.size);
            }
        }
        queue.extend(found);
    }

    fn report(&self, failure: &Failure) {
        self.progress.finish();
        failure.print();
    }

    /// Copies one entry with retries; returns the entries of a directory.
    async fn perform(&self, job: &Job, large: &Semaphore) -> Result<Vec<Job>, Failure> {
        for _ in 1..TRIES {
            match self.attempt(job, large).await {
                Err(failure) if failure.is_link() => {
                    self.progress.note("lost the connection; retrying incomplete files");
                }
                result => return result,
            }
        }
        self.attempt(job, large).await
    }

    async fn attempt(&self, job: &Job, large: &Semaphore) -> Result<Vec<Job>, Failure> {
        if job.is_blocked {
            return Err(link_in_the_way(self.to.describe(job.to.path())));
        }
        match job.entry.kind {
            Kind::Directory => {
                if job.from.len() > MAX_PATH_BYTES {
                    let text = "the path is longer than any file system allows".to_owned();
                    return Err(Failure::Usage(text).about(self.from.describe(&job.from)));
                }
                self.to.make_directory(&job.to).await?;
                let found = self.from.list(&job.from).await?;
                let links = self.links_in_the_way(&job.to, &found).await?;
                let below = |(name, entry): (Vec<u8>, Entry)| Job {
                    from: join(&job.from, &name),
                    to: job.to.child(&name),
                    is_blocked: links.contains(&name) && entry.kind != Kind::Link,
                    entry,
                };
                return Ok(found.into_iter().map(below).collect());
            }
            Kind::Link => {
                let target = self.from.read_link(&job.from).await?;
                self.to.make_link(&job.to, target).await?;
            }
            Kind::File if job.entry.size <= SMALL => {
                let content = self.from.read(&job.from).await?;
                let bytes = content.len();
                self.to.write(&job.to, content, self.attributes(&job.entry)).await?;
                self.progress.moved(i64::try_from(bytes).unwrap_or(i64::MAX));
            }
            Kind::File => {
                let _turn = large.acquire().await;
                self.copy_large(job).await?;
            }
            Kind::Stream | Kind::Other => {
                let what = self.from.describe(&job.from);
                return Err(Failure::Usage(format!("{what} is no file, directory or link")));
            }
            Kind::Nameless => {
                let what = self.from.describe(&job.from);
                let text = "is not the exact name: the name is not UTF-8, and the server does not report its bytes";
                return Err(Failure::Usage(format!("{what} {text}")));
            }
        }
        self.progress.done();
        Ok(Vec::new())
    }

    /// Symbolic links at the destination that names from a server would be written through.
    async fn links_in_the_way(
        &self,
        directory: &DestinationPath,
        found: &[(Vec<u8>, Entry)],
    ) -> Result<BTreeSet<Vec<u8>>, Failure> {
        if let Endpoint::Local = self.from {
            return Ok(BTreeSet::new());
        }
        let names = found.iter().map(|(name, _)| name.as_slice()).collect();
        self.to.links_among(directory.path(), &names).await
    }

    async fn copy_large(&self, job: &Job) -> Result<(), Failure> {
        let mut moved = 0;
        let result = self.pump(job, &mut moved).await;
        if result.is_err() {
            self.progress.moved(-moved);
        }
        result.map_err(|failure| failure.about(self.from.describe(&job.from)))
    }

    async fn pump(&self, job: &Job, moved: &mut i64) -> Result<(), Failure> {
        let mut reader = self.from.reader(&job.from).await?;
        let mut writer = self.to.writer(&job.to, self.attributes(&job.entry)).await?;
        while let Some(piece) = reader.next().await? {
            let bytes = i64::try_from(piece.len()).unwrap_or(i64::MAX);
            writer.write(piece).await?;
            *moved += bytes;
            self.progress.moved(bytes);
        }
        writer.finish().await
    }

    fn attributes(&self, entry: &Entry) -> Attributes {
        let mode = entry.mode.map(|mode| mode & 0o1777);
        if mode.is_none() {
            self.progress.note_once(format!(
                "{} does not report permission bits; new files get the defaults",
                self.from.title()
            ));
        }
        if self.keep && entry.mode.is_some_and(|bits| bits & 0o6000 != 0) {
            let text =
                "setuid and setgid bits of files are not preserved, because the owner is not";
            self.progress.note_once(text.to_owned());
        }
        if self.keep {
            Attributes::Keep { mode, modified_ms: entry.modified_ms }
        } else {
            Attributes::New(mode.unwrap_or(0o666) & 0o777 & !own_umask())
        }
    }
}

/// The error for a name from a server that would be written through a symbolic link.
pub fn link_in_the_way(dest: String) -> Failure {
    let text = "a symbolic link with this name is in the way, and is left as it is";
    Failure::Usage(text.to_owned()).about(dest)
}

/// The umask of this process, applied to copies because the umask of the server is unknown.
pub fn own_umask() -> u32 {
    use std::sync::LazyLock;
    static MASK: LazyLock<u32> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
    });
    *MASK
}
