//! `logs`: prints the retained output of a process, and follows new output.

use std::collections::VecDeque;
use std::io::{self, Write};

use bytes::Bytes;
use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_protocol::fs::CaseMode;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    OutputChunk, OutputSearch, OutputStream, OutputView, ProcessReadParams, ProcessReadResponse,
};

use super::failure::Failure;
use super::output::Stream;
use super::ps::{Located, ProcessReference};
use super::replay::{Age, Replay, Reports};
use super::{lost_process, timestamps};

/// Long-poll time, so that following an idle process costs no requests.
const WAIT_MS: u64 = 30_000;
/// Size of one read.
const PAGE_BYTES: u64 = 1024 * 1024;

/// Arguments of `logs`.
#[derive(Debug, clap::Args)]
pub struct LogsArguments {
    /// Follow new output until the process exits.
    #[arg(short, long)]
    follow: bool,
    /// Show only the last N lines.
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<usize>,
    /// Show only lines that match this regular expression. The server searches everything that it keeps.
    #[arg(short, long, value_name = "PATTERN", conflicts_with_all = ["follow", "tail"])]
    grep: Option<String>,
    /// Show only output since this time: 10m or 2h ago, 2026-01-31T12:00:00Z, or Unix seconds.
    #[arg(long, value_name = "TIME", value_parser = timestamps::moment)]
    since: Option<u64>,
    /// Prefix each line with its time.
    #[arg(short, long)]
    timestamps: bool,
    #[command(flatten)]
    process: ProcessReference,
}

impl LogsArguments {
    /// The process argument, for shell completion.
    pub fn reference(&self) -> &ProcessReference {
        &self.process
    }
}

/// Prints the output.
pub async fn run(arguments: LogsArguments) -> Result<u8, Failure> {
    let (client, located) = arguments.process.find().await?;
    let needs_times = arguments.timestamps || arguments.since.is_some();
    let can = client.session().connection().await?.capabilities();
    if needs_times && !can.process_output_times {
        return Err(ExecServerError::Unsupported("times of output (--since, --timestamps)").into());
    }
    let mut printer = Printer::new(arguments.timestamps);
    if let Some(pattern) = &arguments.grep {
        if !can.process_output_spool {
            return Err(ExecServerError::Unsupported("searches in output (--grep)").into());
        }
        return search(&client, &located, pattern, &arguments, printer).await;
    }
    let mut said = VecDeque::new();
    let mut after = match arguments.tail {
        // The server finds the lines in all that it keeps, so that the rest is not sent.
        Some(lines) if can.process_output_spool => {
            first_of_tail(&client, &located, lines).await?.saturating_sub(1)
        }
        _ => 0,
    };
    let until = located.process.next_seq;
    loop {
        let is_old = after + 1 < until;
        if !is_old && !arguments.follow {
            break;
        }
        let wait_ms = if is_old { 0 } else { WAIT_MS };
        let mut read = match read(&client, &located, after, wait_ms, needs_times).await {
            // A read has no side effects, so it is repeated.
            Err(failure) if failure.is_link() => continue,
            Err(failure) => return Err(lost_process::explain(&client, failure).await),
            Ok(read) => read,
        };
        if let Some(gap) = read.gap {
            eprintln!("exec-server: the first {} bytes are no longer kept", gap.evicted_bytes);
        }
        let next = read.next_seq.saturating_sub(1);
        if is_old && next <= after && !read.closed {
            let text = "the server has more output, but does not give it".to_owned();
            return Err(ExecServerError::Protocol(text).into());
        }
        after = next.max(after);
        let is_over = read.closed && read.chunks.is_empty();
        if let Some(since) = arguments.since {
            read.chunks.retain(|chunk| chunk.at_ms.is_none_or(|at| at >= since));
        }
        match arguments.tail {
            Some(lines) if is_old => {
                said.extend(read.chunks);
                keep_lines(&mut said, lines);
            }
            _ => {
                if !printer.print(said.drain(..).chain(read.chunks))? {
                    return Ok(0);
                }
            }
        }
        if is_over {
            break;
        }
    }
    printer.print(said)?;
    Ok(0)
}

/// Prints the lines that match, page by page.
async fn search(
    client: &RemoteExecServerClient,
    located: &Located,
    pattern: &str,
    arguments: &LogsArguments,
    mut printer: Printer,
) -> Result<u8, Failure> {
    let mut offset = 0;
    loop {
        let view = OutputView::Search(OutputSearch {
            pattern: pattern.to_owned(),
            literal: false,
            case: CaseMode::Sensitive,
            offset,
        });
        let needs_times = arguments.timestamps || arguments.since.is_some();
        let mut read = read_view(client, located, view, needs_times).await?;
        if let Some(since) = arguments.since {
            read.chunks.retain(|chunk| chunk.at_ms.is_none_or(|at| at >= since));
        }
        if !printer.print(read.chunks)? {
            return Ok(0);
        }
        let extent = read.extent.ok_or_else(|| {
            ExecServerError::Protocol("the server does not say where a search ends".to_owned())
        })?;
        if extent.next_offset <= offset || extent.next_offset >= extent.end_offset {
            return Ok(0);
        }
        offset = extent.next_offset;
    }
}

/// The number of the event in which the last lines begin.
async fn first_of_tail(
    client: &RemoteExecServerClient,
    located: &Located,
    lines: usize,
) -> Result<u64, Failure> {
    let view = OutputView::TailLines(lines as u64);
    let read = read_view(client, located, view, false).await?;
    Ok(read.chunks.first().map_or(located.process.next_seq, |first| first.seq))
}

