//! The look-ups of a client.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use restante_net::dns::{Answer, Resolver};
use tokio::time::timeout;

use super::{BlockList, ClientFacts, Reverse, lists::CheckedList};

/// Names of an address that are looked at.
const NAMES_MAX: usize = 5;

/// Looks clients up in the DNS: all at once, in bounded time. What it learns stays in the memory of the resolver.
pub struct ClientLookups {
    resolver: Arc<dyn Resolver>,
    lists: Vec<CheckedList>,
    timeout: Duration,
}

impl ClientLookups {
    /// Asks this resolver and these lists, and waits no longer than this.
    pub fn new(resolver: Arc<dyn Resolver>, lists: &[BlockList], timeout: Duration) -> Self {
        let lists = lists.iter().cloned().map(CheckedList::new).collect();
        Self { resolver, lists, timeout }
    }

    /// What is known of a client in time. A list that does not answer in time lists nothing.
    pub async fn look_up(&self, address: IpAddr) -> ClientFacts {
        let address = address.to_canonical();
        let reverse = async {
            let reverse = Box::pin(self.reverse(address));
            timeout(self.timeout, reverse).await.unwrap_or(Reverse::Unknown)
        };
        let lists: &[CheckedList] = if is_public(address) { &self.lists } else { &[] };
        let listings = lists.iter().map(|list| async move {
            let listing = Box::pin(list.listing(&self.resolver, address));
            timeout(self.timeout, listing).await.ok().flatten()
        });
        let (reverse, listings) = tokio::join!(reverse, join_all(listings));
        ClientFacts { reverse, listings: listings.into_iter().flatten().collect() }
    }

    /// Whether a name is in the DNS: it has addresses or takes mail. `None` when that is not known in time.
    pub async fn has_name(&self, name: &str) -> Option<bool> {
        let exists = async {
            match self.resolver.addresses(name).await {
                Answer::Found(_) => return Some(true),
                Answer::Temporary(_) => return None,
                Answer::NoSuchName => return Some(false),
                Answer::NoRecords => {}
            }
            match self.resolver.mx(name).await {
                Answer::Found(_) => Some(true),
                Answer::Temporary(_) => None,
                Answer::NoSuchName | Answer::NoRecords => Some(false),
            }
        };
        timeout(self.timeout, exists).await.ok().flatten()
    }

    /// The name of an address that leads back to it (RFC 8601 §3, `iprev`).
    async fn reverse(&self, address: IpAddr) -> Reverse {
        let names = match self.resolver.ptr(address).await {
            Answer::Found(names) => names,
            Answer::NoSuchName | Answer::NoRecords => return Reverse::None,
            Answer::Temporary(_) => return Reverse::Unknown,
        };
        // Names that no host can have don't lead back either, and must not stand in a Received field.
        let names: Vec<String> =
            names.into_iter().filter(|name| is_host_name(name)).take(NAMES_MAX).collect();
        let addresses = join_all(names.iter().map(|name| self.resolver.addresses(name))).await;
        let mut is_unknown = false;
        for (name, addresses) in names.iter().zip(addresses) {
            match addresses {
                Answer::Found(found) if found.iter().any(|found| found.to_canonical() == address) => {
                    return Reverse::Confirmed(name.clone());
                }
                Answer::Temporary(_) => is_unknown = true,
                Answer::Found(_) | Answer::NoSuchName | Answer::NoRecords => {}
            }
        }
        match names.into_iter().next() {
            None => Reverse::None,
            Some(_) if is_unknown => Reverse::Unknown,
            Some(name) => Reverse::Unconfirmed(name),
        }
    }
}

/// Whether a host can have this name (RFC 1123 §2.1). Underscores are let pass, as some have them.
pub(super) fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.contains('.') && name.split('.').all(is_label)
}

/// Whether lists can have an address: those of private networks are nobody's business.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !(address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_unspecified())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || address.is_unspecified())
        }
    }
}
