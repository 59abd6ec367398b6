//! Checks whether a domain has the records that it should have.

use futures_util::{StreamExt, stream};
use restante_net::dns::{Answer, MxRecord, Resolver, SrvRecord};
use serde::{Deserialize, Serialize};

use super::{Content, DnsRecord, DomainFacts, Purpose, expected};
use crate::dkim::KeyState;

/// The most look-ups at the same time.
const PARALLEL_MAX: usize = 8;
/// The most records of one name that are shown.
const SHOWN_MAX: usize = 10;

/// The state of a record in the DNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It exists, and is right.
    Ok,
    /// It does not exist.
    Missing,
    /// There is another record instead.
    Differs,
    /// It can't be determined: no name server answers, or the content can't be judged from here.
    Unknown,
}

/// The result of the check of one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What the record is for.
    pub purpose: Purpose,
    /// Its name.
    pub name: String,
    /// Its type.
    pub record_type: String,
    /// Its state.
    pub status: Status,
    /// The expected content.
    pub expected: String,
    /// The content that was found, at most ten records.
    pub found: Vec<String>,
    /// What to do, in a sentence; `None` when the record is right.
    pub advice: Option<String>,
}

/// The result of comparing a record.
struct Verdict {
    status: Status,
    found: Vec<String>,
    advice: Option<String>,
}

impl Verdict {
    fn ok(found: Vec<String>) -> Self {
        Self { status: Status::Ok, found, advice: None }
    }

    fn missing(advice: &str) -> Self {
        Self { status: Status::Missing, found: Vec::new(), advice: Some(advice.to_owned()) }
    }

    fn differs(found: Vec<String>, advice: impl Into<String>) -> Self {
        Self { status: Status::Differs, found, advice: Some(advice.into()) }
    }

    fn unknown(found: Vec<String>, advice: impl Into<String>) -> Self {
        Self { status: Status::Unknown, found, advice: Some(advice.into()) }
    }

    /// The verdict on an answer without records, or on a look-up that failed.
    fn of_nothing<T>(answer: &Answer<T>, advice: &str) -> Self {
        match answer {
            Answer::Temporary(why) => Self::unknown(
                Vec::new(),
                format!("The look-up failed ({why}): check the name servers of the domain, and try again."),
            ),
            Answer::Found(_) | Answer::NoSuchName | Answer::NoRecords => Self::missing(advice),
        }
    }
}

/// Looks up each record that a domain should have, in the order of [`expected`]. If a name server does not answer, this is a
/// finding and not an error.
pub async fn check(facts: &DomainFacts, resolver: &dyn Resolver) -> Vec<Finding> {
    let checks = expected(facts).into_iter().map(|record| check_one(facts, record, resolver));
    stream::iter(checks).buffered(PARALLEL_MAX).collect().await
}

async fn check_one(facts: &DomainFacts, record: DnsRecord, resolver: &dyn Resolver) -> Finding {
    let verdict = match &record.content {
        Content::Mx { host, .. } => mx(host, resolver.mx(&record.name).await),
        Content::Srv { port, target } => srv(*port, target, resolver.srv(&record.name).await),
        Content::Txt(text) => txt(facts, &record, text, resolver.txt(&record.name).await),
        Content::Address => match resolver.addresses(&record.name).await {
            Answer::Found(addresses) => Verdict::ok(addresses.iter().map(ToString::to_string).collect()),
            nothing => {
                Verdict::of_nothing(&nothing, "Add A and AAAA records with the addresses of this server.")
            }
        },
        // The target of the name does not matter, as long as this server answers there.
        Content::Cname(host) => mta_sts_host(&record.name, host, resolver).await,
    };
    let Verdict { status, mut found, advice } = verdict;
    found.truncate(SHOWN_MAX);
    Finding {
        purpose: record.purpose,
        record_type: record.content.record_type().to_owned(),
        expected: record.content.to_string(),
        name: record.name,
        status,
        found,
        advice,
    }
}

