//! Who may ask: programs of this machine, or those that have the token; never a page in a browser.

use exec_server_transport::local_listener::is_same_token;
use http::{HeaderMap, header};

use crate::refusal::{Code, Refusal};

/// Checks a request; `names` are the headers in which it may have the token.
pub fn check(headers: &HeaderMap, token: Option<&str>, names: &[&str]) -> Result<(), Refusal> {
    if headers.contains_key(header::ORIGIN) {
        return Err(Refusal::new(Code::PermissionDenied, "requests of browsers are refused"));
    }
    let Some(token) = token else { return check_host(headers) };
    let is_right = |name: &&str| {
        headers.get(*name).is_some_and(|value| is_same_token(value.as_bytes(), token.as_bytes()))
    };
    if names.iter().any(is_right) {
        return Ok(());
    }
    let text = format!("the token is missing or wrong (header {})", names.join(" or "));
    Err(Refusal::new(Code::Unauthenticated, text))
}

/// Without a token the host must be a name of this machine: a foreign name may lead here, too.
fn check_host(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host }
    });
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_own = name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_own {
        return Ok(());
    }
    Err(Refusal::new(Code::PermissionDenied, format!("the host {host:?} is not this machine")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_programs_and_holders_of_the_token_may_ask() {
        let check = |pairs: &[(&'static str, &str)], token| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            check(&headers, token, &["x-api-key"]).is_ok()
        };
        assert!(check(&[("host", "localhost:49983")], None));
        assert!(check(&[("host", "127.0.0.1:1")], None) && check(&[("host", "[::1]:80")], None));
        assert!(!check(&[("host", "evil.example:49983")], None) && !check(&[], None));
        assert!(!check(&[("host", "localhost"), ("origin", "http://localhost")], None));
        assert!(check(&[("host", "any"), ("x-api-key", "secret")], Some("secret")));
        assert!(!check(&[("host", "localhost"), ("x-api-key", "secre")], Some("secret")));
    }
}
