//! Redirects: derives the next request from a 3xx response.

use std::sync::Arc;

use exec_server_protocol::http::RedirectPolicy;
use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, HeaderMap,
    HeaderValue, LOCATION, PROXY_AUTHORIZATION, REFERER, TRANSFER_ENCODING,
};
use hyper::{Method, StatusCode};
use url::{Origin, Position, Url};

use super::error::HttpError;
use super::request::{Outgoing, OutgoingBody};
use super::target::{Target, TargetError};

/// The target of a redirect, if the request follows it.
pub fn target(request: &Outgoing, status: StatusCode, headers: &HeaderMap) -> Option<Url> {
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    if request.redirects == RedirectPolicy::Stop || !is_redirect {
        return None;
    }
    // An unparsable location is returned to the client with the response.
    let location = std::str::from_utf8(headers.get(LOCATION)?.as_bytes()).ok()?;
    request.target.url.join(location).ok()
}

/// Turns a request into the one for the redirect target.
pub fn follow(request: &mut Outgoing, status: StatusCode, to: Url) -> Result<(), HttpError> {
    let to = Target::of(to).map_err(|error| {
        HttpError::Redirect(match error {
            TargetError::Scheme(scheme) => {
                format!("redirect target uses unsupported URL scheme: {scheme}")
            }
            TargetError::NoHost => "redirect target has no host".to_owned(),
            TargetError::Invalid(_) | TargetError::Unsendable => UNSENDABLE.to_owned(),
        })
    })?;
    let becomes_get = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => request.method == Method::POST,
        StatusCode::SEE_OTHER => request.method != Method::HEAD,
        _ => false,
    };
    if becomes_get {
        request.method = Method::GET;
        request.body = OutgoingBody::None;
        for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
            request.headers.remove(name);
        }
    } else if !request.is_repeatable() {
        let reason = "a streamed body cannot be sent again to the redirect target";
        return Err(HttpError::Redirect(reason.to_owned()));
    }
    let from = request.target.url.origin();
    // User info in the redirect URL was chosen by the server, so `to.authorization` is not used.
    if from != to.url.origin() {
        for name in [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, HOST] {
            request.headers.remove(name);
        }
        // Headers with values from this machine's environment are sent to the first origin only.
        for name in std::mem::take(&mut request.secret_headers) {
            request.headers.remove(name);
        }
        let mut headers = HeaderMap::with_capacity(request.headers.len() + 2);
        headers.insert(HOST, to.host.clone());
        headers.extend(std::mem::take(&mut request.headers));
        request.headers = headers;
    }
    match referer(&request.target.url, &from, &to.url) {
        Some(referer) => request.headers.insert(REFERER, referer),
        None => request.headers.remove(REFERER),
    };
    request.target = Arc::new(to);
    Ok(())
}

/// The error text for a target that cannot be requested.
pub const UNSENDABLE: &str = "the answer points to a URL that cannot be sent";

/// The `Referer` for the next request, reduced to what the target may see.
fn referer(from: &Url, origin: &Origin, to: &Url) -> Option<HeaderValue> {
    if from.scheme() == "https" && to.scheme() == "http" {
        return None;
    }
    let text = if *origin == to.origin() {
        from[..Position::AfterQuery].to_owned()
    } else {
        format!("{}/", origin.ascii_serialization())
    };
    HeaderValue::try_from(text).ok()
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::http::{HttpRequestHeader, HttpRequestParams};

    use super::super::budget::Budget;
    use super::super::target::LastTarget;
    use super::*;

    fn request(method: &str, url: &str) -> Outgoing {
        let mut params = HttpRequestParams::get("1", url);
        params.method = method.to_owned();
        params.body_base64 = (method != "GET").then(|| b"hi".to_vec().into());
        params.headers = ["authorization", "cookie", "content-type", "host", "x-other"]
            .map(|name| HttpRequestHeader::new(name, "v"))
            .to_vec();
        Outgoing::new(params, &LastTarget::default(), &Budget::default()).unwrap().0
    }

    fn names(request: &Outgoing) -> Vec<&str> {
        let mut names: Vec<_> = request.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn only_a_post_and_a_303_become_a_get() {
        for (status, method, then) in [
            (301, "POST", "GET"),
            (302, "POST", "GET"),
            (302, "PUT", "PUT"),
            (301, "DELETE", "DELETE"),
            (303, "PUT", "GET"),
            (303, "HEAD", "HEAD"),
            (307, "POST", "POST"),
            (308, "POST", "POST"),
        ] {
            let mut request = request(method, "http://a/x");
            let to = Url::parse("http://a/y").unwrap();
            follow(&mut request, StatusCode::from_u16(status).unwrap(), to).unwrap();
            assert_eq!(request.method.as_str(), then, "{status} {method}");
            let has_body = matches!(request.body, OutgoingBody::Whole(_));
            assert_eq!(has_body, then != "GET", "{status} {method}");
            assert_eq!(request.headers.contains_key(CONTENT_TYPE), has_body);
            assert_eq!(request.headers.contains_key(CONTENT_LENGTH), has_body);
        }
    }

    #[test]
    fn secrets_stay_with_their_origin() {
        let found = StatusCode::FOUND;
        let mut same = request("GET", "http://a/x?q=1");
        follow(&mut same, found, Url::parse("http://u:p@a/y").unwrap()).unwrap();
        assert_eq!(same.headers[REFERER], "http://a/x?q=1");
        assert_eq!(same.headers[AUTHORIZATION], "v");
        assert_eq!(same.headers[HOST], "v");
        assert_eq!(same.target.url.as_str(), "http://a/y");

        let mut port = request("GET", "http://a/x?q=1");
        follow(&mut port, found, Url::parse("http://a:81/y").unwrap()).unwrap();
        assert_eq!(port.headers[REFERER], "http://a/");
        assert_eq!(names(&port), ["accept", "content-type", "host", "referer", "x-other"]);
        assert_eq!(port.headers.iter().next().unwrap().1, "a:81");

        let mut host = request("GET", "https://a/x?q=1");
        host.secret_headers = vec!["x-other".parse().unwrap()];
        follow(&mut host, found, Url::parse("http://b/y").unwrap()).unwrap();
        assert_eq!(names(&host), ["accept", "content-type", "host"]);
    }

    #[test]
    fn a_redirect_to_another_scheme_is_rejected() {
        let mut request = request("GET", "http://a/x");
        let refused = follow(&mut request, StatusCode::FOUND, Url::parse("ftp://b/").unwrap());
        assert!(refused.unwrap_err().to_string().ends_with("unsupported URL scheme: ftp"));
    }
}
