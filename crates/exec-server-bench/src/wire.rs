//! Parses server messages as far as the measurements need them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::failure::{Failure, Result};

/// A message from the server; process ids are the numbers after the client's `p`.
#[derive(Debug, PartialEq)]
pub enum Incoming<'a> {
    /// Output of a process, still in base64.
    Output { process: u64, seq: u64, chunk: &'a [u8] },
    /// A process has exited.
    Exited { process: u64, seq: u64, code: i64 },
    /// A process is closed.
    Closed { process: u64, seq: u64 },
    /// A request was answered.
    Reply { id: u64, result: &'a str },
    /// A request was rejected.
    Refusal { id: i64, error: &'a str },
    /// Any other message.
    Other,
}

/// Parses one message.
pub fn parse(text: &[u8]) -> Result<Incoming<'_>> {
    match parse_usual_output(text) {
        Some(output) => Ok(output),
        None => parse_any(text),
    }
}

/// Parses a result into the fields of a type; an error reply is a failure.
pub fn parse_result<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<(u64, T)> {
    match parse_any(text)? {
        Incoming::Reply { id, result } => Ok((id, serde_json::from_str(result)?)),
        Incoming::Refusal { id, error } => Err(refused(id, error)),
        _ => Err(Failure::new("an event instead of an answer")),
    }
}

/// Parses the reply to a file read; its content stays in base64.
pub fn parse_data(text: &[u8]) -> Result<(u64, &[u8])> {
    match parse_usual_data(text) {
        Some(data) => Ok(data),
        None => parse_result(text).map(|(id, Data { base64 })| (id, base64.as_bytes())),
    }
}

/// The failure for an error reply.
pub fn refused(id: i64, error: &str) -> Failure {
    Failure::new(format!("request {id} was refused: {error}"))
}

/// Parses output in its usual member order, without scanning its content.
fn parse_usual_output(text: &[u8]) -> Option<Incoming<'_>> {
    let rest = text.strip_prefix(br#"{"method":"process/output","params":{"processId":"p"#)?;
    let (process, rest) = take_number(rest)?;
    let (seq, rest) = take_number(rest.strip_prefix(br#"","seq":"#)?)?;
    let rest = rest.strip_prefix(br#","stream":""#)?;
    let quote = rest.iter().take(8).position(|byte| *byte == b'"')?;
    let rest = rest[quote..].strip_prefix(br#"","chunk":""#)?;
    let chunk = rest.strip_suffix(br#""}}"#)?;
    Some(Incoming::Output { process, seq, chunk })
}

/// Parses file content in the same way; the last block has another form.
fn parse_usual_data(text: &[u8]) -> Option<(u64, &[u8])> {
    let (id, rest) = take_number(text.strip_prefix(br#"{"id":"#)?)?;
    let result = rest.strip_prefix(br#","result":{"#)?;
    let data = match result.strip_prefix(br#""dataBase64":""#) {
        Some(file) => file.strip_suffix(br#""}}"#)?,
        None => result.strip_prefix(br#""chunk":""#)?.strip_suffix(br#"","eof":false}}"#)?,
    };
    Some((id, data))
}

fn take_number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
    Some((number, &text[digits..]))
}

fn parse_any(text: &[u8]) -> Result<Incoming<'_>> {
    let envelope: Envelope = serde_json::from_slice(text)?;
    let Some(method) = envelope.method else {
        return parse_answer(&envelope);
    };
    let Some(params) = envelope.params.filter(|_| method.starts_with("process/")) else {
        return Ok(Incoming::Other);
    };
    let params: EventParams = serde_json::from_str(params.get())?;
    let process = params
        .process_id
        .strip_prefix('p')
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| Failure::new("an event of an unknown process"))?;
    let seq = params.seq;
    Ok(match (method, params.chunk, params.exit_code) {
        ("process/output", Some(chunk), _) => {
            Incoming::Output { process, seq, chunk: chunk.as_bytes() }
        }
        ("process/exited", _, Some(code)) => Incoming::Exited { process, seq, code },
        ("process/closed", _, _) => Incoming::Closed { process, seq },
        _ => Incoming::Other,
    })
}

fn parse_answer<'a>(envelope: &Envelope<'a>) -> Result<Incoming<'a>> {
    let id = envelope.id.ok_or_else(|| Failure::new("a message with neither method nor id"))?;
    match (envelope.result, envelope.error, u64::try_from(id)) {
        (Some(result), _, Ok(id)) => Ok(Incoming::Reply { id, result: result.get() }),
        (_, Some(error), _) => Ok(Incoming::Refusal { id, error: error.get() }),
        _ => Err(Failure::new("an answer with neither result nor error")),
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    id: Option<i64>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventParams<'a> {
    process_id: &'a str,
    seq: u64,
    chunk: Option<&'a str>,
    exit_code: Option<i64>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(rename = "dataBase64", alias = "chunk")]
    base64: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_in_any_member_order() {
        let usual = br#"{"method":"process/output","params":{"processId":"p7","seq":12,"stream":"stdout","chunk":"QUJD"}}"#;
        let other = br#"{"params":{"chunk":"QUJD","stream":"stdout","seq":12,"processId":"p7"},"method":"process/output"}"#;
        let expected = Incoming::Output { process: 7, seq: 12, chunk: b"QUJD" };
        assert!(parse_usual_output(usual).is_some());
        assert!(parse_usual_output(other).is_none());
        assert_eq!(parse(usual).unwrap(), expected);
        assert_eq!(parse(other).unwrap(), expected);
    }

    #[test]
    fn answers_and_refusals_are_distinguished() {
        let reply = br#"{"id":3,"result":{"status":"ready"}}"#;
        assert_eq!(
            parse(reply).unwrap(),
            Incoming::Reply { id: 3, result: r#"{"status":"ready"}"# }
        );
        let refusal = br#"{"error":{"code":-32600,"message":"no"},"id":-1}"#;
        let error = r#"{"code":-32600,"message":"no"}"#;
        assert_eq!(parse(refusal).unwrap(), Incoming::Refusal { id: -1, error });
        assert!(parse_data(refusal).is_err());
    }

    #[test]
    fn bytes_of_a_file_are_read_in_any_member_order() {
        let usual = [
            br#"{"id":7,"result":{"dataBase64":"QUJD"}}"#.as_slice(),
            br#"{"id":7,"result":{"chunk":"QUJD","eof":false}}"#,
        ];
        let other = [
            br#"{"result":{"dataBase64":"QUJD"},"id":7}"#.as_slice(),
            br#"{"id":7,"result":{"eof":false,"chunk":"QUJD"}}"#,
            br#"{"id":7,"result":{"chunk":"QUJD","eof":true}}"#,
        ];
        assert!(usual.iter().all(|text| parse_usual_data(text).is_some()));
        assert!(other.iter().all(|text| parse_usual_data(text).is_none()));
        for text in usual.iter().chain(&other) {
            assert_eq!(parse_data(text).unwrap(), (7, b"QUJD".as_slice()));
        }
    }
}
