//! The DNS records that a domain of this server should have: as lines of a zone file, and compared with the existing ones.

mod check;

use std::fmt;

use restante_directory::Domain;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

pub use check::{Finding, Status, check};

use crate::dkim::{KeyInfo, KeyState};

/// How long resolvers may keep a record, in seconds.
const TTL_SECONDS: u32 = 3_600;
/// The longest string of a TXT record (RFC 1035 §3.3).
const STRING_BYTES_MAX: usize = 255;

/// The facts about this server and a domain that are in the domain's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFacts {
    /// The domain.
    pub domain: Domain,
    /// The name of the server to which mail for the domain goes.
    pub host: String,
    /// The DKIM keys of the domain.
    pub keys: Vec<KeyInfo>,
    /// Where clients find JMAP: a name and a port. `None` when it is not offered.
    pub jmap: Option<(String, u16)>,
    /// The port of submission with STARTTLS.
    pub submission_port: Option<u16>,
    /// The port of submission with TLS from the start.
    pub submissions_port: Option<u16>,
    /// The text of the MTA-STS policy that is served for the domain.
    pub mta_sts_policy: Option<String>,
}

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Other servers find this one (RFC 5321 §5.1).
    Mx,
    /// The name of this server has an address.
    Address,
    /// Which servers send mail of the domain (RFC 7208).
    Spf,
    /// A key that signs mail of the domain (RFC 6376).
    Dkim,
    /// What happens to mail that fails both (RFC 9989).
    Dmarc,
    /// Clients find JMAP (RFC 8620 §2.2).
    Jmap,
    /// Clients find submission with STARTTLS (RFC 6186).
    Submission,
    /// Clients find submission with TLS (RFC 8314 §5.1).
    Submissions,
    /// Where reports about TLS go (RFC 8460).
    TlsReports,
    /// Other servers look for the MTA-STS policy (RFC 8461).
    MtaSts,
    /// Where they fetch that policy.
    MtaStsHost,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A server that takes mail.
    Mx {
        /// The smallest is tried first.
        preference: u16,
        /// The server.
        host: String,
    },
    /// A text.
    Txt(String),
    /// The server of a service.
    Srv {
        /// Its port.
        port: u16,
        /// The server.
        target: String,
    },
    /// Another name for a server.
    Cname(String),
    /// An address, which only the operator knows.
    Address,
}

/// A record that a domain should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord {
    /// What it is for.
    pub purpose: Purpose,
    /// Its name, without a dot at its end.
    pub name: String,
    /// Its content.
    pub content: Content,
    /// The state of the key, for a DKIM record.
    pub key: Option<KeyState>,
}

impl Content {
    /// Its type.
    pub fn record_type(&self) -> &'static str {
        match self {
            Self::Mx { .. } => "MX",
            Self::Txt(_) => "TXT",
            Self::Srv { .. } => "SRV",
            Self::Cname(_) => "CNAME",
            Self::Address => "A",
        }
    }
}

impl fmt::Display for Content {
    /// As a zone file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mx { preference, host } => write!(f, "{preference} {host}."),
            Self::Txt(text) => f.write_str(&quoted(text)),
            Self::Srv { port, target } => write!(f, "0 1 {port} {target}."),
            Self::Cname(name) => write!(f, "{name}."),
            Self::Address => f.write_str("the address of this server"),
        }
    }
}

impl fmt::Display for DnsRecord {
    /// As a line of a zone file. A record that only the operator can complete becomes a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.content == Content::Address { "; " } else { "" };
        let (name, record_type, content) = (&self.name, self.content.record_type(), &self.content);
        write!(f, "{mark}{name}. {TTL_SECONDS} IN {record_type} {content}")
    }
}

/// A text as quoted strings of at most 255 bytes each (RFC 1035 §5.1).
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    for (at, string) in text.as_bytes().chunks(STRING_BYTES_MAX).enumerate() {
        quoted.push_str(if at == 0 { "\"" } else { " \"" });
        for byte in string {
            match byte {
                b'"' | b'\\' => quoted.extend(['\\', char::from(*byte)]),
                b' '..=b'~' => quoted.push(char::from(*byte)),
                _ => quoted.push_str(&format!("\\{byte:03}")),
            }
        }
        quoted.push('"');
    }
    quoted
}

/// The records that a domain should have, the most important first.
pub fn expected(facts: &DomainFacts) -> Vec<DnsRecord> {
    let (domain, host) = (facts.domain.as_str(), facts.host.as_str());
    let mut records = Vec::new();
    let mut add = |purpose, name: String, content| {
        records.push(DnsRecord { purpose, name, content, key: None });
    };
    let postmaster = format!("postmaster@{domain}");
    add(Purpose::Mx, domain.to_owned(), Content::Mx { preference: 10, host: host.to_owned() });
    add(Purpose::Address, host.to_owned(), Content::Address);
    add(Purpose::Spf, domain.to_owned(), Content::Txt("v=spf1 mx -all".to_owned()));
    let dmarc = format!("v=DMARC1; p=quarantine; rua=mailto:{postmaster}");
    add(Purpose::Dmarc, format!("_dmarc.{domain}"), Content::Txt(dmarc));
    if let Some((target, port)) = facts.jmap.clone() {
        add(Purpose::Jmap, format!("_jmap._tcp.{domain}"), Content::Srv { port, target });
    }
    if let Some(port) = facts.submissions_port {
        let target = host.to_owned();
        add(Purpose::Submissions, format!("_submissions._tcp.{domain}"), Content::Srv { port, target });
    }
    if let Some(port) = facts.submission_port {
        let target = host.to_owned();
        add(Purpose::Submission, format!("_submission._tcp.{domain}"), Content::Srv { port, target });
    }
    let reports = format!("v=TLSRPTv1; rua=mailto:{postmaster}");
    add(Purpose::TlsReports, format!("_smtp._tls.{domain}"), Content::Txt(reports));
    if let Some(policy) = &facts.mta_sts_policy {
        let text = format!("v=STSv1; id={}", policy_id(policy));
        add(Purpose::MtaSts, format!("_mta-sts.{domain}"), Content::Txt(text));
        add(Purpose::MtaStsHost, format!("mta-sts.{domain}"), Content::Cname(host.to_owned()));
    }
    let keys = facts.keys.iter().map(|key| DnsRecord {
        purpose: Purpose::Dkim,
        name: key.record_name(),
        content: Content::Txt(key.record_text()),
        key: Some(key.state),
    });
    records.extend(keys);
    // Records of a kind stay in their order.
    records.sort_by_key(|record| record.purpose);
    records
}

/// The id of a policy: it changes when, and only when, the policy does (RFC 8461 §3.1).
fn policy_id(policy: &str) -> String {
    let hash = digest(&SHA256, policy.as_bytes());
    hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
