//! What sockets and requests ask about everybody who is attached, wherever that is.
//!
//! One node answers from its own memory ([`LocalBus`]). Several nodes would need another implementation, and nothing
//! else: no caller knows where the other end of a link is.

mod local;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use exec_server_machines::switchboard::{AttachError, FrameFate, Goodbye, Presence, Ticket};

pub use local::LocalBus;

/// An answer that may have to come from another node.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Everybody who is attached.
pub trait Bus: Send + Sync + 'static {
    /// The executor of an environment, if it is there.
    fn presence<'a>(&'a self, environment: &'a str) -> Answer<'a, Option<Presence>>;
    /// An executor comes.
    fn attach_executor(
        &self,
        ticket: Ticket,
        generation: u64,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>>;
    /// A harness comes.
    fn attach_harness(
        &self,
        ticket: Ticket,
        max_streams: Option<usize>,
    ) -> Answer<'_, Result<Box<dyn Link>, AttachError>>;
    /// A newer registration exists.
    fn supersede<'a>(&'a self, environment: &'a str, generation: u64) -> Answer<'a, ()>;
    /// Tokens are not good any more: whoever came with one hears why, and goes.
    fn end_tokens<'a>(&'a self, ended: &'a BTreeMap<String, Goodbye>) -> Answer<'a, ()>;
    /// This node stops: everybody who is attached here goes.
    fn drain(&self);
    /// How many executors and harnesses are attached here.
    fn counts(&self) -> (usize, usize);
}

/// A socket's place among those who are attached; dropping it gives the place up.
pub trait Link: Send + 'static {
    /// A binary message arrived.
    fn handle_frame(&self, frame: Bytes) -> FrameFate;
    /// Something arrived that has no place here.
    fn handle_misuse(&self, why: Goodbye);
    /// Time has passed.
    fn handle_timeout(&self);
    /// The stream that a harness has claimed.
    fn stream_id(&self) -> Option<String>;
    /// The next frame to write.
    fn poll_frame(&self) -> Option<Bytes>;
    /// What else there is to do; the waker is called when that changes.
    fn look(&self, waker: &Waker) -> Outlook;
}

/// What a socket's owner must know beside frames.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// Whether more may be read from the socket.
    pub is_reading: bool,
    /// Whether the socket is to be closed, once its frames are out.
    pub is_ending: bool,
    /// The last word, now that its frames are out.
    pub goodbye: Option<Goodbye>,
    /// When [`Link::handle_timeout`] wants to be called.
    pub timeout: Option<Instant>,
}
