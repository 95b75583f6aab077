//! Messages between the nodes of a cluster, as protobuf on NATS.
//!
//! | subject | message |
//! |---|---|
//! | `xs.v1.CLUSTER.heartbeat` | [`Heartbeat`] |
//! | `xs.v1.CLUSTER.node.NODE.EPOCH.ctl` | [`Control`], answered by a [`Reply`] |
//! | `xs.v1.CLUSTER.node.NODE.EPOCH.frames.LANE` | [`Batch`] |
//! | `xs.v1.CLUSTER.all` | [`Signal`] |
//!
//! A field is never changed, only added; receivers ignore fields and kinds that they do not know.

use bytes::Bytes;

use crate::store::ClaimId;

/// Says that a node is alive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Heartbeat {
    /// Node id.
    #[prost(string, tag = "1")]
    pub node: String,
    /// Its epoch; 0 in the message by which a starting node checks the connection.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Base URL of the node.
    #[prost(string, tag = "3")]
    pub url: String,
    /// Whether the node is shutting down.
    #[prost(bool, tag = "4")]
    pub is_leaving: bool,
    /// Time until the next heartbeat.
    #[prost(uint32, tag = "5")]
    pub interval_ms: u32,
    /// Attached executors.
    #[prost(uint64, tag = "6")]
    pub executors: u64,
    /// Attached harnesses.
    #[prost(uint64, tag = "7")]
    pub streams: u64,
    /// Version of the program.
    #[prost(string, tag = "8")]
    pub version: String,
    /// Identifies the database, so that two clusters with one name are told apart.
    #[prost(string, tag = "9")]
    pub database: String,
    /// Whether the sender reaches the database, and so attaches executors and opens streams.
    #[prost(bool, tag = "10")]
    pub has_lease: bool,
}

/// A request to one node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Control {
    /// What is asked; none for a kind that this version does not know.
    #[prost(oneof = "control::Kind", tags = "1, 2, 3, 4")]
    pub kind: Option<control::Kind>,
}

/// The kinds of requests.
pub mod control {
    /// What is asked.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// An executor of the asked node is attached to another one now; not answered.
        #[prost(message, tag = "1")]
        Superseded(super::Superseded),
        /// Attach a harness of the asking node.
        #[prost(message, tag = "2")]
        Open(super::Open),
        /// Number of harnesses of these environments.
        #[prost(message, tag = "3")]
        Streams(super::Streams),
        /// The asking node holds the asked epoch for dead; not answered.
        #[prost(message, tag = "4")]
        Disowned(super::Disowned),
    }
}

/// Says that an epoch is dead for the sender, although it heartbeats; the node must take a new one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Disowned {}

/// A claim that was replaced.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Superseded {
    /// Environment id.
    #[prost(string, tag = "1")]
    pub environment: String,
    /// The claim of the asked node.
    #[prost(message, optional, tag = "2")]
    pub claim: Option<Claim>,
}

/// A fencing token.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Claim {
    /// Generation of the registration.
    #[prost(uint64, tag = "1")]
    pub generation: u64,
    /// Orders the sockets of one registration.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
}

/// Opens a trunk link for a harness.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Open {
    /// The asking node.
    #[prost(string, tag = "1")]
    pub node: String,
    /// Its epoch.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Number of the link, unique in that epoch.
    #[prost(uint64, tag = "3")]
    pub link: u64,
    /// Bytes that the asked node may send at first.
    #[prost(uint64, tag = "4")]
    pub credit: u64,
    /// The claim that the harness wants.
    #[prost(message, optional, tag = "5")]
    pub claim: Option<Claim>,
    /// Environment id.
    #[prost(string, tag = "6")]
    pub environment: String,
    /// Registration id of the harness's URL.
    #[prost(string, tag = "7")]
    pub registration: String,
    /// Token id of the harness.
    #[prost(string, tag = "8")]
    pub token: String,
    /// Stream limit of the token.
    #[prost(uint64, optional, tag = "9")]
    pub max_streams: Option<u64>,
}

