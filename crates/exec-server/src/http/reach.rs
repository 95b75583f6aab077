//! Where requests may go: an optional list of hosts, and never to addresses that hand out the machine's own identity.
//!
//! Names are checked as they stand in the URL, addresses when they are dialled, so that a name cannot change its
//! meaning in between. Behind a proxy the proxy resolves names, and only what the URL says can be checked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use url::Host;

use super::error::HttpError;
use super::place::Place;

/// Where requests may go.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Hosts that requests may go to; none listed means all.
    pub allowed: Vec<AllowedHost>,
    /// Whether link-local and metadata addresses are like any other.
    pub metadata: bool,
}

/// A host that requests may go to: a pattern for its name or address, and perhaps a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    pattern: String,
    port: Option<u16>,
}

/// A pattern that cannot be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllowedHostError {
    /// Nothing can match.
    #[error(
        "expected HOST or HOST:PORT, where HOST may contain * and an IPv6 address stands in brackets"
    )]
    Shape,
    /// Not a port.
    #[error("the port must be a number from 1 to 65535")]
    Port,
}

impl FromStr for AllowedHost {
    type Err = AllowedHostError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(AllowedHostError::Shape)?;
                match port.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if port.is_empty() => (host, None),
                    None => return Err(AllowedHostError::Shape),
                }
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let is_odd = |letter: char| letter.is_whitespace() || "/@?#".contains(letter);
        if host.is_empty() || host.contains(is_odd) {
            return Err(AllowedHostError::Shape);
        }
        let port = port
            .map(|port| port.parse().ok().filter(|port| *port > 0).ok_or(AllowedHostError::Port))
            .transpose()?;
        // Clients send names in their ASCII form.
        let pattern = if host.is_ascii() {
            host.to_ascii_lowercase()
        } else {
            Host::parse(host).map_err(|_| AllowedHostError::Shape)?.to_string()
        };
        Ok(Self { pattern, port })
    }
}

impl AllowedHost {
    fn matches(&self, host: &str, port: u16) -> bool {
        self.port.is_none_or(|allowed| allowed == port)
            && matches(self.pattern.as_bytes(), host.as_bytes())
    }
}

impl Reach {
    /// Checks what the URL says.
    pub fn check_host(&self, place: &Place) -> Result<(), HttpError> {
        let host = place.bare_host();
        let is_listed = || self.allowed.iter().any(|allowed| allowed.matches(&host, place.port));
        if !self.allowed.is_empty() && !is_listed() {
            return Err(forbidden(place, "it is not in the list of --http-allow"));
        }
        if !self.metadata && METADATA_NAMES.contains(&host.as_str()) {
            return Err(forbidden(place, METADATA));
        }
        match &place.host {
            Host::Ipv4(address) => self.check_address(place, (*address).into()),
            Host::Ipv6(address) => self.check_address(place, (*address).into()),
            Host::Domain(_) => Ok(()),
        }
    }

    /// Checks an address that is about to be dialled.
    pub fn check_address(&self, place: &Place, address: IpAddr) -> Result<(), HttpError> {
        if !self.metadata && is_metadata(address) {
            return Err(forbidden(place, METADATA));
        }
        Ok(())
    }
}

const METADATA: &str = "link-local and metadata addresses are refused; see --http-allow-metadata";

/// Names of metadata services, for requests that a proxy resolves.
const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

fn forbidden(place: &Place, reason: &'static str) -> HttpError {
    HttpError::Forbidden { place: place.to_string(), reason }
}

/// Whether an address is link-local, or one at which a provider tells a machine its secrets.
fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_metadata_v4(address),
        IpAddr::V6(address) => {
            is_metadata_v6(address) || embedded_v4(address).is_some_and(is_metadata_v4)
        }
    }
}

fn is_metadata_v4(address: Ipv4Addr) -> bool {
    address.is_link_local()
        || [
            Ipv4Addr::new(100, 100, 100, 200),
            Ipv4Addr::new(168, 63, 129, 16),
            Ipv4Addr::new(192, 0, 0, 192),
        ]
        .contains(&address)
}

fn is_metadata_v6(address: Ipv6Addr) -> bool {
    address.is_unicast_link_local()
        || [
            Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
            Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
            Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
        ]
        .contains(&address)
}

/// The IPv4 address that an IPv6 address leads to: mapped, compatible, NAT64 and 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match (a, b, c, d, e, f) {
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) => Some(v4(g, h)),
        (0x64, 0xff9b, 0, 0, 0, 0) => Some(v4(g, h)),
        (0x2002, ..) => Some(v4(b, c)),
        _ => None,
    }
}

/// Whether `text` is what `pattern` says, where `*` is any run of characters.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // Where to go on if the letters after the last star turn out not to be these.
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
    use url::Url;

    use super::*;

    fn place(url: &str) -> Place {
        Place::of(&Url::parse(url).unwrap()).unwrap()
    }

    fn reach(allowed: &[&str]) -> Reach {
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        Reach { allowed, metadata: false }
    }

    #[test]
    fn without_a_list_requests_go_everywhere_but_to_metadata() {
        let open = Reach::default();
        for url in ["http://127.0.0.1/", "http://10.0.0.1/", "http://[::1]/", "http://example.org/"]
        {
            open.check_host(&place(url)).unwrap();
        }
        for url in [
            "http://169.254.169.254/",
            "http://169.254.0.1:8080/",
            "http://0xa9fea9fe/",
            "http://2852039166/",
            "http://[::ffff:169.254.169.254]/",
            "http://[::169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[2002:a9fe:a9fe::1]/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://100.100.100.200/",
            "http://METADATA.google.internal./",
        ] {
            let refused = open.check_host(&place(url));
            assert!(matches!(refused, Err(HttpError::Forbidden { .. })), "{url}");
            Reach { metadata: true, ..Reach::default() }.check_host(&place(url)).unwrap();
        }
    }

    #[test]
    fn a_list_names_hosts_by_patterns_and_ports() {
        let listed =
            reach(&["*.example.org", "Api.test:8443", "[::1]:80", "10.0.0.*", "bücher.example"]);
        for url in [
            "http://a.example.org/",
            "https://a.b.example.org:444/",
            "https://api.test:8443/",
            "http://[::1]/",
            "http://10.0.0.7:1/",
            "http://bücher.example/",
        ] {
            listed.check_host(&place(url)).unwrap();
        }
        for url in [
            "http://example.org/",
            "https://api.test/",
            "http://[::1]:81/",
            "http://10.0.1.7/",
            "http://a.example.org.evil.test/",
        ] {
            assert!(listed.check_host(&place(url)).is_err(), "{url}");
        }
    }

    #[test]
    fn a_pattern_must_be_able_to_match() {
        for text in ["", ":80", "a:b", "a:0", "[::1", "[::1]x", "http://a", "a b"] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }
}
