//! `logs`: what a process has said, and what it says next.

use std::collections::VecDeque;
use std::io::{self, Write};

use exec_server_client::RemoteExecServerClient;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    OutputChunk, OutputStream, ProcessReadParams, ProcessReadResponse,
};

use super::failure::Failure;
use super::processes::{Located, ProcessReference};

/// A long poll, so that following costs nothing while nothing is said.
const WAIT_MS: u64 = 30_000;
/// One answer at a time stays small.
const PAGE_BYTES: u64 = 1024 * 1024;

/// Which process, and how much.
#[derive(Debug, clap::Args)]
pub struct LogsArguments {
    /// Go on with what it says next, until it ends.
    #[arg(short, long)]
    follow: bool,
    /// Only the last so many lines of what it has said.
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    #[command(flatten)]
    process: ProcessReference,
}

/// Prints.
pub async fn run(arguments: LogsArguments) -> Result<u8, Failure> {
    let (client, located) = arguments.process.find().await?;
    let mut said = VecDeque::new();
    let mut after = 0;
    let until = located.process.next_seq;
    loop {
        let is_old = after + 1 < until;
        if !is_old && !arguments.follow {
            break;
        }
        let read = match read(&client, &located, after, if is_old { 0 } else { WAIT_MS }).await {
            // The read only looks, so that it can be made again.
            Err(failure) if failure.is_link() => continue,
            read => read?,
        };
        if let Some(gap) = read.gap {
            eprintln!("exec-server: the first {} bytes are no longer kept", gap.evicted_bytes);
        }
        after = read.next_seq - 1;
        let is_over = read.closed && read.chunks.is_empty();
        match arguments.tail {
            Some(lines) if is_old => {
                said.extend(read.chunks);
                keep_lines(&mut said, lines);
            }
            _ => {
                if !print(said.drain(..).chain(read.chunks))? {
                    return Ok(0);
                }
            }
        }
        if is_over {
            break;
        }
    }
    print(said)?;
    Ok(0)
}

async fn read(
    client: &RemoteExecServerClient,
    located: &Located,
    after: u64,
    wait_ms: u64,
) -> Result<ProcessReadResponse, Failure> {
    let params = ProcessReadParams {
        process_id: located.process.process_id.clone(),
        after_seq: Some(after),
        max_bytes: Some(PAGE_BYTES),
        wait_ms: Some(wait_ms),
        session_id: Some(located.session.session_id.clone()),
    };
    Ok(client.call(Method::ProcessRead.name(), &params).await?)
}

/// Writes each piece to its stream; says whether somebody still reads.
fn print(chunks: impl IntoIterator<Item = OutputChunk>) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    for chunk in chunks {
        let written = match chunk.stream {
            OutputStream::Stderr => io::stderr().write_all(&chunk.chunk.0),
            OutputStream::Stdout | OutputStream::Pty => stdout.write_all(&chunk.chunk.0),
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            other => other.map_err(|source| Failure::here("could not write the output", source))?,
        }
    }
    match stdout.flush() {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        other => other
            .map(|()| true)
            .map_err(|source| Failure::here("could not write the output", source)),
    }
}

/// Drops everything before the last `lines` lines; a line without an end counts.
fn keep_lines(said: &mut VecDeque<OutputChunk>, lines: usize) {
    let mut left = lines;
    let mut is_last_byte = true;
    for index in (0..said.len()).rev() {
        let bytes = &said[index].chunk.0;
        for place in (0..bytes.len()).rev() {
            // The end of the last line begins no other.
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
        };
        let mut said: VecDeque<_> = pieces.iter().enumerate().map(piece).collect();
        keep_lines(&mut said, lines);
        let text: Vec<u8> = said.into_iter().flat_map(|chunk| chunk.chunk.0).collect();
        assert_eq!(String::from_utf8(text).unwrap(), kept, "{pieces:?} {lines}");
    }
}
