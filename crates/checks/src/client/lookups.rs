//! The look-ups of a client.

use std::{net::IpAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use restante_net::dns::{Answer, Resolver};
use tokio::time::timeout;

use super::{BlockList, ClientFacts, Reverse, lists::CheckedList};

/// The most names of an address that are checked.
const NAMES_MAX: usize = 5;

/// Looks clients up in the DNS: all queries at once, in bounded time. The resolver caches the answers.
pub struct ClientLookups {
    resolver: Arc<dyn Resolver>,
    lists: Vec<CheckedList>,
    timeout: Duration,
}

impl ClientLookups {
    /// Queries this resolver and these lists, for at most `timeout`.
    pub fn new(resolver: Arc<dyn Resolver>, lists: &[BlockList], timeout: Duration) -> Self {
        let lists = lists.iter().cloned().map(CheckedList::new).collect();
        Self { resolver, lists, timeout }
    }

    /// What is found about a client in time. A list that does not answer in time lists nothing.
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

    /// Whether a name exists in the DNS: it has addresses or accepts mail. `None` if that is not known in time.
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

    /// The name of an address that resolves back to it (RFC 8601 §3, `iprev`).
    async fn reverse(&self, address: IpAddr) -> Reverse {
        let names = match self.resolver.ptr(address).await {
            Answer::Found(names) => names,
            Answer::NoSuchName | Answer::NoRecords => return Reverse::None,
            Answer::Temporary(_) => return Reverse::Unknown,
        };
        // Names that no host can have don't resolve back either, and must not appear in a Received field.
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

/// Whether a host can have this name (RFC 1123 §2.1). Underscores are accepted, as some hosts have them.
pub(super) fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= 253 && name.contains('.') && name.split('.').all(is_label)
}

/// Whether an address can be on lists. Those of private networks are not sent to list operators.
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
