//! Recognises link-local addresses and the metadata services of cloud providers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names of metadata services, for requests that a proxy resolves.
pub const METADATA_NAMES: [&str; 6] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Whether an address is link-local or a metadata service, also embedded in an IPv6 address.
pub fn is_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_metadata_v4(address),
        IpAddr::V6(address) => is_metadata_v6(address) || embedded_v4(address).any(is_metadata_v4),
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
            Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
            Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
            Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
            Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
        ]
        .contains(&address)
}

/// The IPv4 addresses that the known transition mechanisms embed in an IPv6 address.
fn embedded_v4(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let bytes = address.octets();
    let at = |places: [usize; 4]| Ipv4Addr::from(places.map(|origin| bytes[origin]));
    let last = at([12, 13, 14, 15]);
    let ([a, b, c, d, e, f, ..], interface) = (address.segments(), &bytes[8..12]);
    let found = match (a, b, c, d, e, f) {
        // Mapped, compatible, translated, and the well-known prefix of NAT64.
        (0, 0, 0, 0, 0, 0 | 0xffff) | (0, 0, 0, 0, 0xffff, 0) => vec![last],
        (0x64, 0xff9b, 0, 0, 0, 0) => vec![last],
        // Local-use NAT64 (RFC 8215): the prefix length is unknown here, so every layout of RFC 6052 is tried; they
        // skip the ninth byte.
        (0x64, 0xff9b, 1, ..) => {
            vec![at([6, 7, 9, 10]), at([7, 9, 10, 11]), at([9, 10, 11, 12]), last]
        }
        // 6to4.
        (0x2002, ..) => vec![at([2, 3, 4, 5])],
        // Teredo: the server, and the client with inverted bits.
        (0x2001, 0, ..) => vec![at([4, 5, 6, 7]), Ipv4Addr::from_bits(!last.to_bits())],
        // ISATAP, under any prefix.
        _ if matches!(interface, [0 | 2, 0, 0x5e, 0xfe]) => vec![last],
        _ => Vec::new(),
    };
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metadata_address_is_recognised_in_every_form() {
        for text in [
            "169.254.169.254",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:abcd:ef01:2345:a9fe:a9fe",
            // 64:ff9b:1::/48, 64:ff9b:1:100::/56 and 64:ff9b:1:fffe::/64.
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:1a9:fe:a9fe::",
            "64:ff9b:1:fffe:a9:fea9:fe00:0",
            "64:ff9b:1::100.100.100.200",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001:0:4136:e378:8000:63bf:5601:5601",
            "2001:db8::5efe:169.254.169.254",
            "2001:db8::200:5efe:169.254.169.254",
        ] {
            assert!(is_metadata(text.parse().unwrap()), "{text}");
        }
        for text in [
            "127.0.0.1",
            "10.0.0.1",
            "169.253.255.255",
            "::1",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "2002:a00:1::a9fe:a9fe",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:db8::a9fe:a9fe",
        ] {
            assert!(!is_metadata(text.parse().unwrap()), "{text}");
        }
    }
}
