//! Which addresses are public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address is public: not one of this machine, of a private network, or for another special purpose. Addresses to
/// which others ask this server to connect must be public: otherwise they could reach hosts that a firewall protects.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// By the IANA registry of special-purpose addresses.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let is_special = match ip.octets() {
        [0 | 10 | 127 | 224..=255, ..] => true, // this network, private, loopback, multicast, reserved
        [100, 64..=127, ..] => true,            // shared by the customers of a provider
        [169, 254, ..] => true,                 // link-local
        [172, 16..=31, ..] => true,             // private
        [192, 0, 0 | 2, _] => true,             // protocol assignments, documentation
        [192, 88, 99, _] => true,               // 6to4 relays
        [192, 168, ..] => true,                 // private
        [198, 18 | 19, ..] => true,             // benchmarks
        [198, 51, 100, _] => true,              // documentation
        [203, 0, 113, _] => true,               // documentation
        _ => false,
    };
    !is_special
}

/// Only 2000::/3 is public. Addresses with an IPv4 address inside are as public as that one.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    if let Some(ip) = ip.to_ipv4_mapped() {
        return is_public_v4(ip);
    }
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(joined(high, low)), // NAT64
        [0x2002, high, low, ..] => is_public_v4(joined(high, low)),               // 6to4
        [0x2001, 0..=0x1ff, ..] => false, // protocol assignments, among them Teredo
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false, // documentation
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_and_special_addresses_are_not_public() {
        for public in ["8.8.8.8", "172.32.0.1", "2a01:4f8::1", "::ffff:8.8.8.8", "64:ff9b::808:808"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.168.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:a00:1::",
            "2001:db8::1",
            "::7f00:1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }
}
