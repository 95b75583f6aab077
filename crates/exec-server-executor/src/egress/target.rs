//! The target of a request, parsed from its URL; the last target of a client is cached, because clients often repeat
//! it.

use std::sync::{Arc, Mutex};

use exec_server_transport::dial::basic_auth;
use hyper::Uri;
use hyper::header::HeaderValue;
use url::{Position, Url};

use super::origin::Origin;

/// The target of a request.
#[derive(Debug)]
pub struct Target {
    /// Without user info.
    pub url: Url,
    /// Host and port of the URL.
    pub origin: Origin,
    /// Path and query.
    pub path: Uri,
    /// The default `Host` header.
    pub host: HeaderValue,
    /// The user info as an `Authorization` header.
    pub authorization: Option<HeaderValue>,
}

/// A URL that no request can go to.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not a URL.
    #[error("url is invalid: {0}")]
    Invalid(url::ParseError),
    /// Neither http nor https.
    #[error("only supports http and https URLs, got {0}")]
    Scheme(String),
    /// No host.
    #[error("url has no host")]
    NoHost,
    /// hyper cannot represent the URL or its host.
    #[error("url cannot be sent")]
    Unsendable,
}

impl Target {
    /// Splits a URL into the parts of a request.
    pub fn of(mut url: Url) -> Result<Self, TargetError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(TargetError::Scheme(url.scheme().to_owned()));
        }
        let authorization = basic_auth(&url)
            .map(|value| HeaderValue::try_from(value).expect("base64 is a header value"));
        // Both fail only for URLs without a host, which `Origin::of` rejects below.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let origin = Origin::of(&url).ok_or(TargetError::NoHost)?;
        let host = HeaderValue::try_from(origin.authority());
        let path = url[Position::BeforePath..Position::AfterQuery].parse();
        match (host, path, url[..Position::AfterQuery].parse::<Uri>()) {
            (Ok(host), Ok(path), Ok(_)) => Ok(Self { url, origin, path, host, authorization }),
            _ => Err(TargetError::Unsendable),
        }
    }
}

/// The last target of a client.
#[derive(Debug, Default)]
pub struct LastTarget {
    last: Mutex<Option<(String, Arc<Target>)>>,
}

/// Longer URLs are not worth the memory.
const MAX_KEPT: usize = 4096;

impl LastTarget {
    /// Parses a URL, or returns the cached target if it is the same.
    pub fn read(&self, text: &str) -> Result<Arc<Target>, TargetError> {
        let mut last = self.last.lock().expect("no holder panics");
        if let Some((known, target)) = &*last
            && known == text
        {
            return Ok(target.clone());
        }
        let target = Arc::new(Target::of(Url::parse(text).map_err(TargetError::Invalid)?)?);
        if text.len() <= MAX_KEPT {
            *last = Some((text.to_owned(), target.clone()));
        }
        Ok(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_parsed_again_only_when_the_url_has_changed() {
        let targets = LastTarget::default();
        let first = targets.read("http://u:p@a:81/x?q#f").unwrap();
        assert_eq!(first.host, "a:81");
        assert_eq!(first.path, "/x?q");
        assert_eq!(first.authorization.as_ref().unwrap(), "Basic dTpw");
        assert_eq!(first.url.as_str(), "http://a:81/x?q#f");
        assert!(Arc::ptr_eq(&first, &targets.read("http://u:p@a:81/x?q#f").unwrap()));
        let other = targets.read("http://a:81/x?q").unwrap();
        assert_eq!((other.authorization.as_ref(), &other.origin), (None, &first.origin));
        let long = format!("http://a/{}", "x".repeat(MAX_KEPT));
        let once = targets.read(&long).unwrap();
        assert!(!Arc::ptr_eq(&once, &targets.read(&long).unwrap()));
        assert!(Arc::ptr_eq(&other, &targets.read("http://a:81/x?q").unwrap()));
    }
}
