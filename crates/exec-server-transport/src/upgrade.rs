//! Server side of the websocket handshake (RFC 6455, section 4.2).

use aws_lc_rs::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use exec_server_protocol::base64;
use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};

/// Why a request is not a websocket handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// `Connection` lacks `upgrade`.
    #[error("Connection header did not include 'upgrade'")]
    Connection,
    /// `Upgrade` lacks `websocket`.
    #[error("Upgrade header did not include 'websocket'")]
    Upgrade,
    /// Unsupported websocket version.
    #[error("Sec-WebSocket-Version header must be '13'")]
    Version,
    /// No key for the accept header.
    #[error("Sec-WebSocket-Key header is missing")]
    Key,
}

/// Checks the request headers and returns the headers of the 101 response.
pub fn accept(request: &HeaderMap) -> Result<HeaderMap, UpgradeError> {
    if !has_token(request, CONNECTION, "upgrade") {
        return Err(UpgradeError::Connection);
    }
    if !has_token(request, UPGRADE, "websocket") {
        return Err(UpgradeError::Upgrade);
    }
    if request.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err(UpgradeError::Version);
    }
    let key = request.get(SEC_WEBSOCKET_KEY).ok_or(UpgradeError::Key)?;
    let mut headers = HeaderMap::with_capacity(3);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept_key(key.as_bytes()));
    Ok(headers)
}

fn has_token(headers: &HeaderMap, header: HeaderName, token: &str) -> bool {
    headers
        .get_all(header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|value| value.trim().eq_ignore_ascii_case(token))
}

/// Computes `Sec-WebSocket-Accept` from the client's key.
fn accept_key(key: &[u8]) -> HeaderValue {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let text = base64::encode(context.finish().as_ref());
    HeaderValue::try_from(text).expect("base64 is a valid header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_key_matches_the_example_of_the_rfc() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
