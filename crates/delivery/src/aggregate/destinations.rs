//! Which addresses may get the reports about a domain (RFC 7489 §7.1): a domain can't direct them to somebody who does not want them.

use restante_core::Error;
use restante_net::dns::{Answer, Resolver};

use super::{Destination, Published};

/// The most addresses that get a report. RFC 7489 §6.2 asks for two at least.
const DESTINATIONS_MAX: usize = 2;

/// The addresses that get the reports about a domain, two at most.
///
/// # Errors
/// `Unavailable` when the DNS can't be queried now for whether one of them may get it.
pub(super) async fn verified(
    resolver: &dyn Resolver,
    domain: &str,
    published: &Published,
) -> Result<Vec<Destination>, Error> {
    let mut verified: Vec<Destination> = Vec::new();
    for destination in &published.rua {
        if verified.len() >= DESTINATIONS_MAX {
            break;
        }
        let Some(destination) = verify(resolver, domain, destination).await? else { continue };
        if verified.iter().all(|known| known.address != destination.address) {
            verified.push(destination);
        }
    }
    Ok(verified)
}

/// The address, or another one of the same host that this host names; `None` when it may not get reports about the domain.
async fn verify(
    resolver: &dyn Resolver,
    domain: &str,
    destination: &Destination,
) -> Result<Option<Destination>, Error> {
    let host = destination.host.as_str();
    // A host within the domain belongs to it.
    if host == domain || is_within(host, domain) {
        return Ok(Some(destination.clone()));
    }
    // So does a host above it that has a DMARC record, which covers its subdomains, unless it is a public suffix (RFC 9091).
    if is_within(domain, host)
        && let Some(record) = record_of(resolver, &format!("_dmarc.{host}")).await?
        && !is_public_suffix(&record)
    {
        return Ok(Some(destination.clone()));
    }
    let Some(record) = record_of(resolver, &format!("{domain}._report._dmarc.{host}")).await? else {
        return Ok(None);
    };
    // RFC 7489 §7.1: the host may name another address, but only one of its own.
    let others = Published::parse(&record).map(|published| published.rua).unwrap_or_default();
    let other = others.into_iter().find(|other| other.host == host);
    Ok(Some(other.unwrap_or_else(|| destination.clone())))
}

/// The DMARC record of a name.
async fn record_of(resolver: &dyn Resolver, name: &str) -> Result<Option<String>, Error> {
    match resolver.txt(name).await {
        Answer::Found(records) => Ok(records.into_iter().find(|record| Published::parse(record).is_some())),
        Answer::NoSuchName | Answer::NoRecords => Ok(None),
        Answer::Temporary(why) => Err(Error::unavailable(format!("{name}: {why}"))),
    }
}

/// Whether a record is that of a domain below which others register their own domains: `psd=y`.
fn is_public_suffix(record: &str) -> bool {
    record.split(';').any(|tag| {
        tag.split_once('=').is_some_and(|(name, value)| {
            name.trim().eq_ignore_ascii_case("psd") && value.trim().eq_ignore_ascii_case("y")
        })
    })
}

fn is_within(name: &str, ancestor: &str) -> bool {
    name.strip_suffix(ancestor).is_some_and(|rest| rest.ends_with('.'))
}
