use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use restante_core::Clock;
use restante_mail_wire::header::{Header, as_addresses};
use restante_net::dns::Resolver;
use tokio::time::{Instant, timeout_at};

use super::{
    Authentication, DkimSignature, Outcome,
    arc::{self, Chain},
    dkim::{self, BodyHashes, Candidate, Keys},
    dmarc,
    message::{HEADER_BYTES_MAX, Message},
    names, spf,
};
use crate::Peer;

/// Computing on shorter messages does not block a worker of the runtime.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// The most keys that are verified on a worker of the runtime.
const INLINE_KEYS_MAX: usize = 4;
/// The most `From` fields, and addresses in one, that are parsed.
const FROM_MAX: usize = 100;

/// Finds out which domains authenticate a message. Cloning shares the resolver.
#[derive(Clone)]
pub struct Authenticator {
    resolver: Arc<dyn Resolver>,
    clock: Arc<dyn Clock>,
    timeout: Duration,
}

/// The results that need keys: each signature, the chain, and the domain that sealed it last.
type Verified = (Vec<DkimSignature>, Outcome, Option<String>);

impl Authenticator {
    /// With this resolver and clock. What is not found within `timeout` is `TempError`.
    pub fn new(resolver: Arc<dyn Resolver>, clock: Arc<dyn Clock>, timeout: Duration) -> Self {
        Self { resolver, clock, timeout }
    }

    /// Authenticates a message. `sender` is that of the envelope, empty for `<>`; `raw` is what the client sent, without fields
    /// of this server.
    pub async fn authenticate(&self, peer: &Peer, sender: &str, raw: &Bytes) -> Authentication {
        // DMARC needs the results of the others: they get three quarters of the time.
        let now = Instant::now();
        let (deadline, end) = (now + self.timeout * 3 / 4, now + self.timeout);
        let resolver = &*self.resolver;
        let identity = spf::Identity { address: peer.address, hello: &peer.hello, sender };
        let (from, from_fields) = from(raw);
        let mut found = Authentication { from, from_fields, ..Authentication::UNKNOWN };
        found.spf_domain = spf::domain_of(identity);

        let (spf, verified, walk) = tokio::join!(
            Box::pin(timeout_at(deadline, spf::check(resolver, identity, &found.spf_domain))),
            Box::pin(self.verify(raw, deadline)),
            Box::pin(async {
                match &found.from {
                    Some(domain) => Some(timeout_at(deadline, dmarc::walk(resolver, domain)).await),
                    None => None,
                }
            })
        );
        found.spf = spf.unwrap_or(Outcome::TempError);
        (found.dkim, found.arc, found.arc_domain) = verified;
        match walk {
            // Several authors, or none: there is no domain to query (RFC 7489 §6.6.1).
            None => {}
            Some(Err(_)) => found.dmarc = Outcome::TempError,
            Some(Ok(walk)) => {
                let judged = Box::pin(timeout_at(end, dmarc::judge(resolver, &walk, raw, &mut found))).await;
                if judged.is_err() {
                    found.dmarc = Outcome::TempError;
                }
            }
        }
        found
    }

    /// Verifies signatures and seals.
    async fn verify(&self, raw: &Bytes, deadline: Instant) -> Verified {
        let now = u64::try_from(self.clock.now().0 / 1_000_000_000).unwrap_or(0);
        let is_short = raw.len() <= INLINE_BYTES_MAX;
        let raw = raw.clone();
        let Some((message, candidates, chain)) = compute(is_short, move || read(raw, now)).await else {
            return (Vec::new(), Outcome::None, None);
        };
        let mut names = chain.key_names();
        names.extend(candidates.iter().filter_map(Candidate::key_name));
        names.sort_unstable();
        names.dedup();
        let is_quick = is_short && names.len() <= INLINE_KEYS_MAX;
        let keys = timeout_at(deadline, dkim::look_up(&*self.resolver, names)).await;
        // A key that did not arrive in time counts as not known now.
        let keys = keys.unwrap_or_default();
        compute(is_quick, move || verify_with(&message, candidates, chain, &keys)).await
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Authenticator").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Parses signatures and chain. `None` if the header of the message is too long.
fn read(raw: Bytes, now: u64) -> Option<(Message, Vec<Candidate>, Chain)> {
    let message = Message::parse(raw)?;
    let mut hashes = BodyHashes::default();
    let candidates = dkim::read(&message, &mut hashes, now);
    let chain = arc::read(&message, &mut hashes, now);
    Some((message, candidates, chain))
}

fn verify_with(message: &Message, candidates: Vec<Candidate>, chain: Chain, keys: &Keys) -> Verified {
    let signatures = dkim::verify(message, candidates, keys);
    let (arc, domain) = arc::verify(message, chain, keys);
    (signatures, arc, domain)
}

/// Computes at once what is quick, and the rest on a thread where it blocks nothing.
async fn compute<T: Send + 'static>(is_quick: bool, work: impl FnOnce() -> T + Send + 'static) -> T {
    if is_quick {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // The runtime ends only with the process; a panic is passed on.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}

/// The domain in the `From` field, when there is one such field with one domain; and how many such fields there are.
fn from(raw: &[u8]) -> (Option<String>, usize) {
    let header = Header::parse(raw.get(..HEADER_BYTES_MAX).unwrap_or(raw));
    let fields: Vec<_> = header.all("From").take(FROM_MAX).collect();
    let [field] = fields.as_slice() else {
        return (None, fields.len());
    };
    let addresses = as_addresses(field.value);
    let mut domains = addresses.iter().take(FROM_MAX).map(|address| names::domain_of(&address.email));
    let first = domains.next().flatten();
    let is_one = addresses.len() <= FROM_MAX && domains.all(|other| other == first);
    (first.filter(|_| is_one), 1)
}
