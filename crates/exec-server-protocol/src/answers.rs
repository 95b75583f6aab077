//! Reply types for clients: members that older servers omit are optional.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use std::borrow::Cow;

use serde::Deserialize;

use crate::environment::EnvironmentInfo;
use crate::process::{ExitDetails, OutputStream, ProcessId, SandboxReport};
use crate::{base64, json};

/// The answer to `initialize`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeAnswer {
    /// The session that the connection is now attached to.
    pub session_id: String,
    /// Facts about the machine; older servers omit them, and the client sends `environment/info`.
    #[serde(default)]
    pub environment_info: Option<EnvironmentInfo>,
    /// How long the session is kept after a lost connection, if the server reports it.
    #[serde(default)]
    pub session_linger_ms: Option<u64>,
}

/// The answer to `process/start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStartAnswer {
    /// The sandbox of the process, such as `none` or `linuxSeccomp`, if the server reports it.
    #[serde(default)]
    pub sandbox_type: Option<String>,
    /// Omitted by older servers.
    #[serde(default)]
    pub sandbox: Option<SandboxReport>,
    /// The operating system's id of the root process, if the server says so.
    #[serde(default)]
    pub pid: Option<u32>,
}

impl ProcessStartAnswer {
    /// Whether the server reported that the process has no sandbox.
    pub fn is_unconfined(&self) -> bool {
        self.sandbox_type.as_deref() == Some("none")
    }
}

/// The params of `process/exited`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessExitedEvent {
    pub process_id: ProcessId,
    /// Sequence number among the events of this process.
    pub seq: u64,
    /// 0 to 255, or 128 plus the signal's number.
    pub exit_code: i32,
    /// Whether a sandbox denial made the process fail; older servers omit it.
    #[serde(default)]
    pub sandbox_denied: Option<bool>,
    /// Signal, reason, duration and resource usage.
    #[serde(flatten)]
    pub details: ExitDetails,
}

/// The params of `process/output`; only the output bytes are copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOutputEvent<'a> {
    pub process_id: Cow<'a, str>,
    /// Sequence number among the events of this process.
    pub seq: u64,
    pub stream: OutputStream,
    pub chunk: Vec<u8>,
}

impl<'a> ProcessOutputEvent<'a> {
    /// Decodes raw params; the error is one sentence for the client.
    pub fn decode(raw: &'a str) -> Result<Self, String> {
        let (mut process_id, mut seq, mut stream, mut chunk) = (None, None, None, None);
        json::scan_object(raw, |key, value| match key {
            "processId" => process_id = json::string_value(value),
            "seq" => seq = value.parse().ok(),
            "stream" => stream = stream_of(value),
            "chunk" => chunk = json::string_value(value),
            _ => {}
        })
        .map_err(|error| error.to_string())?;
        let wrong = |member: &str| format!("missing or invalid `{member}` in process/output");
        let chunk = chunk.ok_or_else(|| wrong("chunk"))?;
        Ok(Self {
            process_id: process_id.ok_or_else(|| wrong("processId"))?,
            seq: seq.ok_or_else(|| wrong("seq"))?,
            stream: stream.ok_or_else(|| wrong("stream"))?,
            chunk: base64::decode(&chunk).map_err(|error| error.to_string())?,
        })
    }
}

fn stream_of(literal: &str) -> Option<OutputStream> {
    match json::string_value(literal)?.as_ref() {
        "stdout" => Some(OutputStream::Stdout),
        "stderr" => Some(OutputStream::Stderr),
        "pty" => Some(OutputStream::Pty),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::OutputEncoder;
    use crate::envelope::{Incoming, decode};

    #[test]
    fn hand_written_encodings_are_decoded() {
        for id in ["p", "a\"b\\\u{1}", ""] {
            let text = OutputEncoder::new(id).output(7, OutputStream::Pty, b"bytes");
            let Ok(Incoming::Notification { params, .. }) = decode(&text) else {
                panic!("a notification");
            };
            let event = ProcessOutputEvent::decode(params).unwrap();
            assert_eq!((event.process_id.as_ref(), event.seq), (id, 7));
            assert_eq!((event.stream, event.chunk.as_slice()), (OutputStream::Pty, &b"bytes"[..]));
        }
        let error = ProcessOutputEvent::decode(r#"{"processId":"p","seq":-1}"#).unwrap_err();
        assert_eq!(error, "missing or invalid `chunk` in process/output");
    }

    #[test]
    fn an_old_server_may_leave_things_out() {
        let answer: InitializeAnswer = serde_json::from_str(r#"{"sessionId":"s"}"#).unwrap();
        assert_eq!(answer.environment_info, None);
        let answer: ProcessStartAnswer = serde_json::from_str(r#"{"processId":"p"}"#).unwrap();
        assert!(!answer.is_unconfined());
        let exited: ProcessExitedEvent =
            serde_json::from_str(r#"{"processId":"p","seq":1,"exitCode":0}"#).unwrap();
        assert_eq!(exited.sandbox_denied, None);
    }
}
