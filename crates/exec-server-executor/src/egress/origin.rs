//! An origin: scheme, host and port.

use std::fmt;

use tokio_rustls::rustls::pki_types::ServerName;
use url::{Host, Url};

/// The server or proxy that a connection leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Whether the scheme is https.
    pub is_tls: bool,
    pub host: Host,
    pub port: u16,
}

impl Origin {
    /// The origin of an http or https URL; `None` without a host.
    pub fn of(url: &Url) -> Option<Self> {
        let host = url.host()?.to_owned();
        Some(Self { is_tls: url.scheme() == "https", host, port: url.port_or_known_default()? })
    }

    /// The host without brackets or a final dot, in lower case.
    pub fn bare_host(&self) -> String {
        match &self.host {
            Host::Domain(name) => name.trim_end_matches('.').to_ascii_lowercase(),
            Host::Ipv4(address) => address.to_string(),
            Host::Ipv6(address) => address.to_string(),
        }
    }

    /// The name that the certificate must have; `None` if no certificate can have it.
    pub fn server_name(&self) -> Option<ServerName<'static>> {
        match &self.host {
            Host::Domain(_) => ServerName::try_from(self.bare_host()).ok(),
            Host::Ipv4(address) => Some(ServerName::IpAddress((*address).into())),
            Host::Ipv6(address) => Some(ServerName::IpAddress((*address).into())),
        }
    }

    /// The value of the `Host` header: the port is omitted if it is the default.
    pub fn authority(&self) -> String {
        let default = if self.is_tls { 443 } else { 80 };
        if self.port == default { self.host.to_string() } else { self.to_string() }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}:{}", self.host, self.port)
    }
}
