//! The address of the node itself, parsed from a text.

use std::{fmt, str::FromStr};

use restante_waku::Multiaddr;

/// The address at which the node itself is reachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress(Multiaddr);

impl From<&OwnAddress> for Multiaddr {
    fn from(address: &OwnAddress) -> Self {
        address.0.clone()
    }
}

impl FromStr for OwnAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An empty text parses as the empty address, which leads nowhere.
        let address: Option<Multiaddr> =
            text.trim().parse().ok().filter(|address: &Multiaddr| !address.is_empty());
        address.map(Self).ok_or_else(|| {
            format!(
                "'{text}' is no address: write it as /ip4/<address>/tcp/<port> or /dns4/<name>/tcp/<port>/wss"
            )
        })
    }
}

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_somewhere() {
        for text in ["/ip4/10.0.0.1/tcp/60000", "/dns4/node.example/tcp/8000/wss"] {
            assert_eq!(text.parse::<OwnAddress>().map(|address| address.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "10.0.0.1:60000", "enr:-abc", "/ip4/10.0.0.1/tcp/60000/p2p/me"] {
            assert!(text.parse::<OwnAddress>().is_err(), "{text}");
        }
    }
}
