//! Networks of addresses, as settings write them.

use std::net::IpAddr;

/// A network: all addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    begin: u128,
    /// How many leading bits identify the network.
    bits: u32,
    is_v6: bool,
}

impl Network {
    /// Parses `192.0.2.0/24`, `2001:db8::/32` or a single address.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let wrong = || format!("'{}' is no network: use one like 192.0.2.0/24", text.escape_debug());
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if address.is_ipv6() { 128 } else { 32 };
        let bits = bits.map_or(Ok(longest), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > longest {
            return Err(wrong());
        }
        Ok(Self { begin: first_bits(address, bits), bits, is_v6: address.is_ipv6() })
    }

    /// Whether an address belongs to it. An IPv4-mapped IPv6 address counts as the IPv4 address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv6() == self.is_v6 && first_bits(address, self.bits) == self.begin
    }
}

/// The first bits of an address, the others 0. IPv4 uses the upper 32 bits.
fn first_bits(address: IpAddr, bits: u32) -> u128 {
    let all = match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    all & u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_networks_that_it_begins_like() {
        for (network, inside, outside) in [
            ("192.0.2.0/24", "192.0.2.255", "192.0.3.0"),
            ("192.0.2.77/24", "192.0.2.1", "192.0.1.77"),
            ("127.0.0.0/8", "::ffff:127.1.2.3", "128.0.0.1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("2001:db8::/32", "2001:db8:1::2", "2001:db9::"),
            ("::1/128", "::1", "::2"),
            ("0.0.0.0/0", "255.255.255.255", "2001:db8::"),
        ] {
            let network = Network::parse(network).unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network:?} {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{network:?} {outside}");
        }
    }

    #[test]
    fn what_is_no_network_is_named() {
        for wrong in
            ["", "example.org", "192.0.2.0/33", "192.0.2.0/", "192.0.2.0/-1", "2001:db8::/129", "192.0.2/24"]
        {
            assert!(Network::parse(wrong).unwrap_err().contains("is no network"), "{wrong}");
        }
    }
}
