//! Egress policy: an optional allow list of hosts, and a deny list of link-local and metadata addresses.
//!
//! Names are checked in the URL, addresses when they are dialled, so DNS rebinding cannot bypass the check. Behind a
//! proxy the proxy resolves names, and only the URL can be checked.

use std::net::{IpAddr, SocketAddr};

use url::Host;

use super::allowed_host::AllowedHost;
use super::error::HttpError;
use super::metadata::{METADATA_NAMES, is_metadata};
use super::origin::Origin;

/// Where `http/request` may connect to.
#[derive(Debug, Clone, Default)]
pub struct EgressPolicy {
    /// Allowed hosts; an empty list allows all.
    pub allowed: Vec<AllowedHost>,
    /// Whether link-local and metadata addresses are allowed.
    pub metadata: bool,
}

/// Which side resolves host names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolver {
    /// This server, which checks every address before it is dialled.
    Here,
    /// A proxy, so only the URL can be checked.
    Proxy,
}

impl EgressPolicy {
    /// Checks the host of a URL, before any lookup.
    pub fn check_host(&self, origin: &Origin, resolver: Resolver) -> Result<(), HttpError> {
        match &origin.host {
            Host::Ipv4(address) => self.check_address(origin, (*address).into()),
            Host::Ipv6(address) => self.check_address(origin, (*address).into()),
            Host::Domain(_) => self.check_name(origin, resolver),
        }
    }

    fn check_name(&self, origin: &Origin, resolver: Resolver) -> Result<(), HttpError> {
        let name = origin.bare_host();
        if !self.metadata && METADATA_NAMES.contains(&name.as_str()) {
            return Err(forbidden(origin, METADATA));
        }
        let may_be_listed_by_address = resolver == Resolver::Here
            && self.allowed.iter().any(|allowed| allowed.lists_addresses_at(origin.port));
        if self.lists_name(&name, origin.port) || may_be_listed_by_address {
            return Ok(());
        }
        Err(forbidden(origin, UNLISTED))
    }

    /// Returns the addresses that may be dialled. A denied address rejects the whole name; addresses that are merely
    /// missing from the allow list are skipped.
    pub fn check_addresses(
        &self,
        origin: &Origin,
        mut addresses: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, HttpError> {
        if !self.metadata && addresses.iter().any(|address| is_metadata(address.ip())) {
            return Err(forbidden(origin, METADATA));
        }
        let is_name = matches!(origin.host, Host::Domain(_));
        if !is_name || !self.lists_name(&origin.bare_host(), origin.port) {
            addresses.retain(|address| self.lists_address(address.ip(), origin.port));
        }
        if addresses.is_empty() { Err(forbidden(origin, UNLISTED)) } else { Ok(addresses) }
    }

    fn check_address(&self, origin: &Origin, address: IpAddr) -> Result<(), HttpError> {
        if !self.metadata && is_metadata(address) {
            return Err(forbidden(origin, METADATA));
        }
        let is_listed = self.lists_address(address, origin.port);
        if is_listed { Ok(()) } else { Err(forbidden(origin, UNLISTED)) }
    }

    fn lists_address(&self, address: IpAddr, port: u16) -> bool {
        self.allowed.is_empty()
            || self.allowed.iter().any(|allowed| allowed.lists_address(address, port))
    }

    fn lists_name(&self, name: &str, port: u16) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|allowed| allowed.lists_name(name, port))
    }
}

const UNLISTED: &str = "it is not in the list of --http-allow";

const METADATA: &str = "link-local and metadata addresses are refused; see --http-allow-metadata";

fn forbidden(origin: &Origin, reason: &'static str) -> HttpError {
    HttpError::Forbidden { origin: origin.to_string(), reason }
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::of(&Url::parse(url).unwrap()).unwrap()
    }

    fn policy(allowed: &[&str]) -> EgressPolicy {
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        EgressPolicy { allowed, metadata: false }
    }

    #[test]
    fn without_an_allow_list_only_metadata_is_denied() {
        let open = EgressPolicy::default();
        for url in ["http://127.0.0.1/", "http://10.0.0.1/", "http://[::1]/", "http://example.org/"]
        {
            open.check_host(&origin(url), Resolver::Here).unwrap();
        }
        for url in [
            "http://169.254.169.254/",
            "http://169.254.0.1:8080/",
            "http://0xa9fea9fe/",
            "http://2852039166/",
            "http://[::ffff:169.254.169.254]/",
            "http://[::169.254.169.254]/",
            "http://[64:ff9b:1::a9fe:a9fe]/",
            "http://METADATA.google.internal./",
        ] {
            let refused = open.check_host(&origin(url), Resolver::Here);
            assert!(matches!(refused, Err(HttpError::Forbidden { .. })), "{url}");
            EgressPolicy { metadata: true, ..EgressPolicy::default() }
                .check_host(&origin(url), Resolver::Here)
                .unwrap();
        }
    }

    #[test]
    fn a_list_names_hosts_by_patterns_and_ports() {
        let listed =
            policy(&["*.example.org", "Api.test:8443", "[::1]:80", "10.0.0.*", "bücher.example"]);
        for url in [
            "http://a.example.org/",
            "https://a.b.example.org:444/",
            "https://api.test:8443/",
            "http://[::1]/",
            "http://10.0.0.7:1/",
            "http://bücher.example/",
        ] {
            listed.check_host(&origin(url), Resolver::Here).unwrap();
        }
        for url in [
            "http://example.org/",
            "https://api.test/",
            "http://[::1]:81/",
            "http://10.0.1.7/",
            "http://10.0.0.1.evil.example/",
            "http://a.example.org.evil.test/",
        ] {
            assert!(listed.check_host(&origin(url), Resolver::Proxy).is_err(), "{url}");
        }
    }

    #[test]
    fn address_patterns_apply_to_resolved_addresses_and_not_to_names() {
        let listed = policy(&["10.0.0.*:80", "named.test"]);
        let at = |third| SocketAddr::from(([10, 0, third, 1], 80));
        let metadata = SocketAddr::from(([169, 254, 169, 254], 80));
        for url in ["http://10.0.0.1.evil.example/", "http://inside.test/"] {
            let origin = origin(url);
            listed.check_host(&origin, Resolver::Proxy).unwrap_err();
            listed.check_host(&origin, Resolver::Here).unwrap();
            let left = listed.check_addresses(&origin, vec![at(0), at(1)]).unwrap();
            assert_eq!(left, [at(0)]);
            listed.check_addresses(&origin, vec![at(1)]).unwrap_err();
            listed.check_addresses(&origin, vec![at(0), metadata]).unwrap_err();
        }
        listed.check_host(&origin("http://inside.test:81/"), Resolver::Here).unwrap_err();
        let named = origin("http://named.test/");
        listed.check_host(&named, Resolver::Proxy).unwrap();
        assert_eq!(listed.check_addresses(&named, vec![at(1)]).unwrap(), [at(1)]);
        listed.check_addresses(&named, vec![at(1), metadata]).unwrap_err();
    }
}
