//! What a DMARC record states for servers that report (RFC 7489 §6.3).

use std::str;

use restante_directory::EmailAddress;

/// The most addresses of a record that are read.
const ADDRESSES_MAX: usize = 10;

/// The policy of a domain, with defaults for what the record leaves out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// `r` or `s`: how DKIM is aligned.
    pub adkim: &'static str,
    /// The same for SPF.
    pub aspf: &'static str,
    /// The policy for the domain: `none`, `quarantine` or `reject`.
    pub p: &'static str,
    /// The policy for its subdomains.
    pub sp: &'static str,
    /// The percentage of messages that the policy applies to.
    pub pct: u8,
    /// When single failures are to be reported, such as `1:d`.
    pub fo: String,
    /// Where aggregate reports go.
    pub rua: Vec<Destination>,
}

/// An address that reports go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: String,
    /// Its domain in lower case.
    pub host: String,
    /// The most bytes of a compressed report that it accepts.
    pub bytes_max: Option<u64>,
}

impl Published {
    /// Reads a record; `None` when it is not a DMARC record.
    pub fn parse(record: &str) -> Option<Self> {
        let mut tags = record.split(';').map(|tag| {
            let (name, value) = tag.split_once('=').unwrap_or((tag, ""));
            (name.trim().to_ascii_lowercase(), value.trim())
        });
        let (first, version) = tags.next()?;
        if first != "v" || version != "DMARC1" {
            return None;
        }
        let mut published =
            Self { adkim: "r", aspf: "r", p: "none", sp: "", pct: 100, fo: "0".to_owned(), rua: Vec::new() };
        for (name, value) in tags {
            match name.as_str() {
                "adkim" => published.adkim = alignment(value),
                "aspf" => published.aspf = alignment(value),
                "p" => published.p = policy(value).unwrap_or("none"),
                "sp" => published.sp = policy(value).unwrap_or(""),
                "pct" => published.pct = value.parse().ok().filter(|pct| *pct <= 100).unwrap_or(100),
                "fo" => published.fo = failure_options(value),
                "rua" => published.rua = destinations(value),
                _ => {}
            }
        }
        if published.sp.is_empty() {
            published.sp = published.p;
        }
        Some(published)
    }
}

fn alignment(value: &str) -> &'static str {
    if value.eq_ignore_ascii_case("s") { "s" } else { "r" }
}

/// The known options; `0`, the default, when there are none.
fn failure_options(value: &str) -> String {
    let is_known = |option: &&str| matches!(*option, "0" | "1" | "d" | "s");
    let known: Vec<&str> = value.split(':').map(str::trim).filter(is_known).collect();
    if known.is_empty() { "0".to_owned() } else { known.join(":") }
}

fn policy(value: &str) -> Option<&'static str> {
    ["none", "quarantine", "reject"].into_iter().find(|known| known.eq_ignore_ascii_case(value))
}

/// The addresses of `rua`. Entries that are not email addresses are left out.
fn destinations(value: &str) -> Vec<Destination> {
    value.split(',').take(ADDRESSES_MAX).filter_map(|uri| destination(uri.trim())).collect()
}

fn destination(uri: &str) -> Option<Destination> {
    let (scheme, rest) = uri.split_once(':')?;
    if !scheme.eq_ignore_ascii_case("mailto") {
        return None;
    }
    // A `!` of the address itself is written as %21 (RFC 7489 §6.2).
    let (address, limit) = match rest.split_once('!') {
        Some((address, limit)) => (address, Some(bytes_of(limit)?)),
        None => (rest, None),
    };
    let address = address.split_once('?').map_or(address, |(address, _)| address);
    let address = decoded(address)?;
    let parsed: EmailAddress = address.parse().ok()?;
    Some(Destination { host: parsed.domain().as_str().to_owned(), address, bytes_max: limit })
}

/// `10m`: bytes with a unit, a power of 2.
fn bytes_of(limit: &str) -> Option<u64> {
    let digits = limit.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match limit.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A text of a URI without its percent encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}
