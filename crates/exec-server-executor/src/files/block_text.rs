//! The reply to `fs/readBlock` while it is written: JSON, or a binary message for a client that takes them.

use exec_server_fs::{Blocking, OpenFile};
use exec_server_protocol::base64;
use exec_server_transport::text::MessageText;

use super::answer;
use crate::errors::RequestError;
use crate::reply::Reply;

/// What a reply has besides the bytes of the block.
const AROUND_BYTES: usize = 32;
/// The result in the header of a binary reply; whether the file ends is known after the bytes.
const HEADER: &str = "{\"chunk\":\"\",\"eof\":false}";
/// Where `false` begins, counted from the end of the header, which closes the envelope.
const EOF_FROM_END: usize = "false}}".len();

/// The text of a reply that has begun.
pub struct BlockText {
    text: MessageText,
    /// Length without any content.
    begun: usize,
    is_binary: bool,
}

impl BlockText {
    /// The memory to reserve for a block of `len` bytes.
    pub fn room(reply: &Reply, len: usize) -> usize {
        let content = if reply.takes_binary() { len } else { base64::encoded_len(len) };
        content + AROUND_BYTES
    }

    /// Begins the reply in a room of this size.
    pub fn begin(reply: &Reply, room: usize) -> Result<Self, RequestError> {
        let is_binary = reply.takes_binary();
        let text = match is_binary {
            true => reply.begin_binary(room, HEADER)?,
            false => reply.begin_text(room)?,
        };
        Ok(Self { begun: text.len(), text, is_binary })
    }

    /// Writes the block; after an error it may be written again.
    pub fn write(
        &mut self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        blocking: Blocking,
    ) -> Result<(), RequestError> {
        self.text.truncate(self.begun);
        if !self.is_binary {
            return answer::write_block(file, offset, len, blocking, &mut self.text);
        }
        if answer::write_bytes(file, offset, len, blocking, &mut self.text)? {
            self.text.overwrite(self.begun - EOF_FROM_END, "true ");
        }
        Ok(())
    }

    /// Sends the reply.
    pub fn send(self, reply: Reply) {
        match self.is_binary {
            true => reply.ok_binary(self.text),
            false => reply.ok_text(self.text),
        }
    }
}
