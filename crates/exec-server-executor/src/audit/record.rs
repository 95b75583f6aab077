//! The content of audit records: one JSON object per line.

use std::time::SystemTime;

use exec_server_protocol::hex;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::auth::{Origin, Principal};

/// The client that a record is about.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    pub connection: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    pub principal: PrincipalName,
    /// The address of the peer.
    pub peer: String,
    /// The user of the peer process, if it is on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
}

/// A principal without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum PrincipalName {
    /// No authentication.
    Anyone,
    /// The bearer of a token: the first digits of its SHA-256.
    Token { sha256: String },
    /// The subject of a JWT.
    Subject {
        #[serde(skip_serializing_if = "Option::is_none")]
        issuer: Option<String>,
        subject: String,
    },
    /// A harness on a relay, by the fingerprint of its key.
    Harness { fingerprint: String },
    /// A harness behind a forwarder.
    Forwarded { by: Box<PrincipalName>, harness: String },
}

/// Enough to tell tokens apart, and too few to test guesses of a token offline with certainty.
const TOKEN_DIGITS: usize = 12;

impl From<&Principal> for PrincipalName {
    fn from(principal: &Principal) -> Self {
        match principal {
            Principal::Anyone => Self::Anyone,
            Principal::Token(digest) => {
                let mut sha256 = hex::encode(digest);
                sha256.truncate(TOKEN_DIGITS);
                Self::Token { sha256 }
            }
            Principal::Subject { issuer, subject } => {
                Self::Subject { issuer: issuer.clone(), subject: subject.clone() }
            }
            Principal::Harness(fingerprint) => Self::Harness { fingerprint: fingerprint.clone() },
            Principal::Forwarded { by, harness } => {
                Self::Forwarded { by: Box::new(Self::from(by.as_ref())), harness: harness.clone() }
            }
        }
    }
}

impl Who {
    /// A connection without a session.
    pub fn new(connection: u64, principal: &Principal, origin: &Origin) -> Self {
        let (peer, uid) = (origin.peer.clone(), origin.uid);
        Self { connection, session: None, client: None, principal: principal.into(), peer, uid }
    }
}

#[derive(Serialize)]
struct Record<'a, D> {
    time: String,
    event: &'a str,
    #[serde(flatten)]
    who: Option<&'a Who>,
    #[serde(flatten)]
    details: D,
}

/// The line of a record, with its newline.
pub fn line(event: &str, who: Option<&Who>, details: impl Serialize) -> Vec<u8> {
    let record = Record { time: now(), event, who, details };
    let mut line = serde_json::to_vec(&record).expect("records have text keys");
    line.push(b'\n');
    line
}

/// The time as records have it, in UTC.
pub fn now() -> String {
    let now = OffsetDateTime::from(SystemTime::now());
    let millis = now.replace_nanosecond(now.nanosecond() / 1_000_000 * 1_000_000).unwrap_or(now);
    millis.format(&Rfc3339).unwrap_or_default()
}
