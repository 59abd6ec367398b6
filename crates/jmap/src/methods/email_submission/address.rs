//! Addresses and parameters of an envelope (RFC 5321 §4.1.2, RFC 3461 §4, RFC 4865 §4).

use std::{collections::BTreeMap, fmt::Write};

use restante_directory::{Domain, EmailAddress};
use restante_mail::queue::{Notify, Return};
use restante_mail_wire::header::Date;

/// RFC 3461 §4.4: the longest ENVID.
const ENVID_BYTES_MAX: usize = 100;
/// RFC 3461 §4.2: the longest ORCPT.
const ORCPT_BYTES_MAX: usize = 500;

/// The parameters of an address: names with optional values.
pub(super) type Parameters = BTreeMap<String, Option<String>>;

/// An address as SMTP writes it: the local part as it was given, the domain in ASCII and lowercase. `None` for an invalid address.
pub(super) fn smtp_address(text: &str) -> Option<String> {
    let (local, domain) = text.rsplit_once('@')?;
    let domain: Domain = domain.parse().ok()?;
    // Addresses like a..b@example.org violate RFC 5321, but exist.
    let checked = if local.starts_with('"') { local.to_owned() } else { local.replace('.', "_") };
    EmailAddress::new(&checked, domain.clone()).ok()?;
    Some(format!("{local}@{domain}"))
}

/// The parsed parameters of `MAIL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MailFrom {
    /// As xtext.
    pub(super) envelope_id: Option<String>,
    pub(super) returned: Option<Return>,
    /// When the message is released, in seconds since 1970.
    pub(super) release: Option<i64>,
}

impl MailFrom {
    /// Reads parameters; `Err` says what is wrong with them. SIZE, BODY and SMTPUTF8 follow from the message, and are ignored.
    pub(super) fn read(parameters: &Parameters, now: i64) -> Result<Self, String> {
        let mut read = Self::default();
        for (name, value) in parameters {
            let upper = name.to_ascii_uppercase();
            let wrong = || format!("the parameter {upper} has no such value");
            match (upper.as_str(), value.as_deref()) {
                ("SIZE" | "BODY" | "SMTPUTF8", _) => {}
                // RFC 4865 §4.
                ("HOLDFOR" | "HOLDUNTIL", _) if read.release.is_some() => {
                    return Err(
                        "only one of the parameters HOLDFOR and HOLDUNTIL may be given, once".to_owned()
                    );
                }
                ("RET", Some(value)) if value.eq_ignore_ascii_case("FULL") => {
                    read.returned = Some(Return::Full);
                }
                ("RET", Some(value)) if value.eq_ignore_ascii_case("HDRS") => {
                    read.returned = Some(Return::Headers);
                }
                ("ENVID", Some(value)) => {
                    read.envelope_id = Some(xtext(value, ENVID_BYTES_MAX).ok_or_else(wrong)?);
                }
                ("HOLDFOR", Some(value)) => {
                    let seconds = Some(value).filter(|value| value.bytes().all(|b| b.is_ascii_digit()));
                    let seconds = seconds.and_then(|value| value.parse::<u32>().ok()).ok_or_else(wrong)?;
                    read.release = Some(now.saturating_add(seconds.into()));
                }
                ("HOLDUNTIL", Some(value)) => {
                    read.release = Some(Date::parse(value).ok_or_else(wrong)?.seconds);
                }
                ("RET" | "HOLDFOR" | "HOLDUNTIL" | "ENVID", _) => return Err(wrong()),
                _ => return Err("a parameter of mailFrom is not supported".to_owned()),
            }
        }
        Ok(read)
    }
}

/// The parsed parameters of `RCPT`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RcptTo {
    pub(super) notify: Notify,
    /// With the address as xtext.
    pub(super) original: Option<String>,
}

impl RcptTo {
    /// Like [`MailFrom::read`].
    pub(super) fn read(parameters: &Parameters) -> Result<Self, String> {
        let mut read = Self::default();
        for (name, value) in parameters {
            let upper = name.to_ascii_uppercase();
            let wrong = || format!("the parameter {upper} has no such value");
            match (upper.as_str(), value.as_deref()) {
                ("NOTIFY", Some(value)) => read.notify = notify(value).ok_or_else(wrong)?,
                ("ORCPT", Some(value)) => {
                    let (kind, address) = value.split_once(';').ok_or_else(wrong)?;
                    let is_kind = !kind.is_empty()
                        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                    let address = xtext(address, ORCPT_BYTES_MAX).filter(|_| is_kind).ok_or_else(wrong)?;
                    read.original = Some(format!("{kind};{address}"));
                }
                ("NOTIFY" | "ORCPT", None) => return Err(wrong()),
                _ => return Err("a parameter of rcptTo is not supported".to_owned()),
            }
        }
        Ok(read)
    }
}