fn mx(host: &str, answer: Answer<MxRecord>) -> Verdict {
    let Answer::Found(mut servers) = answer else {
        return Verdict::of_nothing(
            &answer,
            "Add the record: without it other servers may not find this one.",
        );
    };
    servers.sort_unstable();
    let found = servers.iter().map(|server| format!("{} {}.", server.preference, server.host)).collect();
    if servers.iter().all(|server| server.host.is_empty()) {
        return Verdict::differs(
            found,
            "The domain says that it takes no mail (RFC 7505): replace the record.",
        );
    }
    match servers.iter().position(|server| server.host.eq_ignore_ascii_case(host)) {
        Some(0) => Verdict::ok(found),
        Some(_) => Verdict {
            advice: Some(
                "Other servers come first: make sure that they pass mail on to this one.".to_owned(),
            ),
            ..Verdict::ok(found)
        },
        None => Verdict::differs(found, format!("Mail goes to other servers: add this one, {host}.")),
    }
}

fn srv(port: u16, target: &str, answer: Answer<SrvRecord>) -> Verdict {
    let Answer::Found(servers) = answer else {
        return Verdict::of_nothing(&answer, "Add the record, so that mail programs find their settings.");
    };
    let found = servers
        .iter()
        .map(|SrvRecord { priority, weight, port, target }| format!("{priority} {weight} {port} {target}."))
        .collect();
    let is_ours = |server: &SrvRecord| server.port == port && server.target.eq_ignore_ascii_case(target);
    match servers.iter().any(is_ours) {
        true => Verdict::ok(found),
        false => {
            Verdict::differs(found, format!("Mail programs are led elsewhere: use port {port} of {target}."))
        }
    }
}

fn txt(facts: &DomainFacts, record: &DnsRecord, text: &str, answer: Answer<String>) -> Verdict {
    let (version, advice) = match record.purpose {
        Purpose::Spf => {
            ("v=spf1", "Add the record: without it mail of the domain looks forged to many servers.")
        }
        Purpose::Dmarc => ("v=DMARC1", "Add the record: without it anybody may use the domain as sender."),
        Purpose::TlsReports => ("v=TLSRPTv1", "Add the record to get reports about failed TLS connections."),
        Purpose::MtaSts => ("v=STSv1", "Add the record: without it other servers don't look for the policy."),
        _ => ("", of_missing_key(record.key)),
    };
    let Answer::Found(all) = answer else { return Verdict::of_nothing(&answer, advice) };
    // Other texts may have the same name, except at the name of a key.
    let ours: Vec<String> = all.into_iter().filter(|text| has_version(text, version)).collect();
    let [found] = ours.as_slice() else {
        return match ours.is_empty() {
            true => Verdict::missing(advice),
            false => {
                Verdict::differs(ours, "There are several such records, and servers use none then: keep one.")
            }
        };
    };
    let found = found.clone();
    match record.purpose {
        Purpose::Spf => spf(facts, found),
        Purpose::Dmarc => match tag(&found, "p").as_deref() {
            Some("none") => Verdict {
                advice: Some(
                    "Forged mail is only reported: use p=quarantine or p=reject when reports are good."
                        .into(),
                ),
                ..Verdict::ok(vec![found])
            },
            Some("quarantine" | "reject") => Verdict::ok(vec![found]),
            _ => Verdict::differs(vec![found], "Its p= is none of none, quarantine and reject: correct it."),
        },
        Purpose::TlsReports => match tag(&found, "rua").is_some_and(|to| !to.is_empty()) {
            true => Verdict::ok(vec![found]),
            false => {
                Verdict::differs(vec![found], "It names no address for reports: add rua=mailto:ADDRESS.")
            }
        },
        Purpose::MtaSts => match tag(&found, "id") == tag(text, "id") {
            true => Verdict::ok(vec![found]),
            false => Verdict::differs(
                vec![found],
                "Its id= is that of another policy: replace it, so that servers read the new one.",
            ),
        },
        _ => dkim(record.key, text, found),
    }
}

