//! The record of a domain (RFC 7208 §5, §6, §12).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::macros::DomainSpec;

/// The most terms of a record. One that fits into 4 KB has fewer.
const TERMS_MAX: usize = 1_000;

/// A record that can't be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The result for clients that a mechanism matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qualifier {
    Pass,
    Fail,
    SoftFail,
    Neutral,
}

/// How many bits of an address count, for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefixes {
    v4: u8,
    v6: u8,
}

impl Prefixes {
    const WHOLE: Self = Self { v4: 32, v6: 128 };

    /// Whether an address is in the network of another one.
    pub(super) fn contain(self, network: IpAddr, address: IpAddr) -> bool {
        match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differs = u32::from(network) ^ u32::from(address);
                differs.checked_shr(32 - u32::from(self.v4)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differs = u128::from(network) ^ u128::from(address);
                differs.checked_shr(128 - u32::from(self.v6)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// What a client is compared with. Without a domain, that of the record is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    All,
    Include(DomainSpec),
    A(Option<DomainSpec>, Prefixes),
    Mx(Option<DomainSpec>, Prefixes),
    Ptr(Option<DomainSpec>),
    Network(IpAddr, Prefixes),
    Exists(DomainSpec),
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) directives: Vec<(Qualifier, Mechanism)>,
    pub(super) redirect: Option<DomainSpec>,
}

/// Whether a TXT record is an SPF record (RFC 7208 §4.5).
pub(super) fn is_spf(text: &str) -> bool {
    text.split(' ').next().is_some_and(|version| version.eq_ignore_ascii_case("v=spf1"))
}

impl Record {
    /// Parses a record. All its syntax is checked before any of it is used (RFC 7208 §4.6).
    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut record = Self { directives: Vec::new(), redirect: None };
        let mut has_explanation = false;
        let terms = text.split(' ').filter(|term| !term.is_empty()).skip(1); // after the version
        for (number, term) in terms.enumerate() {
            if number >= TERMS_MAX {
                return Err(Malformed);
            }
            let Some((name, value)) = modifier(term) else {
                record.directives.push(directive(term)?);
                continue;
            };
            if name.eq_ignore_ascii_case("redirect") {
                let is_repeated = record.redirect.replace(DomainSpec::parse(value)?).is_some();
                if is_repeated {
                    return Err(Malformed);
                }
            } else if name.eq_ignore_ascii_case("exp") {
                DomainSpec::parse(value)?;
                if std::mem::replace(&mut has_explanation, true) {
                    return Err(Malformed);
                }
            } else {
                DomainSpec::parse_macro_string(value)?;
            }
        }
        Ok(record)
    }
}

/// The name and value of a modifier; `None` for other terms.
fn modifier(term: &str) -> Option<(&str, &str)> {
    let (name, value) = term.split_once('=')?;
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_name =
        name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_name_byte);
    is_name.then_some((name, value))
}

fn directive(term: &str) -> Result<(Qualifier, Mechanism), Malformed> {
    let (qualifier, rest) = match term.as_bytes().first() {
        Some(b'+') => (Qualifier::Pass, term.get(1..)),
        Some(b'-') => (Qualifier::Fail, term.get(1..)),
        Some(b'~') => (Qualifier::SoftFail, term.get(1..)),
        Some(b'?') => (Qualifier::Neutral, term.get(1..)),
        _ => (Qualifier::Pass, Some(term)),
    };
    let rest = rest.ok_or(Malformed)?;
    let name_bytes = rest.find([':', '/']).unwrap_or(rest.len());
    let (name, arguments) = rest.split_at_checked(name_bytes).ok_or(Malformed)?;
    let mechanism = match name.to_ascii_lowercase().as_str() {
        "all" if arguments.is_empty() => Mechanism::All,
        "include" => Mechanism::Include(required(arguments)?),
        "exists" => Mechanism::Exists(required(arguments)?),
        "ptr" if arguments.is_empty() => Mechanism::Ptr(None),
        "ptr" => Mechanism::Ptr(Some(required(arguments)?)),
        "a" => host(arguments).map(|(domain, prefixes)| Mechanism::A(domain, prefixes))?,
        "mx" => host(arguments).map(|(domain, prefixes)| Mechanism::Mx(domain, prefixes))?,
        "ip4" => {
            let (address, bits) = network(arguments)?;
            let address: Ipv4Addr = address.parse().map_err(|_| Malformed)?;
            let v4 = bits.map_or(Ok(32), |bits| prefix(bits, 32))?;
            Mechanism::Network(address.into(), Prefixes { v4, ..Prefixes::WHOLE })
        }
        "ip6" => {
            let (address, bits) = network(arguments)?;
            let address: Ipv6Addr = address.parse().map_err(|_| Malformed)?;
            let v6 = bits.map_or(Ok(128), |bits| prefix(bits, 128))?;
            Mechanism::Network(address.into(), Prefixes { v6, ..Prefixes::WHOLE })
        }
        _ => return Err(Malformed),
    };
    Ok((qualifier, mechanism))
}

/// `:domain-spec`.
fn required(arguments: &str) -> Result<DomainSpec, Malformed> {
    DomainSpec::parse(arguments.strip_prefix(':').ok_or(Malformed)?)
}

/// `[":" domain-spec] ["/" ip4] ["//" ip6]`
fn host(arguments: &str) -> Result<(Option<DomainSpec>, Prefixes), Malformed> {
    let mut prefixes = Prefixes::WHOLE;
    let mut rest = arguments;
    // The domain may contain slashes, too: only digits after the last ones make a prefix.
    if let Some((before, bits)) = rest.rsplit_once("//")
        && is_number(bits)
    {
        prefixes.v6 = prefix(bits, 128)?;
        rest = before;
    }
    if let Some((before, bits)) = rest.rsplit_once('/')
        && is_number(bits)
    {
        prefixes.v4 = prefix(bits, 32)?;
        rest = before;
    }
    if rest.is_empty() {
        return Ok((None, prefixes));
    }
    Ok((Some(required(rest)?), prefixes))
}

/// `:address[/bits]`
fn network(arguments: &str) -> Result<(&str, Option<&str>), Malformed> {
    let network = arguments.strip_prefix(':').ok_or(Malformed)?;
    Ok(match network.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (network, None),
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Bits of a prefix, without leading zeros.
fn prefix(bits: &str, max: u8) -> Result<u8, Malformed> {
    let is_written_well = is_number(bits) && (bits == "0" || !bits.starts_with('0'));
    let bits = bits.parse().map_err(|_| Malformed)?;
    if is_written_well && bits <= max { Ok(bits) } else { Err(Malformed) }
}
