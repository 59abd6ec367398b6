//! Signs outgoing mail.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::Error;
use restante_directory::{Domain, account_of_domain};
use restante_mail::{dkim, queue::SourceKind};
use restante_mail_wire::header::{Header, as_addresses};
use restante_records::Revision;
use tokio::sync::Semaphore;

use super::{
    arc, canonical,
    keys::DkimKeys,
    signature::{self, SigningKey},
};
use crate::{Outgoing, Signer};

/// The most domains whose keys are remembered; an RSA key takes about 5 KiB.
const DOMAINS_MAX: usize = 1_024;

/// Signs messages by the domain of their `From` field, with the active keys of that domain; and seals forwarded ones by the domain of the alias.
pub struct DomainSigner {
    keys: DkimKeys,
    /// The name of this server in `Authentication-Results`; `None` when nothing is sealed.
    hostname: Option<String>,
    remembered: Mutex<HashMap<Domain, Remembered>>,
    /// One permit for each processor: a message of 50 MB takes 100 ms, and RSA a millisecond.
    cores: Arc<Semaphore>,
}

/// The active keys of a domain, which are valid as long as no key in the same reserved account changes.
#[derive(Clone)]
struct Remembered {
    state: Revision,
    keys: Arc<Vec<SigningKey>>,
}

impl DomainSigner {
    /// A signer with these keys.
    pub fn new(keys: DkimKeys) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { keys, hostname: None, remembered: Mutex::default(), cores: Arc::new(Semaphore::new(cores)) }
    }

    /// The same with ARC sets on forwarded mail (RFC 8617), which repeat the `Authentication-Results` field of the server with this name.
    pub fn sealing(self, hostname: &str) -> Self {
        Self { hostname: Some(hostname.to_owned()), ..self }
    }

    /// The active keys of a domain. The state of their kind shows when another server has changed a key.
    async fn active(&self, domain: &Domain) -> Result<Arc<Vec<SigningKey>>, Error> {
        let account = account_of_domain(domain);
        let state = self.keys.records().states(account).await?.of(dkim::KIND);
        let known = self.remembered.lock().get(domain).cloned();
        if let Some(known) = known.filter(|known| known.state == state) {
            return Ok(known.keys);
        }
        let (keys, state) = self.keys.signing(domain).await?;
        let keys = Arc::new(keys);
        // Domains without keys are not remembered: anybody can write any domain into From.
        if !keys.is_empty() {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= DOMAINS_MAX {
                remembered.clear();
            }
            remembered.insert(domain.clone(), Remembered { state, keys: keys.clone() });
        }
        Ok(keys)
    }

    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.remembered.lock().len()
    }
}

#[async_trait]
impl Signer for DomainSigner {
    async fn sign(&self, message: &Outgoing) -> Result<Vec<u8>, Error> {
        // Mail from other servers is not ours to sign, no matter what its From field says: it is sealed.
        let sealed_as = self.hostname.clone().filter(|_| message.source == SourceKind::Forward);
        let domain = match (message.source, &sealed_as) {
            (SourceKind::Forward, None) => None,
            (SourceKind::Forward, Some(_)) => arc::alias_domain(&message.bytes),
            _ => author_domain(&message.bytes),
        };
        let Some(domain) = domain else { return Ok(Vec::new()) };
        let keys = self.active(&domain).await?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (bytes, now) = (message.bytes.clone(), self.keys.now().seconds());
        let closed = |_| Error::internal("signing has ended");
        let _permit = self.cores.acquire().await.map_err(closed)?;
        let signed = tokio::task::spawn_blocking(move || match sealed_as {
            Some(hostname) => seal_with(&keys, &domain, &hostname, &bytes, now),
            None => sign_with(&keys, &domain, &bytes, now),
        });
        let signed = signed.await;
        signed.map_err(|_| Error::internal("a task that signs has ended early"))?
    }
}

/// The signatures of a message.
fn sign_with(keys: &[SigningKey], domain: &Domain, message: &Bytes, now: i64) -> Result<Vec<u8>, Error> {
    let header = Header::parse(message);
    let body = message.get(header.bytes()..).unwrap_or_default();
    let hash = canonical::body_hash(body);
    let mut fields = Vec::new();
    for key in keys {
        fields.extend(signature::sign(key, domain.as_str(), &header, hash.as_ref(), now)?);
    }
    Ok(fields)
}

/// The ARC set of a message, by one key: RSA, which all servers verify, if there is one.
fn seal_with(
    keys: &[SigningKey],
    domain: &Domain,
    hostname: &str,
    message: &Bytes,
    now: i64,
) -> Result<Vec<u8>, Error> {
    let Some(key) = keys.first() else { return Ok(Vec::new()) };
    let header = Header::parse(message);
    let body = message.get(header.bytes()..).unwrap_or_default();
    let hash = canonical::body_hash(body);
    let sealer = arc::Sealer { key, domain: domain.as_str(), hostname, now };
    sealer.set(&header, hash.as_ref())
}

/// The domain of the only `From` field. `None` if there are several fields or domains: it is not known which of them readers see.
fn author_domain(message: &[u8]) -> Option<Domain> {
    let header = Header::parse(message);
    let mut fields = header.all("From");
    let from = fields.next()?;
    if fields.next().is_some() {
        return None;
    }
    let mut author = None;
    for address in as_addresses(from.value) {
        let (_, domain) = address.email.rsplit_once('@')?;
        let domain: Domain = domain.parse().ok()?;
        if author.as_ref().is_some_and(|other| *other != domain) {
            return None;
        }
        author = Some(domain);
    }
    author
}
