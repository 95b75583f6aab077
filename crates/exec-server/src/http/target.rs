//! Where a request goes, with everything about it that a request needs; a client that asks the same place again and again
//! has it read once.

use std::sync::{Arc, Mutex};

use exec_server_transport::dial::basic_auth;
use hyper::Uri;
use hyper::header::HeaderValue;
use url::{Position, Url};

use super::place::Place;

/// Where a request goes.
#[derive(Debug)]
pub struct Target {
    /// Without user info.
    pub url: Url,
    /// Host and port of the URL.
    pub place: Place,
    /// Path and query.
    pub path: Uri,
    /// What the `Host` header says.
    pub host: HeaderValue,
    /// User info as a header.
    pub authorization: Option<HeaderValue>,
}

/// A URL that no request can go to.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Not a URL.
    #[error("url is invalid: {0}")]
    Invalid(url::ParseError),
    /// A URL of something else.
    #[error("only supports http and https URLs, got {0}")]
    Scheme(String),
    /// Nobody to ask.
    #[error("url has no host")]
    NoHost,
    /// It has no place in a request.
    #[error("url cannot be sent")]
    Unsendable,
}

impl Target {
    /// Where a URL points.
    pub fn of(mut url: Url) -> Result<Self, TargetError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(TargetError::Scheme(url.scheme().to_owned()));
        }
        let authorization = basic_auth(&url)
            .map(|value| HeaderValue::try_from(value).expect("base64 is a header value"));
        // Both can only fail for URLs without a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let place = Place::of(&url).ok_or(TargetError::NoHost)?;
        let host = HeaderValue::try_from(place.authority());
        let path = url[Position::BeforePath..Position::AfterQuery].parse();
        match (host, path, url[..Position::AfterQuery].parse::<Uri>()) {
            (Ok(host), Ok(path), Ok(_)) => Ok(Self { url, place, path, host, authorization }),
            _ => Err(TargetError::Unsendable),
        }
    }
}

/// The target that a client asked last.
#[derive(Debug, Default)]
pub struct LastTarget {
    last: Mutex<Option<(String, Arc<Target>)>>,
}

/// Longer URLs are not worth the memory.
const MAX_KEPT: usize = 4096;

impl LastTarget {
    /// Where a text points, which is known if it is the same as the last time.
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
    fn a_target_is_read_again_only_when_it_has_changed() {
        let targets = LastTarget::default();
        let first = targets.read("http://u:p@a:81/x?q#f").unwrap();
        assert_eq!(first.host, "a:81");
        assert_eq!(first.path, "/x?q");
        assert_eq!(first.authorization.as_ref().unwrap(), "Basic dTpw");
        assert_eq!(first.url.as_str(), "http://a:81/x?q#f");
        assert!(Arc::ptr_eq(&first, &targets.read("http://u:p@a:81/x?q#f").unwrap()));
        let other = targets.read("http://a:81/x?q").unwrap();
        assert_eq!((other.authorization.as_ref(), &other.place), (None, &first.place));
        let long = format!("http://a/{}", "x".repeat(MAX_KEPT));
        let once = targets.read(&long).unwrap();
        assert!(!Arc::ptr_eq(&once, &targets.read(&long).unwrap()));
        assert!(Arc::ptr_eq(&other, &targets.read("http://a:81/x?q").unwrap()));
    }
}
