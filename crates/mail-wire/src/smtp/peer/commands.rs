use std::borrow::Cow;

use super::super::{encode_xtext, is_xtext};

/// The most bytes of an address that is written, whatever the server would accept. RFC 5321 §4.5.3.1.3.
const ADDRESS_BYTES_MAX: usize = 254;
/// RFC 3461 §4.4.
const ENVELOPE_ID_BYTES_MAX: usize = 100;
/// RFC 3461 §4.2.
const ORIGINAL_BYTES_MAX: usize = 500;

/// A `MAIL` command. Parameters that are set must have been offered by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailCommand<'c> {
    /// The sender; empty for `<>`.
    pub sender: &'c str,
    /// `SIZE` (RFC 1870).
    pub size: Option<u64>,
    /// `BODY=8BITMIME` (RFC 6152).
    pub is_8bit: bool,
    /// `SMTPUTF8` (RFC 6531).
    pub is_utf8: bool,
    /// `RET` (RFC 3461 §4.3): `FULL` or `HDRS`.
    pub returned: Option<&'c str>,
    /// `ENVID` (RFC 3461 §4.4) as it was received, in `xtext`; another text is encoded. One that is too long is left out.
    pub envelope_id: Option<&'c str>,
}

/// Which outcomes of a recipient a server reports: `NOTIFY` (RFC 3461 §4.1). All false is `NEVER`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notified {
    /// When it is delivered.
    pub on_success: bool,
    /// When it fails.
    pub on_failure: bool,
    /// When it is delayed.
    pub on_delay: bool,
}

/// A `RCPT` command. Parameters that are set must have been offered by the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RcptCommand<'c> {
    /// The recipient.
    pub recipient: &'c str,
    /// `NOTIFY`.
    pub notify: Option<Notified>,
    /// `ORCPT` (RFC 3461 §4.2) as it was received, in `xtext`: `rfc822;bob@example.net`. Another text is encoded, and left out if
    /// that is impossible.
    pub original: Option<&'c str>,
}

/// An address that is not allowed in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address has a character that it can't have, or is too long")]
pub struct AddressError;

/// Whether an address can be written between angle brackets without being misinterpreted.
pub fn is_safe_address(address: &str) -> bool {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for c in address.chars() {
        if c.is_control() {
            return false;
        }
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '<' | '>' | ' ' | ',' | ';' | '(' | ')' | '\\' if !is_quoted => return false,
            _ => {}
        }
    }
    let has_domain = address.rsplit_once('@').is_some_and(|(local, domain)| {
        !local.is_empty() && !domain.is_empty() && !domain.contains(['"', '\\'])
    });
    has_domain && !is_quoted && address.len() <= ADDRESS_BYTES_MAX
}

