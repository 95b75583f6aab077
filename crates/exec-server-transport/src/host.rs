//! Strict check that the `Host` header names loopback; ambiguous values are rejected, because parsers differ on them.

use std::net::IpAddr;

use hyper::Uri;
use hyper::header::{HOST, HeaderMap};

/// Whether the `Host` header and the request target both name loopback; an absent or empty `Host` passes.
pub fn is_for_loopback(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let is_local = match (hosts.next(), hosts.next()) {
        (None, _) => true,
        (Some(host), None) => host.to_str().is_ok_and(|host| host.is_empty() || is_loopback(host)),
        (Some(_), Some(_)) => false,
    };
    is_local && uri.authority().is_none_or(|authority| is_loopback(authority.as_str()))
}

/// Whether `NAME`, `NAME:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT` is loopback.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) => (address, port),
            None => return false,
        },
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| {
        digits.bytes().all(|digit| digit.is_ascii_digit()) && digits.parse::<u16>().is_ok()
    };
    if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
        return false;
    }
    match (host.starts_with('['), name.parse::<IpAddr>()) {
        (true, Ok(IpAddr::V6(address))) => address.to_canonical().is_loopback(),
        (false, Ok(IpAddr::V4(address))) => address.is_loopback(),
        (false, Err(_)) => name.eq_ignore_ascii_case("localhost"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_plain_names_of_loopback_are_taken() {
        for host in [
            "localhost",
            "LocalHost:1",
            "127.0.0.1",
            "127.9.9.9:65535",
            "[::1]",
            "[::1]:80",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost:evil.example",
            "localhost:",
            "localhost:+1",
            "localhost:65536",
            "localhost.",
            "127.0.0.1.evil.example",
            "127.0.0.1:80:evil.example",
            "[::1]evil.example",
            "[::1].evil.example:80",
            "[::1]:80.evil.example",
            "[::1",
            "::1",
            "[127.0.0.1]",
            "[localhost]",
            "evil.example@127.0.0.1",
            "127.0.0.1@evil.example",
            "127.1",
            "0x7f.1",
            "10.0.0.1",
            " localhost",
            "",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_request_has_one_host_and_the_target_agrees() {
        let is = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, host.parse().unwrap());
            }
            is_for_loopback(&uri.parse().unwrap(), &headers)
        };
        assert!(is("/", &[]) && is("/", &[""]) && is("/", &["localhost"]));
        assert!(is("http://127.0.0.1:5/", &["127.0.0.1:5"]));
        assert!(!is("/", &["localhost", "localhost"]));
        assert!(!is("http://evil.example/", &["localhost"]));
        assert!(!is("http://localhost/", &["evil.example"]));
    }
}
