//! The parameters of `MAIL` and `RCPT`.

use super::{
    CommandError,
    xtext::{is_utf8_address, is_xtext},
};
use crate::header::Date;

/// RFC 3461 §4.4.
const ENVELOPE_ID_BYTES_MAX: usize = 100;
/// RFC 3461 §4.2.
const ORIGINAL_BYTES_MAX: usize = 500;
/// RFC 4954 §5.
const AUTH_BYTES_MAX: usize = 500;

/// The parameters of a `MAIL` command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailParameters<'l> {
    /// `SIZE=` (RFC 1870). A number beyond 64 bits is the largest.
    pub size: Option<u64>,
    /// `BODY=` (RFC 6152, RFC 3030).
    pub body: Body,
    /// `SMTPUTF8` (RFC 6531).
    pub is_utf8: bool,
    /// `AUTH=` (RFC 4954 §5), as it was received: who has submitted the message, according to the client.
    pub auth: Option<&'l str>,
    /// `RET=` (RFC 3461 §4.3).
    pub returned: Option<Return>,
    /// `ENVID=` (RFC 3461 §4.4), as it was received: in `xtext`.
    pub envelope_id: Option<&'l str>,
    /// `HOLDFOR=` or `HOLDUNTIL=` (RFC 4865).
    pub hold: Option<Hold>,
}

/// Which bytes a message may contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// `7BIT`, or no parameter.
    #[default]
    SevenBit,
    /// `8BITMIME`: lines of any bytes.
    EightBit,
    /// `BINARYMIME`: any bytes, without lines; by `BDAT` only.
    Binary,
}

/// How much of a message a report about it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Return {
    /// `FULL`.
    Full,
    /// `HDRS`.
    Headers,
}

/// When a message is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// After this many seconds.
    For(u64),
    /// At a time, in seconds since 1970.
    Until(i64),
}

/// The parameters of a `RCPT` command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RcptParameters<'l> {
    /// `NOTIFY=` (RFC 3461 §4.1).
    pub notify: Option<Notify>,
    /// `ORCPT=` (RFC 3461 §4.2), as it was received: a type, a semicolon, and an address in `xtext` or, for the type `utf-8`, as
    /// in RFC 6533 §3.
    pub original: Option<&'l str>,
}

/// Which outcomes of a recipient are reported. `NEVER` is all false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    /// `SUCCESS`.
    pub on_success: bool,
    /// `FAILURE`.
    pub on_failure: bool,
    /// `DELAY`.
    pub on_delay: bool,
}

/// The parameters after a path: names, each with an optional value. `None` if no space precedes them.
pub(super) fn words(rest: &str) -> Option<impl Iterator<Item = (&str, Option<&str>)>> {
    let is_separated = rest.is_empty() || rest.starts_with(' ');
    let words = rest.split(' ').filter(|word| !word.is_empty());
    is_separated.then(|| {
        words.map(|word| match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        })
    })
}

pub(super) fn of_mail<'l>(
    words: impl Iterator<Item = (&'l str, Option<&'l str>)>,
) -> Result<MailParameters<'l>, CommandError> {
    let (mut known, mut body, mut is_utf8) = (MailParameters::default(), None, false);
    for (name, value) in words {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let is_repeated = if is("SIZE") {
            set(&mut known.size, value.and_then(number), "SIZE=<number>")?
        } else if is("BODY") {
            set(&mut body, value.and_then(body_of), "BODY=7BIT or BODY=8BITMIME")?
        } else if is("SMTPUTF8") && value.is_none() {
            std::mem::replace(&mut is_utf8, true)
        } else if is("AUTH") {
            set(&mut known.auth, value.filter(|value| is_auth(value)), "AUTH=<> or AUTH=<address>")?
        } else if is("RET") {
            set(&mut known.returned, value.and_then(return_of), "RET=FULL or RET=HDRS")?
        } else if is("ENVID") {
            let id = value.filter(|value| is_envelope_id(value));
            set(&mut known.envelope_id, id, "ENVID=<text> with 100 characters at most")?
        } else if is("HOLDFOR") {
            set(&mut known.hold, value.and_then(hold_for), "HOLDFOR=<seconds>")?
        } else if is("HOLDUNTIL") {
            set(&mut known.hold, value.and_then(hold_until), "HOLDUNTIL=<time>, as 2027-01-31T08:00:00Z")?
        } else {
            return Err(CommandError::Parameter);
        };
        if is_repeated {
            return Err(CommandError::Syntax("each parameter once"));
        }
    }
    Ok(MailParameters { body: body.unwrap_or_default(), is_utf8, ..known })
}