fn of_missing_key(state: Option<KeyState>) -> &'static str {
    match state {
        Some(KeyState::Active) => "Add the record now: mail is signed with this key, and can't be verified.",
        Some(KeyState::Retired) => {
            "Keep the record for a week after the key was retired, then remove the key."
        }
        Some(KeyState::Waiting) | None => "Add the record, then activate the key.",
    }
}

fn dkim(state: Option<KeyState>, expected: &str, found: String) -> Verdict {
    let same = |name: &str| tag(expected, name) == tag(&found, name);
    // RFC 6376 §3.6.1: v= and k=rsa may be left out.
    let has_type = same("k") || (tag(expected, "k").as_deref() == Some("rsa") && tag(&found, "k").is_none());
    if same("p") && has_type {
        return Verdict {
            advice: (state == Some(KeyState::Waiting))
                .then(|| "It is published: the key can be activated.".to_owned()),
            ..Verdict::ok(vec![found])
        };
    }
    let advice = match tag(&found, "p").as_deref() {
        Some("") => "The record revokes the key: publish it again, or use another key.",
        _ => "Another key is published: replace it by this one.",
    };
    Verdict::differs(vec![found], advice)
}

/// Whether SPF permits this server, as far as that can be seen without an evaluation.
fn spf(facts: &DomainFacts, found: String) -> Verdict {
    let terms: Vec<String> = found.split_whitespace().skip(1).map(str::to_ascii_lowercase).collect();
    let mechanism = |term: &str| term.trim_start_matches('+').to_owned();
    let permits_host = |term: &String| {
        let term = mechanism(term);
        term == "mx"
            || term == format!("mx:{}", facts.domain)
            || term == format!("a:{}", facts.host.to_ascii_lowercase())
            || (term == "a" && facts.host.eq_ignore_ascii_case(facts.domain.as_str()))
    };
    if terms.iter().any(|term| mechanism(term) == "all") {
        return Verdict::differs(vec![found], "It permits every server of the world: end it with -all.");
    }
    if terms.iter().any(permits_host) {
        return Verdict::ok(vec![found]);
    }
    let is_elsewhere = |term: &String| {
        let term = mechanism(term);
        ["include:", "redirect=", "ip4:", "ip6:", "a:", "mx:", "exists:"]
            .iter()
            .any(|start| term.starts_with(start))
    };
    let host = &facts.host;
    match terms.iter().any(is_elsewhere) {
        true => Verdict::unknown(
            vec![found],
            format!("Make sure that it permits the addresses of {host}, or add mx."),
        ),
        false => Verdict::differs(vec![found], format!("It does not permit {host} to send: add mx.")),
    }
}

async fn mta_sts_host(name: &str, host: &str, resolver: &dyn Resolver) -> Verdict {
    let advice = "Add the record: other servers read the policy at this name by HTTPS.";
    let (ours, theirs) = (resolver.addresses(host).await, resolver.addresses(name).await);
    let Answer::Found(theirs) = theirs else { return Verdict::of_nothing(&theirs, advice) };
    let found = theirs.iter().map(ToString::to_string).collect();
    match ours {
        Answer::Found(ours) if ours.iter().any(|address| theirs.contains(address)) => Verdict::ok(found),
        _ => Verdict::unknown(
            found,
            format!("It has other addresses than {host}: make sure that the policy is served there."),
        ),
    }
}

/// Whether a text is a record of a version: this is its first tag, followed by the end of the text or a separator.
fn has_version(text: &str, version: &str) -> bool {
    let Some((start, rest)) = text.trim_start().split_at_checked(version.len()) else { return false };
    start.eq_ignore_ascii_case(version)
        && (version.is_empty() || rest.is_empty() || rest.starts_with([' ', ';', '\t']))
}

/// The value of a tag, without white space.
fn tag(text: &str, name: &str) -> Option<String> {
    let mut tags = text.split(';').filter_map(|tag| tag.split_once('='));
    let (_, value) = tags.find(|(known, _)| known.trim() == name)?;
    Some(value.chars().filter(|c| !c.is_whitespace()).collect())
}