/// Asks for the harnesses of environments.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Streams {
    /// Environment ids.
    #[prost(string, repeated, tag = "1")]
    pub environments: Vec<String>,
}

/// The answer to a [`Control`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Reply {
    /// The answer; none for a kind that this version does not know.
    #[prost(oneof = "reply::Kind", tags = "1, 2, 3")]
    pub kind: Option<reply::Kind>,
}

/// The kinds of answers.
pub mod reply {
    /// The answer.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Kind {
        /// The link is open; the number of bytes that may be sent at first.
        #[prost(uint64, tag = "1")]
        Opened(u64),
        /// Why the link is not opened.
        #[prost(enumeration = "super::Refused", tag = "2")]
        Refused(i32),
        /// Harnesses by environment.
        #[prost(message, tag = "3")]
        Streams(super::StreamCounts),
    }
}

/// Why a link is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Refused {
    /// For a reason that this version does not know.
    Unknown = 0,
    /// The asked node has another claim, or none.
    Stale = 1,
    /// The environment has too many streams.
    Full = 2,
    /// The token has too many streams.
    TokenFull = 3,
    /// The asked node does not serve trunks at the moment.
    Unavailable = 4,
}

/// Harnesses by environment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamCounts {
    /// One count per environment that is attached there.
    #[prost(message, repeated, tag = "1")]
    pub counts: Vec<StreamCount>,
}

/// The harnesses of an environment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamCount {
    /// Environment id.
    #[prost(string, tag = "1")]
    pub environment: String,
    /// Attached harnesses.
    #[prost(uint64, tag = "2")]
    pub streams: u64,
    /// Whether further harnesses are refused.
    #[prost(bool, tag = "3")]
    pub is_full: bool,
}

/// A message to all nodes; each has a slower repair through the database.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Signal {
    /// The sender.
    #[prost(string, tag = "1")]
    pub node: String,
    /// Ids of tokens that were revoked.
    #[prost(string, repeated, tag = "2")]
    pub revoked_tokens: Vec<String>,
}

/// Trunk messages from one node to another, in order.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Batch {
    /// The sender.
    #[prost(string, tag = "1")]
    pub node: String,
    /// Its epoch.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The messages.
    #[prost(message, repeated, tag = "3")]
    pub items: Vec<Item>,
}

/// One trunk message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Item {
    /// What the other fields mean.
    #[prost(enumeration = "ItemKind", tag = "1")]
    pub kind: i32,
    /// Number of the link.
    #[prost(uint64, tag = "2")]
    pub link: u64,
    /// Whether the sender of this message has opened the link.
    #[prost(bool, tag = "3")]
    pub is_opener: bool,
    /// Frames that the sender had sent before this message; in a credit, frames that it has received.
    #[prost(uint64, tag = "4")]
    pub sequence: u64,
    /// In a credit: bytes that the receiver may send in total since the link was opened.
    #[prost(uint64, tag = "5")]
    pub credit: u64,
    /// In a data message: the frame.
    #[prost(bytes = "bytes", tag = "6")]
    pub frame: Bytes,
    /// In a close message: why.
    #[prost(string, tag = "7")]
    pub reason: String,
}

/// The kinds of trunk messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ItemKind {
    /// A kind that this version does not know.
    Unknown = 0,
    /// A frame.
    Data = 1,
    /// More may be sent.
    Credit = 2,
    /// The link has ended.
    Close = 3,
    /// The sender is there; answered by a credit.
    Mark = 4,
}

impl From<ClaimId> for Claim {
    fn from(claim: ClaimId) -> Self {
        Self { generation: claim.generation, sequence: claim.sequence }
    }
}

impl From<Claim> for ClaimId {
    fn from(claim: Claim) -> Self {
        Self { generation: claim.generation, sequence: claim.sequence }
    }
}