pub(super) fn of_rcpt<'l>(
    words: impl Iterator<Item = (&'l str, Option<&'l str>)>,
) -> Result<RcptParameters<'l>, CommandError> {
    let mut known = RcptParameters::default();
    for (name, value) in words {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let is_repeated = if is("NOTIFY") {
            let form = "NOTIFY=NEVER, or some of SUCCESS,FAILURE,DELAY";
            set(&mut known.notify, value.and_then(notify_of), form)?
        } else if is("ORCPT") {
            set(
                &mut known.original,
                value.filter(|value| is_original(value)),
                "ORCPT=rfc822;<address> or ORCPT=utf-8;<address>",
            )?
        } else {
            return Err(CommandError::Parameter);
        };
        if is_repeated {
            return Err(CommandError::Syntax("each parameter once"));
        }
    }
    Ok(known)
}

/// Sets a parameter, and returns whether it was set before.
fn set<T>(known: &mut Option<T>, value: Option<T>, form: &'static str) -> Result<bool, CommandError> {
    let value = value.ok_or(CommandError::Syntax(form))?;
    Ok(known.replace(value).is_some())
}

fn body_of(value: &str) -> Option<Body> {
    let known = [("7BIT", Body::SevenBit), ("8BITMIME", Body::EightBit), ("BINARYMIME", Body::Binary)];
    known.into_iter().find(|(name, _)| value.eq_ignore_ascii_case(name)).map(|(_, body)| body)
}

fn return_of(value: &str) -> Option<Return> {
    let known = [("FULL", Return::Full), ("HDRS", Return::Headers)];
    known.into_iter().find(|(name, _)| value.eq_ignore_ascii_case(name)).map(|(_, returned)| returned)
}

fn is_auth(value: &str) -> bool {
    !value.is_empty() && value.len() <= AUTH_BYTES_MAX && is_xtext(value)
}

fn is_envelope_id(value: &str) -> bool {
    !value.is_empty() && value.len() <= ENVELOPE_ID_BYTES_MAX && is_xtext(value)
}

/// RFC 4865 §4: a number of 1 to 9 digits that does not begin with 0.
fn hold_for(value: &str) -> Option<Hold> {
    let is_number = value.len() <= 9 && !value.starts_with('0');
    number(value).filter(|_| is_number).map(Hold::For)
}

fn hold_until(value: &str) -> Option<Hold> {
    Date::parse(value).map(|date| Hold::Until(date.seconds))
}

fn notify_of(value: &str) -> Option<Notify> {
    if value.eq_ignore_ascii_case("NEVER") {
        return Some(Notify::default());
    }
    let mut notify = Notify::default();
    for word in value.split(',') {
        let flag = [
            ("SUCCESS", &mut notify.on_success),
            ("FAILURE", &mut notify.on_failure),
            ("DELAY", &mut notify.on_delay),
        ];
        let (_, flag) = flag.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name))?;
        *flag = true;
    }
    Some(notify)
}