/// RFC 3461 §4.1.
fn notify(value: &str) -> Option<Notify> {
    let mut notify = Notify { on_success: false, on_failure: false, on_delay: false };
    if value.eq_ignore_ascii_case("NEVER") {
        return Some(notify);
    }
    for word in value.split(',') {
        match word.to_ascii_uppercase().as_str() {
            "SUCCESS" => notify.on_success = true,
            "FAILURE" => notify.on_failure = true,
            "DELAY" => notify.on_delay = true,
            _ => return None,
        }
    }
    Some(notify)
}

/// RFC 3461 §4: JMAP has the plain text, SMTP the encoded one. `None` for a text that is empty, too long or not ASCII.
fn xtext(text: &str, bytes_max: usize) -> Option<String> {
    if text.is_empty() || text.len() > bytes_max || !text.is_ascii() {
        return None;
    }
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'+' && byte != b'=' {
            encoded.push(byte.into());
        } else {
            // Writing to a string can't fail.
            let _ = write!(encoded, "+{byte:02X}");
        }
    }
    (encoded.len() <= bytes_max).then_some(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, Option<&str>)]) -> Parameters {
        let owned = |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn su2_an_address_that_would_end_the_command_is_none() {
        for (text, smtp) in [
            ("Bob@Example.NET", "Bob@example.net"),
            ("a..b@example.org", "a..b@example.org"),
            ("\"a b\"@example.org", "\"a b\"@example.org"),
            ("jürgen@bücher.example", "jürgen@xn--bcher-kva.example"),
        ] {
            assert_eq!(smtp_address(text).as_deref(), Some(smtp));
        }
        for text in [
            "",
            "bob",
            "@example.org",
            "bob@",
            "b b@example.org",
            "bob@example.org> SIZE=1",
            "a\r\n@example.org",
        ] {
            assert_eq!(smtp_address(text), None, "{text:?}");
        }
    }

    #[test]
    fn su4_a_message_is_held_for_seconds_or_until_a_time() {
        let read = |pairs: &[(&str, Option<&str>)]| MailFrom::read(&parameters(pairs), 1_000);
        assert_eq!(read(&[("holdfor", Some("60"))]).unwrap().release, Some(1_060));
        let until = read(&[("HOLDUNTIL", Some("1970-01-01T01:00:00Z"))]).unwrap();
        assert_eq!(until.release, Some(3_600));
        let both = [("HOLDFOR", Some("1")), ("HOLDUNTIL", Some("1970-01-01T01:00:00Z"))];
        let problem = "only one of the parameters HOLDFOR and HOLDUNTIL may be given, once";
        assert_eq!(read(&both), Err(problem.to_owned()));
        assert_eq!(read(&[("HOLDFOR", Some("1")), ("holdfor", Some("2"))]), Err(problem.to_owned()));
        for value in [None, Some(""), Some("-1"), Some("+1"), Some("1.5"), Some("99999999999")] {
            assert!(read(&[("HOLDFOR", value)]).is_err(), "{value:?}");
        }
        assert!(read(&[("HOLDUNTIL", Some("soon"))]).is_err());
        assert!(read(&[("AUTH", Some("<>"))]).is_err());
    }

    #[test]
    fn su1_parameters_of_reports_are_kept_for_the_queue() {
        let mail = MailFrom::read(&parameters(&[("RET", Some("hdrs")), ("ENVID", Some("a+b"))]), 0).unwrap();
        assert_eq!((mail.returned, mail.envelope_id.as_deref()), (Some(Return::Headers), Some("a+2Bb")));
        let given =
            parameters(&[("NOTIFY", Some("success,DELAY")), ("ORCPT", Some("rfc822;b=b@example.net"))]);
        let rcpt = RcptTo::read(&given).unwrap();
        assert_eq!(rcpt.notify, Notify { on_success: true, on_failure: false, on_delay: true });
        assert_eq!(rcpt.original.as_deref(), Some("rfc822;b+3Db@example.net"));
        let never = RcptTo::read(&parameters(&[("NOTIFY", Some("NEVER"))])).unwrap();
        assert_eq!(never.notify, Notify { on_success: false, on_failure: false, on_delay: false });
        for wrong in [("NOTIFY", Some("NEVER,DELAY")), ("NOTIFY", None), ("ORCPT", Some("x")), ("X", None)] {
            assert!(RcptTo::read(&parameters(&[wrong])).is_err(), "{wrong:?}");
        }
    }
}
