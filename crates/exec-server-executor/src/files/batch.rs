//! `fs/batch`: many small lookups in one round trip.

use exec_server_fs::{Blocking, FsReply, FsRequest, answer_from_cache, perform};
use exec_server_protocol::errors::RpcError;
use exec_server_protocol::limits::MAX_MESSAGE_BYTES;

use exec_server_transport::text::MessageText;
use tokio::runtime::Handle;

use super::answer::Appended;
use super::{Guard, PathCall, answer};
use crate::errors::RequestError;
use crate::reply::Reply;

/// A decoded lookup, or why its params are invalid.
pub type BatchItem = Result<PathCall, RequestError>;

/// A lookup with its `detailed` flag and its guard, if it is sandboxed.
type Lookup = Result<(FsRequest, bool, Option<Guard>), RequestError>;

/// Memory reserved before the first result is known.
const FIRST_ROOM: usize = 256 * 1024;

/// Sends all results in the order of the requests, once there is memory for them.
pub fn run(items: Vec<Lookup>, reply: Reply) {
    run_with_room(items, FIRST_ROOM, reply);
}

fn run_with_room(items: Vec<Lookup>, room: usize, mut reply: Reply) {
    if !reply.try_reserve(room) {
        return reply.when_reserved(room, move |reply| run_with_room(items, room, reply));
    }
    let event_loop = Handle::current();
    tokio::task::spawn_blocking(move || match perform_all(&items, &event_loop, &mut reply) {
        Ok(Some(text)) => reply.ok_text(text),
        // Started over with more memory: batches that wait while they hold memory could deadlock.
        Ok(None) => {
            let more = (reply.room() * 4).min(MAX_MESSAGE_BYTES);
            reply.when_reserved(more, move |reply| run_with_room(items, more, reply));
        }
        Err(error) => reply.fail(&error),
    });
}

/// Writes all results; `None` if there is not enough memory now. May block on a disk or a network.
fn perform_all(
    items: &[Lookup],
    event_loop: &Handle,
    reply: &mut Reply,
) -> Result<Option<MessageText>, RequestError> {
    let mut text = reply.begin_text(items.len() * 128)?;
    text.push("{\"results\":[");
    for (place, item) in items.iter().enumerate() {
        if place > 0 {
            text.push(",");
        }
        let begun = text.len();
        text.push("{\"result\":");
        let answered = match item {
            Ok(item) => look_up(item, event_loop, reply, &mut text),
            Err(error) => Ok(Answered::Failed(error.to_rpc())),
        };
        match answered.unwrap_or_else(|error| Answered::Failed(error.to_rpc())) {
            Answered::Whole => {}
            Answered::NoRoom => return Ok(None),
            Answered::Failed(error) => {
                text.truncate(begun);
                text.push("{\"error\":");
                text.push_json(&error);
            }
        }
        text.push("}");
    }
    text.push("]}");
    Ok(Some(text))
}

/// The outcome of one lookup.
enum Answered {
    Whole,
    /// There is not enough memory for the result now.
    NoRoom,
    Failed(RpcError),
}

fn look_up(
    (request, detailed, guard): &(FsRequest, bool, Option<Guard>),
    event_loop: &Handle,
    reply: &mut Reply,
    text: &mut MessageText,
) -> Result<Answered, RequestError> {
    let result = match guard {
        Some(guard) => event_loop.block_on(guard.perform(request.clone()))?,
        None => match answer_from_cache(request) {
            Some(result) => result?,
            None => perform(request.clone())?,
        },
    };
    let begun = text.len();
    // A text buffer may double when it grows.
    let has_room = |reply: &mut Reply, len: usize| {
        let is_used_up = reply.room() >= MAX_MESSAGE_BYTES;
        is_used_up || reply.try_reserve((len * 2).min(MAX_MESSAGE_BYTES))
    };
    if let FsReply::Opened(file) = &result {
        if !has_room(reply, begun + answer::size_of(file)) {
            return Ok(Answered::NoRoom);
        }
        let rest = reply.room().saturating_sub(begun);
        let appended = answer::write_content(file, *detailed, Blocking::Disk, rest, text)?;
        if appended != Appended::Whole {
            return Ok(Answered::NoRoom);
        }
    } else {
        answer::write(&result, text);
        if !has_room(reply, text.len()) {
            return Ok(Answered::NoRoom);
        }
    }
    if text.len() > MAX_MESSAGE_BYTES / 2 && text.len() - begun > SMALL_BYTES {
        return Err(RequestError::ReplyTooLarge(text.len()));
    }
    Ok(Answered::Whole)
}

/// Once half of the message is used, only results up to this size are added, so that every lookup gets a result.
const SMALL_BYTES: usize = MAX_MESSAGE_BYTES / 4 / exec_server_protocol::limits::MAX_BATCH_REQUESTS;