async fn read_view(
    client: &RemoteExecServerClient,
    located: &Located,
    view: OutputView,
    timestamps: bool,
) -> Result<ProcessReadResponse, Failure> {
    let params = ProcessReadParams {
        process_id: located.process.process_id.clone(),
        after_seq: None,
        max_bytes: Some(PAGE_BYTES),
        wait_ms: None,
        session_id: Some(located.session.session_id.clone()),
        timestamps,
        until: None,
        view: Some(view),
    };
    loop {
        match client.call(Method::ProcessRead.name(), &params).await.map_err(Failure::from) {
            // A read has no side effects, so it is repeated.
            Err(failure) if failure.is_link() => {}
            Err(failure) => return Err(lost_process::explain(client, failure).await),
            Ok(read) => return Ok(read),
        }
    }
}

async fn read(
    client: &RemoteExecServerClient,
    located: &Located,
    after: u64,
    wait_ms: u64,
    timestamps: bool,
) -> Result<ProcessReadResponse, Failure> {
    let params = ProcessReadParams {
        process_id: located.process.process_id.clone(),
        after_seq: Some(after),
        max_bytes: Some(PAGE_BYTES),
        wait_ms: Some(wait_ms),
        session_id: Some(located.session.session_id.clone()),
        timestamps,
        until: None,
        view: None,
    };
    Ok(client.call(Method::ProcessRead.name(), &params).await?)
}

/// Writes output to the stream that it came from.
struct Printer {
    has_times: bool,
    /// Whether the output so far ends within a line.
    is_in_line: bool,
    is_in_error_line: bool,
    /// Removes terminal queries, whose answers would become input of the local shell.
    replay: Replay,
}

impl Printer {
    fn new(has_times: bool) -> Self {
        Self {
            has_times,
            is_in_line: false,
            is_in_error_line: false,
            replay: Replay::new(Reports::Unwanted),
        }
    }

    /// Writes each chunk to its stream; returns false once stdout is closed.
    fn print(&mut self, chunks: impl IntoIterator<Item = OutputChunk>) -> Result<bool, Failure> {
        let mut stdout = io::stdout().lock();
        for chunk in chunks {
            let stream = match chunk.stream {
                OutputStream::Stderr => Stream::Err,
                OutputStream::Stdout | OutputStream::Pty => Stream::Out,
            };
            let bytes = self.replay.show(Age::Replayed, stream, chunk.chunk.0.into());
            let bytes = self.stamped(chunk.at_ms, stream, bytes);
            let written = match stream {
                Stream::Err => io::stderr().write_all(&bytes),
                Stream::Out => stdout.write_all(&bytes),
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
                other => {
                    other.map_err(|source| Failure::local("could not write the output", source))?
                }
            }
        }
        match stdout.flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            other => other
                .map(|()| true)
                .map_err(|source| Failure::local("could not write the output", source)),
        }
    }

    /// Prefixes each line that starts in these bytes with its time.
    fn stamped(&mut self, at_ms: Option<u64>, stream: Stream, bytes: Bytes) -> Bytes {
        let Some(at) = at_ms.filter(|_| self.has_times) else { return bytes };
        let is_in_line = match stream {
            Stream::Err => &mut self.is_in_error_line,
            Stream::Out => &mut self.is_in_line,
        };
        let stamp = timestamps::rfc3339(at) + " ";
        let mut stamped = Vec::with_capacity(bytes.len() + stamp.len());
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !*is_in_line {
                stamped.extend_from_slice(stamp.as_bytes());
            }
            stamped.extend_from_slice(line);
            *is_in_line = !line.ends_with(b"\n");
        }
        stamped.into()
    }
}

/// Keeps the last `lines` lines; an unfinished line counts.
fn keep_lines(said: &mut VecDeque<OutputChunk>, lines: usize) {
    let mut left = lines;
    let mut is_last_byte = true;
    for index in (0..said.len()).rev() {
        let bytes = &said[index].chunk.0;
        for place in (0..bytes.len()).rev() {
            // A line feed at the very end starts no further line.
            if bytes[place] == b'\n' && !is_last_byte {
                left = left.saturating_sub(1);
            }
            is_last_byte = false;
            if left == 0 {
                said[index].chunk.0.drain(..=place);
                said.drain(..index);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_across_pieces() {
        check(&["a\nb", "b\ncc\n"], 1, "cc\n");
        check(&["a\nb", "b\ncc\n"], 2, "bb\ncc\n");
        check(&["a\nb", "b\ncc\n"], 3, "a\nbb\ncc\n");
        check(&["a\nb", "b\ncc\n"], 9, "a\nbb\ncc\n");
        check(&["a\nb\nno end"], 1, "no end");
        check(&["a\nb\nno end"], 2, "b\nno end");
        check(&["a\n\n"], 1, "\n");
        check(&["a\n", "\n"], 0, "");
        check(&[], 5, "");
    }

    fn check(pieces: &[&str], lines: usize, kept: &str) {
        let piece = |(index, text): (usize, &&str)| OutputChunk {
            seq: index as u64 + 1,
            stream: OutputStream::Stdout,
            chunk: text.as_bytes().to_vec().into(),
            at_ms: None,
            offset: None,
        };
        let mut said: VecDeque<_> = pieces.iter().enumerate().map(piece).collect();
        keep_lines(&mut said, lines);
        let text: Vec<u8> = said.into_iter().flat_map(|chunk| chunk.chunk.0).collect();
        assert_eq!(String::from_utf8(text).unwrap(), kept, "{pieces:?} {lines}");
    }
}
