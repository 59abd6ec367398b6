//! The checks before a message: the client's address, its greeting, and whether it tries again.

use std::{net::IpAddr, sync::Arc};

use async_trait::async_trait;

use super::{ClientFacts, ClientLookups, Greylist, Reverse, lookups::is_host_name};
use crate::{Action, ChecksConfig, ClientChecking, Peer, Refused};

/// Checks clients according to the settings. The action for mail that these checks do not refuse is decided with the message.
pub struct ClientChecks {
    lookups: ClientLookups,
    greylist: Option<Arc<Greylist>>,
    reverse: Action,
    hello: Action,
}

impl ClientChecks {
    /// Checks with these settings; without a greylist no client has to wait.
    pub fn new(lookups: ClientLookups, greylist: Option<Arc<Greylist>>, config: &ChecksConfig) -> Self {
        Self { lookups, greylist, reverse: config.reverse, hello: config.hello }
    }

    /// RFC 5321 §4.1.1.1: a client sends its name in the DNS, or its address in brackets.
    async fn is_good_hello(&self, name: &str) -> bool {
        if is_address_literal(name) {
            return true;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        is_host_name(name) && self.lookups.has_name(name).await.unwrap_or(true)
    }
}

#[async_trait]
impl ClientChecking for ClientChecks {
    async fn client(&self, address: IpAddr) -> ClientFacts {
        self.lookups.look_up(address).await
    }

    async fn has_good_hello(&self, peer: &Peer) -> bool {
        self.hello == Action::None || self.is_good_hello(&peer.hello).await
    }

    async fn sender(&self, peer: &Peer, facts: &ClientFacts, _sender: &str) -> Result<(), Refused> {
        let address = peer.address;
        if let Some(listing) = facts.listings.iter().find(|listing| listing.action == Action::Refuse) {
            let said = listing.text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
            let text = format!("your address {address} is on the block list {}{said}", listing.zone);
            return Err(Refused { code: 550, enhanced: "5.7.1", text, check: "block_list" });
        }
        if self.reverse == Action::Refuse {
            let what = match &facts.reverse {
                Reverse::Confirmed(_) | Reverse::Unknown => None,
                Reverse::Unconfirmed(name) => {
                    Some(format!("the name {name} of your address {address} does not lead back to it"))
                }
                Reverse::None => Some(format!("your address {address} has no name in the DNS")),
            };
            if let Some(text) = what {
                // RFC 7372 §3.3.
                return Err(Refused { code: 550, enhanced: "5.7.25", text, check: "reverse" });
            }
        }
        if self.hello == Action::Refuse && !self.is_good_hello(&peer.hello).await {
            let text = "the name in your EHLO is no name in the DNS".to_owned();
            return Err(Refused { code: 550, enhanced: "5.7.1", text, check: "hello" });
        }
        Ok(())
    }

    async fn recipient(
        &self,
        peer: &Peer,
        _facts: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused> {
        match &self.greylist {
            Some(greylist) => greylist.admit(peer.address, sender, recipient),
            None => Ok(()),
        }
    }
}

/// Whether a name is an address literal (RFC 5321 §4.1.3).
fn is_address_literal(name: &str) -> bool {
    let Some(inner) = name.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) else { return false };
    let v6 = inner.get(..5).is_some_and(|tag| tag.eq_ignore_ascii_case("IPv6:"));
    match v6 {
        true => inner.get(5..).is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok()),
        false => inner.parse::<std::net::Ipv4Addr>().is_ok(),
    }
}
