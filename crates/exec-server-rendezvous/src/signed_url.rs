//! Signed websocket URLs: the bearer may attach in the given role until the URL expires.
//!
//! ```text
//! wss://HOST/cloud-agent/default/ws/environment/ENV
//!    ?role=environment|harness&version=1&executor_registration_id=…&expires=…&token=…[&nonce=…]&key=…&sig=…
//! ```
//!
//! The nonce makes a harness URL single-use. The signature covers every parameter.

use aws_lc_rs::hmac;
use exec_server_protocol::hex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::form_urlencoded;

use crate::clock::Seconds;

/// Path prefix before the environment id.
pub const PATH: &str = "/cloud-agent/default/ws/environment/";

const VERSION: &str = "1";

/// Percent-encoding set of a path segment.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a URL authorizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Environment id.
    pub environment: String,
    /// Registration id.
    pub registration: String,
    /// Id of the token that requested the URL.
    pub token: String,
    /// Expiry time.
    pub expires: Seconds,
    /// Role of the socket.
    pub role: SocketRole,
}

/// Role of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketRole {
    /// The executor; the URL is reusable.
    Executor,
    /// A harness; the URL is single-use.
    Harness {
        /// Makes the URL single-use.
        nonce: String,
    },
}

/// Why a URL is rejected, as the reason code that peers log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0)]
pub struct UrlError(pub &'static str);

/// Signing keys: the first one signs, all of them verify.
pub struct SigningKeys {
    keys: Vec<(String, hmac::Key)>,
}

impl SigningKeys {
    /// Creates the key set from ids and secrets; `None` if empty.
    pub fn new(keys: Vec<(String, Vec<u8>)>) -> Option<Self> {
        let keys: Vec<_> = keys
            .into_iter()
            .map(|(id, secret)| (id, hmac::Key::new(hmac::HMAC_SHA256, &secret)))
            .collect();
        (!keys.is_empty()).then_some(Self { keys })
    }

    /// Ids of the keys, the signing one first.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(id, _)| id.as_str())
    }

    /// Creates a signed URL below `base`, such as `wss://example.org`.
    pub fn sign(&self, base: &str, claims: &Claims) -> String {
        let (key_id, key) = &self.keys[0];
        let sig = hex::encode(hmac::sign(key, &claims.signed_text(key_id)).as_ref());
        let mut query = form_urlencoded::Serializer::new(String::new());
        query
            .append_pair("role", claims.role.name())
            .append_pair("version", VERSION)
            .append_pair("executor_registration_id", &claims.registration)
            .append_pair("expires", &claims.expires.to_string())
            .append_pair("token", &claims.token);
        if let SocketRole::Harness { nonce } = &claims.role {
            query.append_pair("nonce", nonce);
        }
        query.append_pair("key", key_id).append_pair("sig", &sig);
        let environment = utf8_percent_encode(&claims.environment, UNRESERVED);
        format!("{base}{PATH}{environment}?{}", query.finish())
    }

    /// Verifies a path segment and query.
    pub fn verify(&self, segment: &str, query: &str, now: Seconds) -> Result<Claims, UrlError> {
        let environment = decode_segment(segment).ok_or(UrlError("unknown_route"))?;
        let given = Given::parse(query)?;
        let role = match given.role.ok_or(UrlError("missing_role"))?.as_str() {
            "environment" if given.nonce.is_some() => return Err(UrlError("extra_query_param")),
            "environment" => SocketRole::Executor,
            "harness" => {
                let nonce = given.nonce.ok_or(UrlError("malformed_query"))?;
                SocketRole::Harness { nonce }
            }
            _ => return Err(UrlError("invalid_role")),
        };
        if given.version.ok_or(UrlError("missing_version"))? != VERSION {
            return Err(UrlError("malformed_query"));
        }
        let missing = UrlError("missing_executor_registration_id");
        let registration = given.registration.ok_or(missing)?;
        let expires = given.expires.ok_or(UrlError("missing_expiry"))?;
        let expires = expires.parse().map_err(|_| UrlError("invalid_expiry"))?;
        let token = given.token.ok_or(UrlError("malformed_query"))?;
        let sig = given.sig.ok_or(UrlError("missing_signature"))?;
        let sig = hex::decode(&sig).ok_or(UrlError("invalid_signature"))?;
        let key_id = given.key.ok_or(UrlError("malformed_query"))?;
        let key = self.keys.iter().find(|(id, _)| *id == key_id);
        let (key_id, key) = key.ok_or(UrlError("invalid_secret"))?;
        let claims = Claims { environment, registration, token, expires, role };
        hmac::verify(key, &claims.signed_text(key_id), &sig)
            .map_err(|_| UrlError("invalid_signature"))?;
        if now >= claims.expires {
            return Err(UrlError("expired"));
        }
        Ok(claims)
    }
}

/// Percent-decodes a path segment; `None` if empty or not UTF-8.
pub fn decode_segment(segment: &str) -> Option<String> {
    let text = percent_decode_str(segment).decode_utf8().ok()?;
    (!text.is_empty()).then(|| text.into_owned())
}

