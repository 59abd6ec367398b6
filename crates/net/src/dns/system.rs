use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use async_trait::async_trait;
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig as HickoryConfig},
    net::{DnsError, NetError, runtime::TokioRuntimeProvider},
    proto::rr::{Name, RData, RecordType},
};

use super::{Answer, MxRecord, Resolver, SrvRecord, reversed};

/// The most records of one answer that are used. An answer over TCP could have thousands.
const RECORDS_MAX: usize = 100;
/// The most bytes of a `TXT` record that are used.
const TXT_BYTES_MAX: usize = 4_096;
/// The longest time for which an answer is cached, even if its records allow more.
const KEPT_MAX: Duration = Duration::from_secs(3_600);

/// How names are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolverConfig {
    /// The servers to query, with their ports; empty for those of the system (`/etc/resolv.conf`).
    pub servers: Vec<SocketAddr>,
    /// How long one server has to answer one query.
    pub timeout: Duration,
    /// How long a look-up may take in all, with all servers and retries.
    pub lookup_timeout: Duration,
    /// The most answers that are cached.
    pub cached_max: u64,
}

impl Default for ResolverConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            timeout: Duration::from_secs(5),
            lookup_timeout: Duration::from_secs(20),
            cached_max: 4_096,
        }
    }
}

/// Why names can't be looked up.
#[derive(Debug, thiserror::Error)]
#[error("can't look up names: {0}")]
pub struct ResolverError(String);

/// A resolver that queries name servers. Cloning shares its cache.
#[derive(Clone)]
pub struct SystemResolver {
    resolver: TokioResolver,
    lookup_timeout: Duration,
}

impl SystemResolver {
    /// A resolver with these settings. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// The settings of the system can't be read or used.
    pub fn new(config: &ResolverConfig) -> Result<Self, ResolverError> {
        let wrong = |error: NetError| ResolverError(error.to_string());
        let mut builder = if config.servers.is_empty() {
            TokioResolver::builder_tokio().map_err(wrong)?
        } else {
            let servers = config.servers.iter().map(server).collect();
            let servers = HickoryConfig::from_name_servers(servers);
            let mut builder = TokioResolver::builder_with_config(servers, TokioRuntimeProvider::default());
            builder.options_mut().use_hosts_file = ResolveHosts::Never;
            builder
        };
        let options = builder.options_mut();
        options.timeout = config.timeout;
        options.attempts = 2;
        options.cache_size = config.cached_max;
        options.positive_max_ttl = Some(KEPT_MAX);
        options.negative_max_ttl = Some(KEPT_MAX);
        options.try_tcp_on_error = true;
        let resolver = builder.build().map_err(wrong)?;
        Ok(Self { resolver, lookup_timeout: config.lookup_timeout })
    }

    /// The records of a type.
    async fn lookup<T>(
        &self,
        name: &str,
        record_type: RecordType,
        read: impl Fn(&RData) -> Option<T>,
    ) -> Answer<T> {
        let Ok(mut asked) = Name::from_ascii(name) else {
            return Answer::NoSuchName; // no zone can contain it
        };
        asked.set_fqdn(true);
        let lookup = self.resolver.lookup(asked.clone(), record_type);
        let found = match tokio::time::timeout(self.lookup_timeout, lookup).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return negative(&asked, &error),
            Err(_) => return Answer::Temporary("no name server answered in time".to_owned()),
        };
        let records = found.answers().iter().filter_map(|record| read(&record.data));
        let records: Vec<T> = records.take(RECORDS_MAX).collect();
        if records.is_empty() {
            // An answer with records of other types: an alias that leads nowhere, or a server that lies.
            return Answer::Temporary(
                "the name server answered with records that were not asked for".to_owned(),
            );
        }
        Answer::Found(records)
    }
}

/// A name server that is queried over UDP, and over TCP for long answers.
fn server(address: &SocketAddr) -> NameServerConfig {
    let (mut udp, mut tcp) = (ConnectionConfig::udp(), ConnectionConfig::tcp());
    (udp.port, tcp.port) = (address.port(), address.port());
    NameServerConfig::new(address.ip(), true, vec![udp, tcp])
}

/// The meaning of an answer without records. It is certain only with the SOA of a zone that contains the name: without it the
/// answer came from a server that does not know (RFC 2308 §2).
fn negative<T>(asked: &Name, error: &NetError) -> Answer<T> {
    let NetError::Dns(DnsError::NoRecordsFound(found)) = error else {
        return Answer::Temporary(one_line(&error.to_string()));
    };
    // The name at the end of aliases may be in another zone.
    let has_zone = |soa: &Name| soa.zone_of(asked) || soa.zone_of(found.query.name());
    let is_certain = found.soa.as_ref().is_some_and(|soa| has_zone(&soa.name));
    if !is_certain {
        return Answer::Temporary(format!(
            "the name server answered {} for a zone that it does not have",
            found.response_code
        ));
    }
    if error.is_nx_domain() { Answer::NoSuchName } else { Answer::NoRecords }
}

/// The first line of an error, without characters that must not be in a log or a reply.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    line.trim().to_owned()
}

/// A name as text, without the final dot; empty for the root.
fn text_of(name: &Name) -> String {
    super::plain_name(&name.to_ascii())
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn mx(&self, name: &str) -> Answer<MxRecord> {
        let read = |data: &RData| match data {
            RData::MX(mx) => Some(MxRecord { preference: mx.preference, host: text_of(&mx.exchange) }),
            _ => None,
        };
        self.lookup(name, RecordType::MX, read).await
    }

    async fn addresses(&self, name: &str) -> Answer<IpAddr> {
        let (v6, v4) = tokio::join!(self.ipv6_addresses(name), self.ipv4_addresses(name));
        v6.or(v4)
    }

    async fn txt(&self, name: &str) -> Answer<String> {
        let read = |data: &RData| match data {
            RData::TXT(txt) => {
                let mut bytes = txt.txt_data.concat();
                bytes.truncate(TXT_BYTES_MAX);
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => None,
        };
        self.lookup(name, RecordType::TXT, read).await
    }

    async fn srv(&self, name: &str) -> Answer<SrvRecord> {
        let read = |data: &RData| match data {
            RData::SRV(srv) => Some(SrvRecord {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: text_of(&srv.target),
            }),
            _ => None,
        };
        self.lookup(name, RecordType::SRV, read).await
    }

    async fn ipv4_addresses(&self, name: &str) -> Answer<IpAddr> {
        let read = |data: &RData| match data {
            RData::A(address) => Some(IpAddr::V4(address.0)),
            _ => None,
        };
        self.lookup(name, RecordType::A, read).await
    }

    async fn ipv6_addresses(&self, name: &str) -> Answer<IpAddr> {
        let read = |data: &RData| match data {
            RData::AAAA(address) => Some(IpAddr::V6(address.0)),
            _ => None,
        };
        self.lookup(name, RecordType::AAAA, read).await
    }

    async fn ptr(&self, address: IpAddr) -> Answer<String> {
        let zone = if address.is_ipv4() { "in-addr.arpa" } else { "ip6.arpa" };
        let read = |data: &RData| match data {
            RData::PTR(name) => Some(text_of(&name.0)),
            _ => None,
        };
        self.lookup(&format!("{}.{zone}", reversed(address)), RecordType::PTR, read).await
    }
}
