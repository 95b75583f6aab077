//! Many files at once, and again after a lost link.
//!
//! A directory is made before what is in it is looked at, so that nothing comes before its parent. Permission bits and
//! times of directories come last, from the deepest up: the bits may forbid to write into them, and writing changes the times.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::super::failure::Failure;
use super::progress::Progress;
use super::side::{Attributes, Entry, Kind, Side, join};

/// Files up to this size travel in one message.
const SMALL: u64 = 256 * 1024;
/// Small files and directories at once: enough to hide the road's length.
const AT_ONCE: usize = 64;
/// Large files at once: each keeps a link busy by itself.
const LARGE_AT_ONCE: usize = 2;
/// How often a file is tried when the link breaks under it.
const TRIES: usize = 5;

/// Everything that goes from one side to the other.
pub struct Transfer {
    /// From where.
    pub from: Side,
    /// Where to.
    pub to: Side,
    /// Whether permission bits and times are kept.
    pub keep: bool,
    /// Who tells how far it is.
    pub progress: Arc<Progress>,
}

#[derive(Debug, Clone)]
struct Job {
    from: Vec<u8>,
    to: Vec<u8>,
    entry: Entry,
}

impl Transfer {
    /// Copies a file or a tree; says how much of it could not be copied.
    pub async fn run(self, from: Vec<u8>, to: Vec<u8>, entry: Entry) -> Result<usize, Failure> {
        let this = Arc::new(self);
        let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
        let mut queue = VecDeque::from([Job { from, to, entry }]);
        let mut directories = Vec::new();
        let mut failures = 0;
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() < AT_ONCE
                && let Some(job) = queue.pop_front()
            {
                if job.entry.kind != Kind::Directory {
                    this.progress.found(job.entry.size);
                }
                let (this, large) = (this.clone(), large.clone());
                tasks.spawn(async move {
                    let below = this.perform(&job, &large).await?;
                    Ok::<_, Failure>((job, below))
                });
            }
            match tasks.join_next().await {
                None => break,
                Some(Ok(Ok((job, below)))) => {
                    queue.extend(below);
                    if job.entry.kind == Kind::Directory {
                        directories.push(job);
                    }
                }
                Some(Ok(Err(failure))) if failure.exit_code(false) == 1 => {
                    failures += 1;
                    this.progress.finish();
                    failure.print();
                }
                // Without a link the rest would only fail as well.
                Some(Ok(Err(failure))) => return Err(failure),
                Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        if this.keep {
            for directory in directories.into_iter().rev() {
                this.to.set_attributes(&directory.to, &directory.entry).await?;
            }
        }
        Ok(failures)
    }

    /// Copies one thing, and says what is in it.
    async fn perform(&self, job: &Job, large: &Semaphore) -> Result<Vec<Job>, Failure> {
        for _ in 1..TRIES {
            match self.attempt(job, large).await {
                Err(failure) if failure.is_link() => {
                    self.progress.note("lost the connection; going on with what was not complete");
                }
                result => return result,
            }
        }
        self.attempt(job, large).await
    }

    async fn attempt(&self, job: &Job, large: &Semaphore) -> Result<Vec<Job>, Failure> {
        match job.entry.kind {
            Kind::Directory => {
                self.to.make_directory(&job.to).await?;
                let found = self.from.list(&job.from).await?;
                let below = |(name, entry): (Vec<u8>, Entry)| Job {
                    from: join(&job.from, &name),
                    to: join(&job.to, &name),
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
            Kind::Other => {
                let what = self.from.describe(&job.from);
                return Err(Failure::Usage(format!("{what} is no file, directory or link")));
            }
        }
        self.progress.done();
        Ok(Vec::new())
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
        if self.keep {
            Attributes::Keep { mode: entry.mode, modified_ms: entry.modified_ms }
        } else {
            Attributes::New(entry.mode & 0o777 & !own_umask())
        }
    }
}

/// What new files of this user do not have; the other side's idea of it is not known.
fn own_umask() -> u32 {
    use std::sync::LazyLock;
    static MASK: LazyLock<u32> = LazyLock::new(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
    });
    *MASK
}
