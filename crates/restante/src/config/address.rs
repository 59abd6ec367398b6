//! Addresses of peers and of the node itself, as texts that are parsed.

use std::{fmt, str::FromStr};

use restante_waku::{Multiaddr, node::peer_of};

/// Where a peer is, and who it is: an address that ends with `/p2p/<peer id>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddress(Multiaddr);

/// Where the node itself is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnAddress(Multiaddr);

impl From<&PeerAddress> for Multiaddr {
    fn from(address: &PeerAddress) -> Self {
        address.0.clone()
    }
}

impl From<&OwnAddress> for Multiaddr {
    fn from(address: &OwnAddress) -> Self {
        address.0.clone()
    }
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address: Option<Multiaddr> = text.trim().parse().ok();
        let address = address.filter(|address| peer_of(address).is_some());
        address.map(Self).ok_or_else(|| {
            format!("'{text}' is no peer's address: write it as /ip4/<address>/tcp/<port>/p2p/<peer id>")
        })
    }
}

impl FromStr for OwnAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An empty text is the empty address, which leads nowhere.
        let address: Option<Multiaddr> =
            text.trim().parse().ok().filter(|address: &Multiaddr| !address.is_empty());
        address.map(Self).ok_or_else(|| {
            format!(
                "'{text}' is no address: write it as /ip4/<address>/tcp/<port> or /dns4/<name>/tcp/<port>/wss"
            )
        })
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

    const PEER: &str = "/p2p/16Uiu2HAkykgaECHswi3YKJ5dMLbq2kPVCo89fcyTd38UcQD6ej5W";

    #[test]
    fn a_peers_address_says_who_the_peer_is() {
        for place in ["/ip4/10.0.0.1/tcp/60000", "/dns4/node.example/tcp/8000/wss"] {
            let text = format!("{place}{PEER}");
            assert_eq!(text.parse::<PeerAddress>().map(|address| address.to_string()), Ok(text));
            assert!(place.parse::<PeerAddress>().is_err(), "{place}");
            assert!(place.parse::<OwnAddress>().is_ok(), "{place}");
        }
        for text in ["", "10.0.0.1:60000", "enr:-abc", "/ip4/10.0.0.1/tcp/60000/p2p/me"] {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
            assert!(text.parse::<OwnAddress>().is_err(), "{text}");
        }
    }
}
