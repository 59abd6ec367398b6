//! Whether a domain permits a client to send mail for it (RFC 7208).

mod macros;
mod record;

use std::{future::Future, net::IpAddr, pin::Pin};

use restante_net::dns::{Answer, Resolver};

use self::{
    macros::{DomainSpec, Variables},
    record::{Mechanism, Qualifier, Record, is_spf},
};
use super::{Outcome, names};

/// The most terms that look something up (RFC 7208 §4.6.4).
const LOOKUPS_MAX: usize = 10;
/// The most look-ups that find nothing (RFC 7208 §4.6.4).
const VOID_LOOKUPS_MAX: usize = 2;
/// The most servers of an `mx`, and names of an address, that are looked up (RFC 7208 §4.6.4).
const NAMES_MAX: usize = 10;

/// The identity that is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity<'i> {
    /// Where the client connects from.
    pub(super) address: IpAddr,
    /// The name in the client's greeting.
    pub(super) hello: &'i str,
    /// The envelope sender, empty for `<>`.
    pub(super) sender: &'i str,
}

/// The domain to check: that of the sender, or the client's greeting for `<>` (RFC 7208 §2.3, §2.4).
pub(super) fn domain_of(identity: Identity<'_>) -> String {
    let domain = match identity.sender.rsplit_once('@') {
        Some((_, domain)) => domain,
        None => identity.hello,
    };
    names::ascii(domain).unwrap_or_default()
}

/// Evaluates the record of a domain: `check_host` of RFC 7208 §4.
pub(super) async fn check(resolver: &dyn Resolver, identity: Identity<'_>, domain: &str) -> Outcome {
    // RFC 7208 §4.3: what can't be a domain has no record. An address literal is not a domain.
    if !names::is_domain(domain) {
        return Outcome::None;
    }
    let local_part = match identity.sender.rsplit_once('@') {
        Some((local_part, _)) if !local_part.is_empty() => local_part,
        _ => "postmaster",
    };
    let variables = Variables {
        sender: format!("{local_part}@{domain}"),
        hello: identity.hello.to_owned(),
        address: identity.address.to_canonical(),
    };
    let mut evaluation = Evaluation { resolver, variables, lookups: 0, void_lookups: 0, names: None };
    match evaluation.check_host(domain.to_owned()).await {
        Ok(outcome) => outcome,
        Err(Stop::NoRecord) => Outcome::None,
        Err(Stop::Temporary) => Outcome::TempError,
        Err(Stop::Permanent) => Outcome::PermError,
    }
}

/// Why an evaluation ends without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    NoRecord,
    Temporary,
    Permanent,
}

impl From<record::Malformed> for Stop {
    fn from(_: record::Malformed) -> Self {
        Self::Permanent
    }
}

type Evaluated<'e> = Pin<Box<dyn Future<Output = Result<Outcome, Stop>> + Send + 'e>>;

struct Evaluation<'r> {
    resolver: &'r dyn Resolver,
    variables: Variables,
    lookups: usize,
    void_lookups: usize,
    /// The names of the client that resolve back to its address, once they were looked up.
    names: Option<Vec<String>>,
}

