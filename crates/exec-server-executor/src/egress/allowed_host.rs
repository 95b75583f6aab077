//! One entry of the egress allow list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::Host;

/// An allowed host: a pattern for names or for addresses, and an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    pattern: Pattern,
    port: Option<u16>,
}

/// `10.0.0.*` matches addresses only, so the name `10.0.0.1.evil.example` does not match.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// Every host.
    Any,
    Name(String),
    Ipv4(String),
    Ipv6(String),
}

/// Why a pattern is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllowedHostError {
    /// The host part is malformed, so no host could match.
    #[error(
        "expected HOST or HOST:PORT, where HOST may contain * and an IPv6 address stands in brackets"
    )]
    Shape,
    /// The port is not a number, or zero.
    #[error("the port must be a number from 1 to 65535")]
    Port,
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pattern, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or(AllowedHostError::Shape)?;
                let port = match rest.strip_prefix(':') {
                    None if !rest.is_empty() => return Err(AllowedHostError::Shape),
                    port => port,
                };
                (Pattern::of_ipv6(host)?, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (Pattern::of_host(host)?, Some(port)),
                None => (Pattern::of_host(text)?, None),
            },
        };
        let port = port
            .map(|port| port.parse().ok().filter(|port| *port > 0).ok_or(AllowedHostError::Port))
            .transpose()?;
        Ok(Self { pattern, port })
    }
}

impl Pattern {
    fn of_ipv6(text: &str) -> Result<Self, AllowedHostError> {
        let is_part = |letter: char| letter.is_ascii_hexdigit() || ":.*".contains(letter);
        match text.parse::<Ipv6Addr>() {
            // Requests are matched in the canonical form of the address.
            Ok(address) => Ok(Self::Ipv6(address.to_string())),
            Err(_) if text.contains('*') && text.chars().all(is_part) => {
                Ok(Self::Ipv6(text.to_ascii_lowercase()))
            }
            Err(_) => Err(AllowedHostError::Shape),
        }
    }

    fn of_host(text: &str) -> Result<Self, AllowedHostError> {
        let is_odd = |letter: char| letter.is_whitespace() || "/@?#[]".contains(letter);
        if text.is_empty() || text.contains(is_odd) {
            return Err(AllowedHostError::Shape);
        }
        if text.bytes().all(|letter| letter == b'*') {
            return Ok(Self::Any);
        }
        if text.bytes().all(|letter| letter.is_ascii_digit() || b".*".contains(&letter)) {
            let can_match = text.contains('*') || text.parse::<Ipv4Addr>().is_ok();
            return can_match.then(|| Self::Ipv4(text.to_owned())).ok_or(AllowedHostError::Shape);
        }
        // Requests are matched by the ASCII form (punycode) of a name.
        Ok(Self::Name(if text.is_ascii() {
            text.to_ascii_lowercase()
        } else {
            Host::parse(text).map_err(|_| AllowedHostError::Shape)?.to_string()
        }))
    }
}

impl AllowedHost {
    /// Whether this is an address pattern for this port.
    pub fn lists_addresses_at(&self, port: u16) -> bool {
        self.has_port(port) && matches!(self.pattern, Pattern::Ipv4(_) | Pattern::Ipv6(_))
    }

    /// Whether a name is allowed; `name` is in lower case and without a final dot.
    pub fn lists_name(&self, name: &str, port: u16) -> bool {
        self.has_port(port)
            && match &self.pattern {
                Pattern::Any => true,
                Pattern::Name(pattern) => matches(pattern.as_bytes(), name.as_bytes()),
                Pattern::Ipv4(_) | Pattern::Ipv6(_) => false,
            }
    }

    /// Whether an address is allowed.
    pub fn lists_address(&self, address: IpAddr, port: u16) -> bool {
        self.has_port(port)
            && match (&self.pattern, address) {
                (Pattern::Any, _) => true,
                (Pattern::Ipv4(pattern), IpAddr::V4(_))
                | (Pattern::Ipv6(pattern), IpAddr::V6(_)) => {
                    matches(pattern.as_bytes(), address.to_string().as_bytes())
                }
                _ => false,
            }
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
    }
}

/// Glob match, where `*` matches any sequence of characters.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // Where to resume after a mismatch: behind the last star, one character later in the text.
    let mut retry = None;
    while here < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                retry = Some((at + 1, here + 1));
                at += 1;
            }
            Some(letter) if *letter == text[here] => (at, here) = (at + 1, here + 1),
            _ => match retry {
                Some((after_star, later)) => {
                    (at, here) = (after_star, later);
                    retry = Some((after_star, later + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_must_be_able_to_match() {
        for text in [
            "",
            ":80",
            "a:b",
            "a:0",
            "[::1",
            "[::1]x",
            "http://a",
            "a b",
            "10.0",
            "1.2.3.4.5",
            "256.0.0.1",
            "[::g]",
            "[name]",
            "[]",
            "[*",
            "a[",
            "::1",
        ] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_matches_names_or_addresses() {
        let lists = |pattern: &str, host: &str| {
            let allowed: AllowedHost = pattern.parse().unwrap();
            match host.parse() {
                Ok(address) => allowed.lists_address(address, 80),
                Err(_) => allowed.lists_name(host, 80),
            }
        };
        for (pattern, host, expected) in [
            ("*", "a.example", true),
            ("*", "10.0.0.1", true),
            ("*:80", "::1", true),
            ("*:81", "::1", false),
            ("10.0.0.*", "10.0.0.1", true),
            ("10.0.0.*", "10.0.0.1.evil.example", false),
            ("10.*", "10.evil.example", false),
            ("1*", "1::5", false),
            ("1*", "1.evil.example", false),
            ("*.0.0.1", "127.0.0.1", true),
            ("a*", "a::1", false),
            ("a*", "a.example", true),
            ("[a*]", "a::1", true),
            ("[a*]", "a.example", false),
            ("[0:0::0:1]", "::1", true),
            ("[FD00:*]", "fd00::7", true),
            ("[::ffff:10.0.0.1]", "10.0.0.1", false),
        ] {
            assert_eq!(lists(pattern, host), expected, "{pattern} {host}");
        }
    }
}
