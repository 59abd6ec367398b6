//! TLS policies of domains by MTA-STS (RFC 8461): announced in the DNS, fetched by HTTPS, and kept in memory and in a file.

mod fetch;
mod file;
mod parse;

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::Clock;
use restante_net::dns::{Answer, Resolver};
use tokio::time::timeout;
use tracing::debug;

use super::{Network, RemoteConfig, TlsPolicies, TlsPolicy, trust::TrustedTls};
use file::PolicyFile;
use parse::{Mode, Policy};

/// The most domains whose policies are kept.
const DOMAINS_MAX: usize = 4_096;
/// How long fetching a policy may take (RFC 8461 §3.3).
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait before a policy that could not be fetched is fetched again.
const RETRY_SECONDS: i64 = 300;

/// TLS policies by MTA-STS. They are kept for as long as they are valid.
pub struct StsPolicies {
    resolver: Arc<dyn Resolver>,
    network: Arc<dyn Network>,
    trust: TrustedTls,
    clock: Arc<dyn Clock>,
    known: Arc<Mutex<HashMap<String, Known>>>,
    file: Option<PolicyFile>,
}

/// What is known of a domain.
#[derive(Clone, Debug)]
struct Known {
    /// The id of the policy that was last fetched, or could not be.
    id: String,
    /// The policy, and until when it is valid, in seconds since 1970.
    policy: Option<(Policy, i64)>,
    /// When it may be fetched again although the id is the same: the last fetch failed.
    retry: Option<i64>,
}

impl StsPolicies {
    /// Looks policies up with these, and checks their servers by the authorities of the settings.
    pub fn new(
        config: &RemoteConfig,
        resolver: Arc<dyn Resolver>,
        network: Arc<dyn Network>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let trust = TrustedTls::new(&config.authorities);
        Self { resolver, network, trust, clock, known: Arc::default(), file: None }
    }

    /// The same, with the policies in the file of this folder, which is written a second after a policy was fetched: an attacker
    /// that hides the record of a domain can't switch TLS off by waiting for a restart (RFC 8461 §10.2).
    #[must_use]
    pub fn with_folder(mut self, folder: &Path) -> Self {
        let (file, known) = PolicyFile::open(folder, self.clock.now().seconds());
        *self.known.lock() = known;
        self.file = Some(file);
        self
    }

    /// The current policy of a domain: the one that was fetched last applies until it expires, no matter what the DNS says (RFC 8461 §5.1).
    async fn current(&self, domain: &str) -> Option<Policy> {
        let now = self.clock.now().seconds();
        let known = self.known.lock().get(domain).cloned();
        let id = match self.resolver.txt(&format!("_mta-sts.{domain}")).await {
            Answer::Found(records) => parse::id_of(&records),
            Answer::NoRecords | Answer::NoSuchName | Answer::Temporary(_) => None,
        };
        let held = known.as_ref().and_then(|known| known.policy.clone()).filter(|(_, until)| now < *until);
        let Some(id) = id else { return held.map(|(policy, _)| policy) };
        let is_same = known.as_ref().is_some_and(|known| known.id == id);
        let retry = known.and_then(|known| known.retry);
        let is_enough = match retry {
            Some(retry) => now < retry,
            None => held.is_some(),
        };
        if is_same && is_enough {
            return held.map(|(policy, _)| policy);
        }
        let fetching = fetch::policy(&*self.resolver, &*self.network, &self.trust, domain);
        let fetched = timeout(FETCH_TIMEOUT, Box::pin(fetching))
            .await
            .unwrap_or_else(|_| Err("it took too long".to_owned()));
        let known = match fetched {
            Ok(policy) => {
                let until = now.saturating_add(policy.max_age_seconds);
                Known { id, policy: Some((policy, until)), retry: None }
            }
            Err(why) => {
                debug!(domain, why, "the TLS policy of a domain can't be fetched");
                Known { id, policy: held, retry: Some(now + RETRY_SECONDS) }
            }
        };
        let policy = known.policy.clone().map(|(policy, _)| policy);
        let is_new = known.retry.is_none();
        self.keep(domain, known, now);
        if let Some(file) = self.file.as_ref().filter(|_| is_new) {
            file.write_soon(&self.known);
        }
        policy
    }

    fn keep(&self, domain: &str, new: Known, now: i64) {
        let mut known = self.known.lock();
        if known.len() >= DOMAINS_MAX && !known.contains_key(domain) {
            known.retain(|_, known| known.policy.as_ref().is_some_and(|(_, until)| now < *until));
            // All of them are valid: the one that expires first is removed.
            let until = |known: &Known| known.policy.as_ref().map_or(0, |(_, until)| *until);
            if known.len() >= DOMAINS_MAX
                && let Some(first) =
                    known.iter().min_by_key(|(_, known)| until(known)).map(|(name, _)| name.clone())
            {
                known.remove(&first);
            }
        }
        known.insert(domain.to_owned(), new);
    }
}

#[async_trait]
impl TlsPolicies for StsPolicies {
    async fn policy_of(&self, domain: &str) -> TlsPolicy {
        let Some(domain) = crate::route::ascii(domain) else { return TlsPolicy::Opportunistic };
        match self.current(&domain).await {
            Some(Policy { mode: Mode::Enforce, hosts, .. }) => TlsPolicy::Verified { hosts },
            Some(_) | None => TlsPolicy::Opportunistic,
        }
    }
}

#[cfg(test)]
mod tests;