/// Appends a `MAIL` command with its line break.
///
/// # Errors
/// The sender can't be written; nothing was appended.
pub fn write_mail(command: &MailCommand<'_>, out: &mut Vec<u8>) -> Result<(), AddressError> {
    if !command.sender.is_empty() && !is_safe_address(command.sender) {
        return Err(AddressError);
    }
    out.extend_from_slice(format!("MAIL FROM:<{}>", command.sender).as_bytes());
    if let Some(size) = command.size {
        out.extend_from_slice(format!(" SIZE={size}").as_bytes());
    }
    if command.is_8bit {
        out.extend_from_slice(b" BODY=8BITMIME");
    }
    if command.is_utf8 {
        out.extend_from_slice(b" SMTPUTF8");
    }
    if let Some(returned) = command.returned {
        out.extend_from_slice(format!(" RET={returned}").as_bytes());
    }
    if let Some(id) = command.envelope_id.filter(|id| !id.is_empty()).map(as_xtext)
        && id.len() <= ENVELOPE_ID_BYTES_MAX
    {
        out.extend_from_slice(format!(" ENVID={id}").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends a `RCPT` command with its line break.
///
/// # Errors
/// The recipient can't be written; nothing was appended.
pub fn write_rcpt(command: &RcptCommand<'_>, out: &mut Vec<u8>) -> Result<(), AddressError> {
    if !is_safe_address(command.recipient) {
        return Err(AddressError);
    }
    out.extend_from_slice(format!("RCPT TO:<{}>", command.recipient).as_bytes());
    if let Some(notify) = command.notify {
        out.extend_from_slice(format!(" NOTIFY={}", notify.value()).as_bytes());
    }
    if let Some(original) = command.original.and_then(original_recipient) {
        out.extend_from_slice(format!(" ORCPT={original}").as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

impl Notified {
    /// The value of `NOTIFY`.
    fn value(self) -> String {
        let words = [(self.on_success, "SUCCESS"), (self.on_failure, "FAILURE"), (self.on_delay, "DELAY")];
        let words: Vec<&str> =
            words.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect();
        if words.is_empty() { "NEVER".to_owned() } else { words.join(",") }
    }
}

/// A text that is `xtext`, or one encoded as such.
fn as_xtext(text: &str) -> Cow<'_, str> {
    if is_xtext(text) { Cow::Borrowed(text) } else { Cow::Owned(encode_xtext(text)) }
}

/// An address as `utf-8-addr-xtext` (RFC 6533 §3): characters that must be encoded as `\x{E4}`.
pub fn utf8_address_in_ascii(address: &str) -> String {
    let mut encoded = String::with_capacity(address.len());
    for c in address.chars() {
        if c.is_ascii_graphic() && !matches!(c, '+' | '=' | '\\') {
            encoded.push(c);
        } else {
            encoded.push_str(&format!("\\x{{{:02X}}}", u32::from(c)));
        }
    }
    encoded
}

/// The value of `ORCPT` for `type;address`; `None` if it can't be written.
///
/// RFC 6533 §3: an address with non-ASCII characters has the type `utf-8`, and these characters in hexadecimal, so that every
/// server accepts it.
fn original_recipient(original: &str) -> Option<String> {
    let (kind, address) = original.split_once(';')?;
    let is_type = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if !is_type || address.is_empty() {
        return None;
    }
    let encoded = if address.is_ascii() {
        format!("{kind};{}", as_xtext(address))
    } else {
        format!("utf-8;{}", utf8_address_in_ascii(address))
    };
    (encoded.len() <= ORIGINAL_BYTES_MAX).then_some(encoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mail(command: &MailCommand<'_>) -> String {
        let mut out = Vec::new();
        write_mail(command, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn rcpt(command: &RcptCommand<'_>) -> String {
        let mut out = Vec::new();
        write_rcpt(command, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn commands_have_the_parameters_that_are_set() {
        assert_eq!(mail(&MailCommand::default()), "MAIL FROM:<>\r\n");
        let all = MailCommand {
            sender: "anna@example.org",
            size: Some(1_000),
            is_8bit: true,
            is_utf8: true,
            returned: Some("HDRS"),
            envelope_id: Some("a+b=c"),
        };
        let given = MailCommand { envelope_id: Some("a+2Bb"), ..MailCommand::default() };
        assert_eq!(mail(&given), "MAIL FROM:<> ENVID=a+2Bb\r\n", "it is xtext already");
        let expected =
            "MAIL FROM:<anna@example.org> SIZE=1000 BODY=8BITMIME SMTPUTF8 RET=HDRS ENVID=a+2Bb+3Dc\r\n";
        assert_eq!(mail(&all), expected);
        let recipient = RcptCommand { recipient: "bob@example.net", ..RcptCommand::default() };
        assert_eq!(rcpt(&recipient), "RCPT TO:<bob@example.net>\r\n");
    }

    #[test]
    fn dsn5_notify_and_orcpt_are_passed_on() {
        let notify = |on_success, on_failure, on_delay| {
            let notify = Some(Notified { on_success, on_failure, on_delay });
            rcpt(&RcptCommand { recipient: "b@c", notify, original: None })
        };
        assert_eq!(notify(false, false, false), "RCPT TO:<b@c> NOTIFY=NEVER\r\n");
        assert_eq!(notify(true, true, true), "RCPT TO:<b@c> NOTIFY=SUCCESS,FAILURE,DELAY\r\n");
        let original =
            |original| rcpt(&RcptCommand { recipient: "b@c", notify: None, original: Some(original) });
        assert_eq!(original("rfc822;a+b@c"), "RCPT TO:<b@c> ORCPT=rfc822;a+2Bb@c\r\n");
        for none in ["", "rfc822", "rfc822;", ";a", "a b;c", "a\r\nb;c"] {
            assert_eq!(original(none), "RCPT TO:<b@c>\r\n", "{none:?}");
        }
    }

    #[test]
    fn dsn6_an_original_recipient_with_other_characters_is_written_in_ascii() {
        let original = Some("rfc822;jürgen+x@example.org");
        let written = rcpt(&RcptCommand { recipient: "b@c", notify: None, original });
        assert_eq!(written, "RCPT TO:<b@c> ORCPT=utf-8;j\\x{FC}rgen\\x{2B}x@example.org\r\n");
    }

    #[test]
    fn out13_an_address_adds_no_command() {
        for address in [
            "a@b>\r\nRCPT TO:<c@d",
            "a@b\r\n",
            "a@b\n",
            "a@b> SIZE=1",
            "a b@c",
            "a@b c",
            "a@",
            "@b",
            "a",
            "\"a@b",
            "a\\@b",
            "<a@b",
            "a@b\0",
            &format!("{}@b", "a".repeat(300)),
        ] {
            let mut out = Vec::new();
            let command = MailCommand { sender: address, ..MailCommand::default() };
            assert_eq!(write_mail(&command, &mut out), Err(AddressError), "{address:?}");
            let command = RcptCommand { recipient: address, ..RcptCommand::default() };
            assert_eq!(write_rcpt(&command, &mut out), Err(AddressError), "{address:?}");
            assert_eq!(out, b"", "{address:?}");
        }
        for address in ["\"a b\"@c", "\"a>b\"@c", "\"a\\\"b\"@c", "a@[192.0.2.1]", "a@[IPv6:2001:db8::1]"] {
            assert!(is_safe_address(address), "{address}");
        }
        assert!(write_rcpt(&RcptCommand::default(), &mut Vec::new()).is_err(), "no recipient");
    }

    proptest! {
        #[test]
        fn out13_any_address_is_one_command_or_none(address in "[ -~\r\nä<>\"\\\\]{0,20}@?[a-z \r\n>\"]{0,9}") {
            let mut out = Vec::new();
            if write_rcpt(&RcptCommand { recipient: &address, ..RcptCommand::default() }, &mut out).is_ok() {
                let text = String::from_utf8(out).unwrap();
                prop_assert!(text.ends_with(">\r\n") && text.matches(['\r', '\n']).count() == 2);
            }
        }
    }
}
