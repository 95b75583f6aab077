//! `fs/batch`: many small lookups in one round trip.

use exec_server_os::files::{FsRequest, answer_from_cache, perform};
use exec_server_protocol::limits::MAX_MESSAGE_BYTES;

use exec_server_transport::text::MessageText;
use tokio::runtime::Handle;

use super::{Guard, PathCall, answer};
use crate::errors::RequestError;
use crate::reply::Reply;

/// One lookup, or why it cannot be one.
pub type BatchItem = Result<PathCall, RequestError>;

/// One lookup that is about to be made, and who guards it.
type Lookup = Result<(FsRequest, bool, Option<Guard>), RequestError>;

/// Answers all of them, in their order; may wait for a disk or a network.
pub fn run(items: Vec<Lookup>, event_loop: &Handle, reply: Reply) {
    let mut text = reply.begin_text(items.len() * 128);
    text.push("{\"results\":[");
    for (place, item) in items.into_iter().enumerate() {
        if place > 0 {
            text.push(",");
        }
        let begun = text.len();
        text.push("{\"result\":");
        if let Err(error) = item.and_then(|item| look_up(item, event_loop, &mut text)) {
            text.truncate(begun);
            text.push("{\"error\":");
            text.push_json(&error.to_rpc());
        }
        text.push("}");
    }
    text.push("]}");
    reply.ok_text(text);
}

fn look_up(
    (request, detailed, guard): (FsRequest, bool, Option<Guard>),
    event_loop: &Handle,
    text: &mut MessageText,
) -> Result<(), RequestError> {
    let result = match guard {
        Some(guard) => event_loop.block_on(guard.perform(request))?,
        None => match answer_from_cache(&request) {
            Some(result) => result?,
            None => perform(request)?,
        },
    };
    let begun = text.len();
    answer::write(&result, detailed, text)?;
    if text.len() > MAX_MESSAGE_BYTES / 2 && text.len() - begun > SMALL_BYTES {
        return Err(RequestError::ReplyTooLarge(text.len()));
    }
    Ok(())
}

/// Once half of the message is used up only results of this size are added, so that all lookups get an answer.
const SMALL_BYTES: usize = MAX_MESSAGE_BYTES / 4 / exec_server_protocol::limits::MAX_BATCH_REQUESTS;