impl Evaluation<'_> {
    /// Evaluates the record of a domain. It calls itself for `include` and `redirect`, as deep as the limit on look-ups allows.
    fn check_host(&mut self, domain: String) -> Evaluated<'_> {
        Box::pin(async move {
            let record = self.record(&domain).await?;
            for (qualifier, mechanism) in &record.directives {
                if self.matches(mechanism, &domain).await? {
                    return Ok(match qualifier {
                        Qualifier::Pass => Outcome::Pass,
                        Qualifier::Fail => Outcome::Fail,
                        Qualifier::SoftFail => Outcome::SoftFail,
                        Qualifier::Neutral => Outcome::Neutral,
                    });
                }
            }
            let Some(redirect) = &record.redirect else {
                return Ok(Outcome::Neutral); // RFC 7208 §4.7
            };
            self.count_lookup()?;
            let target = self.expand(redirect, &domain).await?;
            self.check_named(target).await
        })
    }

    /// Evaluates the record of a domain to which another record refers, which must have one.
    async fn check_named(&mut self, domain: String) -> Result<Outcome, Stop> {
        if !names::is_name(&domain) {
            return Err(Stop::Permanent);
        }
        match self.check_host(domain).await {
            Err(Stop::NoRecord) => Err(Stop::Permanent), // RFC 7208 §5.2, §6.1
            result => result,
        }
    }

    /// The record of a domain (RFC 7208 §4.4, §4.5).
    async fn record(&mut self, domain: &str) -> Result<Record, Stop> {
        let texts = match self.resolver.txt(domain).await {
            Answer::Found(texts) => texts,
            Answer::NoSuchName | Answer::NoRecords => return Err(Stop::NoRecord),
            Answer::Temporary(_) => return Err(Stop::Temporary),
        };
        let mut records = texts.iter().filter(|text| is_spf(text));
        let record = records.next().ok_or(Stop::NoRecord)?;
        if records.next().is_some() {
            return Err(Stop::Permanent);
        }
        Ok(Record::parse(record)?)
    }

    async fn matches(&mut self, mechanism: &Mechanism, domain: &str) -> Result<bool, Stop> {
        let address = self.variables.address;
        match mechanism {
            Mechanism::All => Ok(true),
            Mechanism::Network(network, prefixes) => Ok(prefixes.contain(*network, address)),
            Mechanism::Include(spec) => {
                self.count_lookup()?;
                let target = self.expand(spec, domain).await?;
                Ok(self.check_named(target).await? == Outcome::Pass)
            }
            Mechanism::A(spec, prefixes) => {
                self.count_lookup()?;
                let host = self.target(spec.as_ref(), domain).await?;
                let found = self.addresses(&host).await?;
                Ok(found.iter().any(|found| prefixes.contain(*found, address)))
            }
            Mechanism::Mx(spec, prefixes) => {
                self.count_lookup()?;
                let host = self.target(spec.as_ref(), domain).await?;
                let servers =
                    if names::is_name(&host) { self.resolver.mx(&host).await } else { Answer::NoSuchName };
                let servers = self.found(servers)?;
                if servers.len() > NAMES_MAX {
                    return Err(Stop::Permanent);
                }
                for server in servers {
                    let found = self.addresses(&server.host).await?;
                    if found.iter().any(|found| prefixes.contain(*found, address)) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Mechanism::Exists(spec) => {
                self.count_lookup()?;
                let host = self.expand(spec, domain).await?;
                // RFC 7208 §5.7: IPv4 addresses are looked up for clients of both families.
                let found = if names::is_name(&host) {
                    self.resolver.ipv4_addresses(&host).await
                } else {
                    Answer::NoSuchName
                };
                Ok(!self.found(found)?.is_empty())
            }
            Mechanism::Ptr(spec) => {
                self.count_lookup()?;
                let target = self.target(spec.as_ref(), domain).await?.to_ascii_lowercase();
                Ok(self.validated_names().await.iter().any(|name| names::is_within(name, &target)))
            }
        }
    }

    fn count_lookup(&mut self) -> Result<(), Stop> {
        self.lookups += 1;
        if self.lookups > LOOKUPS_MAX { Err(Stop::Permanent) } else { Ok(()) }
    }

    /// The records of an answer. Only a few look-ups may find nothing.
    fn found<T>(&mut self, answer: Answer<T>) -> Result<Vec<T>, Stop> {
        match answer {
            Answer::Found(records) => Ok(records),
            Answer::Temporary(_) => Err(Stop::Temporary),
            Answer::NoSuchName | Answer::NoRecords => {
                self.void_lookups += 1;
                if self.void_lookups > VOID_LOOKUPS_MAX { Err(Stop::Permanent) } else { Ok(Vec::new()) }
            }
        }
    }

    /// The addresses of a host, in the client's address family.
    async fn addresses(&mut self, host: &str) -> Result<Vec<IpAddr>, Stop> {
        if !names::is_name(host) {
            return self.found(Answer::NoSuchName);
        }
        let answer = of_family(self.resolver, self.variables.address, host).await;
        self.found(answer)
    }

    /// The domain of a term, or that of the record.
    async fn target(&mut self, spec: Option<&DomainSpec>, domain: &str) -> Result<String, Stop> {
        match spec {
            Some(spec) => self.expand(spec, domain).await,
            None => Ok(domain.to_owned()),
        }
    }

    async fn expand(&mut self, spec: &DomainSpec, domain: &str) -> Result<String, Stop> {
        let mut validated = "unknown".to_owned();
        if spec.needs_validated_name() {
            // RFC 7208 §7.3: prefer the domain itself, then a subdomain, then any.
            let found = self.validated_names().await;
            let chosen = found
                .iter()
                .find(|name| *name == domain)
                .or_else(|| found.iter().find(|name| names::is_within(name, domain)))
                .or_else(|| found.first());
            validated = chosen.cloned().unwrap_or(validated);
        }
        Ok(spec.expand(&self.variables, domain, &validated))
    }

    /// The client's names that resolve back to its address (RFC 7208 §5.5); names that can't be looked up are left out.
    async fn validated_names(&mut self) -> Vec<String> {
        if let Some(found) = &self.names {
            return found.clone();
        }
        let address = self.variables.address;
        let mut validated = Vec::new();
        for name in self.resolver.ptr(address).await.records().into_iter().take(NAMES_MAX) {
            let leads_back = of_family(self.resolver, address, &name).await.records().contains(&address);
            if leads_back {
                validated.push(name);
            }
        }
        self.names = Some(validated.clone());
        validated
    }
}

/// The addresses of a host, in the family of this address.
async fn of_family(resolver: &dyn Resolver, address: IpAddr, host: &str) -> Answer<IpAddr> {
    if address.is_ipv4() { resolver.ipv4_addresses(host).await } else { resolver.ipv6_addresses(host).await }
}