fn is_original(value: &str) -> bool {
    let Some((kind, address)) = value.split_once(';') else { return false };
    let is_type = !kind.is_empty()
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*-/?^_`{|}~.".contains(&byte));
    let is_address = match kind.eq_ignore_ascii_case("utf-8") {
        true => is_utf8_address(address),
        false => is_xtext(address),
    };
    value.len() <= ORIGINAL_BYTES_MAX && is_type && !address.is_empty() && is_address
}

/// A number of 1 to 20 digits (RFC 1870 §3).
pub(super) fn number(text: &str) -> Option<u64> {
    let is_number = (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(text: &str) -> Result<MailParameters<'_>, CommandError> {
        of_mail(words(text).unwrap())
    }

    fn rcpt(text: &str) -> Result<RcptParameters<'_>, CommandError> {
        of_rcpt(words(text).unwrap())
    }

    #[test]
    fn sub7_parameters_of_mail_are_parsed() {
        let parameters = mail(" ret=hdrs ENVID=QQ+2B1 AUTH=<> HOLDFOR=3600").unwrap();
        assert_eq!(parameters.returned, Some(Return::Headers));
        assert_eq!((parameters.envelope_id, parameters.auth), (Some("QQ+2B1"), Some("<>")));
        assert_eq!(parameters.hold, Some(Hold::For(3_600)));
        assert_eq!(mail(" RET=FULL").unwrap().returned, Some(Return::Full));
        assert_eq!(mail(" HOLDUNTIL=2027-01-15T08:00:00Z").unwrap().hold, Some(Hold::Until(1_800_000_000)));
        assert_eq!(mail(" AUTH=anna@example.org").unwrap().auth, Some("anna@example.org"));
        for wrong in [
            " RET",
            " RET=BODY",
            " ENVID=",
            " ENVID=a=b",
            " AUTH=",
            " AUTH=a+b",
            " HOLDFOR=0",
            " HOLDFOR=01",
            " HOLDFOR=1000000000",
            " HOLDFOR=-1",
            " HOLDUNTIL=tomorrow",
            " HOLDFOR=1 HOLDUNTIL=2027-01-15T08:00:00Z",
            " RET=FULL RET=FULL",
        ] {
            assert!(matches!(mail(wrong), Err(CommandError::Syntax(_))), "{wrong}");
        }
        let long = |bytes: usize| format!(" ENVID={}", "a".repeat(bytes));
        assert!(mail(&long(100)).is_ok());
        assert!(mail(&long(101)).is_err());
        assert_eq!(mail(" MT-PRIORITY=3"), Err(CommandError::Parameter));
    }

    #[test]
    fn sub7_parameters_of_rcpt_are_parsed() {
        let never = Notify::default();
        let all = Notify { on_success: true, on_failure: true, on_delay: true };
        assert_eq!(rcpt(" NOTIFY=never").unwrap().notify, Some(never));
        assert_eq!(rcpt(" notify=Success,DELAY,failure").unwrap().notify, Some(all));
        assert_eq!(rcpt(" NOTIFY=DELAY").unwrap().notify, Some(Notify { on_delay: true, ..never }));
        for original in [
            "rfc822;bob@example.net",
            "RFC822;a+2Bb@c",
            "utf-8;j\\x{FC}@c",
            "utf-8;jürgen@c",
            "x400;/C=a".replace('=', "+3D").as_str(),
        ] {
            assert_eq!(rcpt(&format!(" ORCPT={original}")).unwrap().original, Some(original));
        }
        for wrong in [
            " NOTIFY",
            " NOTIFY=",
            " NOTIFY=NEVER,SUCCESS",
            " NOTIFY=SUCCESS,",
            " NOTIFY=OFTEN",
            " ORCPT=bob@example.net",
            " ORCPT=rfc822;",
            " ORCPT=;bob",
            " ORCPT=rfc822;a+b@c",
            " ORCPT=rfc822;jürgen@c",
            " NOTIFY=DELAY NOTIFY=DELAY",
        ] {
            assert!(matches!(rcpt(wrong), Err(CommandError::Syntax(_))), "{wrong}");
        }
        let long = |bytes: usize| format!(" ORCPT=rfc822;{}", "a".repeat(bytes - 7));
        assert!(rcpt(&long(500)).is_ok());
        assert!(rcpt(&long(501)).is_err());
        assert_eq!(rcpt(" SIZE=1"), Err(CommandError::Parameter));
    }
}