impl SocketRole {
    /// The role's name in the URL and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Executor => "environment",
            Self::Harness { .. } => "harness",
        }
    }

    /// Correlates a connect request with the resulting socket in logs; not secret, because the signature is needed too.
    pub fn connect_id(&self) -> Option<&str> {
        match self {
            Self::Executor => None,
            Self::Harness { nonce } => Some(nonce),
        }
    }
}

impl Claims {
    /// Each part is preceded by its length, so that distinct claims have distinct texts.
    fn signed_text(&self, key_id: &str) -> Vec<u8> {
        let nonce = match &self.role {
            SocketRole::Executor => "",
            SocketRole::Harness { nonce } => nonce,
        };
        let expires = self.expires.to_string();
        let parts = [
            "exec-server-rendezvous-url/1",
            self.role.name(),
            &self.environment,
            &self.registration,
            &self.token,
            &expires,
            nonce,
            key_id,
        ];
        let mut text = Vec::new();
        for part in parts {
            text.extend_from_slice(&(part.len() as u64).to_be_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        text
    }
}

/// Query parameters as received.
#[derive(Default)]
struct Given {
    role: Option<String>,
    version: Option<String>,
    registration: Option<String>,
    expires: Option<String>,
    token: Option<String>,
    nonce: Option<String>,
    key: Option<String>,
    sig: Option<String>,
}

impl Given {
    fn parse(query: &str) -> Result<Self, UrlError> {
        let mut given = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let place = match &*name {
                "role" => &mut given.role,
                "version" => &mut given.version,
                "executor_registration_id" => &mut given.registration,
                "expires" => &mut given.expires,
                "token" => &mut given.token,
                "nonce" => &mut given.nonce,
                "key" => &mut given.key,
                "sig" => &mut given.sig,
                _ => return Err(UrlError("extra_query_param")),
            };
            if place.replace(value.into_owned()).is_some() {
                return Err(UrlError("malformed_query"));
            }
        }
        Ok(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_url_is_accepted_until_it_expires() {
        for role in [SocketRole::Executor, SocketRole::Harness { nonce: "n1".into() }] {
            let claims = claims(role);
            let url = keys().sign("wss://example.org", &claims);
            assert!(url.starts_with("wss://example.org/cloud-agent/default/ws/environment/a%20b?"));
            assert_eq!(verify(&url, 99), Ok(claims.clone()));
            assert_eq!(verify(&url, 100), Err(UrlError("expired")));
        }
    }

    #[test]
    fn a_changed_url_is_rejected() {
        let url = keys().sign("", &claims(SocketRole::Harness { nonce: "n1".into() }));
        for (part, other, why) in [
            ("a%20b", "a%20c", "invalid_signature"),
            ("role=harness", "role=environment", "extra_query_param"),
            ("role=harness", "role=king", "invalid_role"),
            ("role=harness&", "", "missing_role"),
            ("version=1", "version=2", "malformed_query"),
            ("version=1&", "", "missing_version"),
            ("executor_registration_id=r1", "executor_registration_id=r2", "invalid_signature"),
            ("executor_registration_id=r1&", "", "missing_executor_registration_id"),
            ("expires=100", "expires=101", "invalid_signature"),
            ("expires=100", "expires=x", "invalid_expiry"),
            ("expires=100&", "", "missing_expiry"),
            ("token=t1", "token=t2", "invalid_signature"),
            ("nonce=n1", "nonce=n2", "invalid_signature"),
            ("nonce=n1&", "", "malformed_query"),
            ("key=k1", "key=k9", "invalid_secret"),
            ("sig=", "sig=0", "invalid_signature"),
            ("&sig=", "&more=1&sig=", "extra_query_param"),
            ("&sig=", "&nonce=n1&sig=", "malformed_query"),
            ("&sig=", "&key=", "malformed_query"),
        ] {
            let changed = url.replacen(part, other, 1);
            assert_ne!(changed, url, "{part}");
            assert_eq!(verify(&changed, 99), Err(UrlError(why)), "{part} -> {other}");
        }
        let unsigned = url.split("&sig=").next().unwrap();
        assert_eq!(verify(unsigned, 99), Err(UrlError("missing_signature")));
    }

    #[test]
    fn an_old_key_verifies_but_does_not_sign() {
        let old = SigningKeys::new(vec![("k1".into(), vec![1; 32])]).unwrap();
        let both =
            SigningKeys::new(vec![("k2".into(), vec![2; 32]), ("k1".into(), vec![1; 32])]).unwrap();
        let url = old.sign("", &claims(SocketRole::Executor));
        let (path, query) = url.split_once('?').unwrap();
        assert!(both.verify(&path[PATH.len()..], query, 0).is_ok());
        assert!(both.sign("", &claims(SocketRole::Executor)).contains("key=k2"));
    }

    fn keys() -> SigningKeys {
        SigningKeys::new(vec![("k1".into(), vec![7; 32])]).unwrap()
    }

    fn claims(role: SocketRole) -> Claims {
        let (registration, token) = ("r1".into(), "t1".into());
        Claims { environment: "a b".into(), registration, token, expires: 100, role }
    }

    fn verify(url: &str, now: Seconds) -> Result<Claims, UrlError> {
        let (path, query) = url.split_once('?').unwrap();
        let (_, segment) = path.rsplit_once('/').unwrap();
        keys().verify(segment, query, now)
    }
}
