//! Whether a message is answered by an automatic reply (RFC 3834), such as a vacation response.
//!
//! The decision depends only on the message and the account. Whether a response is enabled now, and whether the sender got one
//! recently, is up to the caller.

use std::fmt;

use restante_mail_wire::header::{Header, as_addresses};

/// The most addresses in a message's recipient fields that are read.
const RECIPIENTS_MAX: usize = 1_000;
/// The longest address that is answered (RFC 5321 §4.5.3.1.3, without brackets).
const ADDRESS_BYTES_MAX: usize = 254;

/// The fields in which a message names its recipients.
const RECIPIENT_FIELDS: [&str; 6] = ["To", "Cc", "Bcc", "Resent-To", "Resent-Cc", "Resent-Bcc"];
/// Fields that only mailing lists write (RFC 2369, RFC 2919), and one that older list managers write.
const LIST_FIELDS: [&str; 9] = [
    "List-Id",
    "List-Help",
    "List-Subscribe",
    "List-Unsubscribe",
    "List-Post",
    "List-Owner",
    "List-Archive",
    "List-Unsubscribe-Post",
    "Mailing-List",
];
/// Local parts that belong to programs: nobody reads mail that is sent to them.
const PROGRAMS: [&str; 14] = [
    "mailer-daemon",
    "mailerdaemon",
    "postmaster",
    "listserv",
    "majordomo",
    "mailman",
    "nobody",
    "noreply",
    "no-reply",
    "no_reply",
    "donotreply",
    "do-not-reply",
    "do_not_reply",
    "bounce",
];
/// Prefixes and suffixes of local parts that belong to mailing lists (RFC 3834 §2, RFC 2142 §6) or take bounces.
const LIST_PREFIXES: [&str; 4] = ["owner-", "bounce-", "bounce+", "bounces+"];
const LIST_SUFFIXES: [&str; 7] =
    ["-request", "-owner", "-relay", "-bounces", "-bounce", "-noreply", "-no-reply"];

/// A message that was delivered to an account.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The message, or only its header. Its first `Return-Path`, which this server wrote on delivery, has the envelope sender.
    pub header: &'a [u8],
    /// The addresses of the account: its own and its aliases. Case is ignored.
    pub addresses: &'a [String],
    /// What separates an address from a detail in the account's domain, such as `+`.
    pub separator: Option<char>,
    /// Whether it was delivered to Junk.
    pub is_junk: bool,
}

/// Why a message is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoReply {
    /// It was delivered to Junk.
    Junk,
    /// It has no envelope sender, or an invalid one.
    NoReturnPath,
    /// The envelope sender is empty: the message is a report itself (RFC 5321 §4.5.5).
    NullSender,
    /// The sender is the account.
    OwnMessage,
    /// The sender's name is that of a program or a mailing list.
    Program,
    /// A program sent it (RFC 3834 §5, or the older fields of other vendors).
    Automatic,
    /// It came by a mailing list.
    List,
    /// No recipient field names the account (RFC 3834 §2).
    NotAddressed,
}

impl fmt::Display for NoReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Junk => "it is junk",
            Self::NoReturnPath => "it has no valid return path",
            Self::NullSender => "its return path is empty",
            Self::OwnMessage => "the account sent it itself",
            Self::Program => "its sender is a program or a list",
            Self::Automatic => "it was sent automatically",
            Self::List => "it came by a mailing list",
            Self::NotAddressed => "it does not name the account as recipient",
        })
    }
}

/// The address that an automatic reply goes to: the envelope sender (RFC 3834 §4).
///
/// # Errors
/// Why there is no reply.
pub fn decide(message: &Received<'_>) -> Result<String, NoReply> {
    if message.is_junk {
        return Err(NoReply::Junk);
    }
    let header = Header::parse(message.header);
    let sender = return_path(&header)?;
    if is_account(message, &sender) {
        return Err(NoReply::OwnMessage);
    }
    if is_program(&sender) {
        return Err(NoReply::Program);
    }
    if is_list(&header) {
        return Err(NoReply::List);
    }
    if is_automatic(&header) {
        return Err(NoReply::Automatic);
    }
    let is_addressed = RECIPIENT_FIELDS
        .iter()
        .flat_map(|name| header.all(name))
        .flat_map(|field| as_addresses(field.value))
        .take(RECIPIENTS_MAX)
        .any(|recipient| is_account(message, &recipient.email));
    if is_addressed { Ok(sender) } else { Err(NoReply::NotAddressed) }
}

/// The envelope sender. The field of this server is the first; others may follow it.
fn return_path(header: &Header<'_>) -> Result<String, NoReply> {
    let field = header.all("Return-Path").next().ok_or(NoReply::NoReturnPath)?;
    let value = std::str::from_utf8(field.value).map_err(|_| NoReply::NoReturnPath)?.trim();
    let path = value.strip_prefix('<').and_then(|path| path.strip_suffix('>')).unwrap_or(value).trim();
    if path.is_empty() {
        return Err(if value.is_empty() { NoReply::NoReturnPath } else { NoReply::NullSender });
    }
    let (local, domain) = path.rsplit_once('@').ok_or(NoReply::NoReturnPath)?;
    let is_address = !local.is_empty()
        && !domain.is_empty()
        && path.len() <= ADDRESS_BYTES_MAX
        && !path.chars().any(|c| c.is_control() || c.is_whitespace() || c == '<' || c == '>');
    if is_address { Ok(path.to_owned()) } else { Err(NoReply::NoReturnPath) }
}

/// Whether an address is one of the account, perhaps with a detail.
fn is_account(message: &Received<'_>, address: &str) -> bool {
    let address = address.trim().to_lowercase();
    let base = message.separator.and_then(|separator| {
        let (local, domain) = address.rsplit_once('@')?;
        let (base, _) = local.split_once(separator)?;
        Some(format!("{base}@{domain}"))
    });
    message.addresses.iter().any(|own| {
        let own = own.to_lowercase();
        own == address || base.as_ref() == Some(&own)
    })
}

fn is_program(sender: &str) -> bool {
    let local = sender.rsplit_once('@').map_or(sender, |(local, _)| local).to_ascii_lowercase();
    PROGRAMS.contains(&local.as_str())
        || LIST_PREFIXES.iter().any(|prefix| local.starts_with(prefix))
        || LIST_SUFFIXES.iter().any(|suffix| local.ends_with(suffix))
}

fn is_list(header: &Header<'_>) -> bool {
    header.fields().any(|field| LIST_FIELDS.iter().any(|name| field.is(name)))
}

/// Whether a field says that a program sent the message, or that no program may answer it.
fn is_automatic(header: &Header<'_>) -> bool {
    header.fields().any(|field| {
        let value = keyword(field.value);
        // RFC 3834 §5: any value but "no" counts, including unknown ones.
        if field.is("Auto-Submitted") {
            return value != "no";
        }
        if field.is("Precedence") {
            return matches!(value.as_str(), "bulk" | "junk" | "list" | "auto_reply");
        }
        // MS-OXCMAIL §2.2.3.2.14: a list of replies that must not be sent.
        if field.is("X-Auto-Response-Suppress") {
            let list = String::from_utf8_lossy(field.value).to_ascii_lowercase();
            return list.split([',', ';']).any(|item| matches!(item.trim(), "all" | "oof" | "autoreply"));
        }
        if field.is("X-Autoreply") || field.is("X-Autorespond") || field.is("X-Loop") {
            return value != "no";
        }
        field.is("X-Spam-Flag") && value == "yes"
    })
}

/// The first word of a field in lowercase, without parameters and comments.
fn keyword(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let end = text.find([';', '(']).unwrap_or(text.len());
    text.get(..end).unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(header: &str) -> Result<String, NoReply> {
        let addresses = ["anna@example.org".to_owned(), "info@example.org".to_owned()];
        let message = Received {
            header: header.as_bytes(),
            addresses: &addresses,
            separator: Some('+'),
            is_junk: false,
        };
        decide(&message)
    }

    fn with(field: &str) -> Result<String, NoReply> {
        decided(&format!(
            "Return-Path: <bob@example.net>\r\n{field}\r\nTo: Anna <anna@example.org>\r\n\r\nAuto-Submitted: text\r\n"
        ))
    }

    #[test]
    fn ar1_a_reply_goes_to_the_envelope_sender_and_never_to_an_empty_one() {
        let from =
            "From: <someone@example.com>\r\nReply-To: <other@example.com>\r\nTo: anna@example.org\r\n\r\n";
        for (field, expected) in [
            ("Return-Path: <bob@example.net>\r\n", Ok("bob@example.net".to_owned())),
            ("Return-Path: bob@example.net\r\n", Ok("bob@example.net".to_owned())),
            ("Return-Path: <Bob+x@Example.net>\r\n", Ok("Bob+x@Example.net".to_owned())),
            ("Return-Path: <one@example.net>\r\nReturn-Path: <>\r\n", Ok("one@example.net".to_owned())),
            ("Return-Path: <>\r\nReturn-Path: <one@example.net>\r\n", Err(NoReply::NullSender)),
            ("Return-Path: < >\r\n", Err(NoReply::NullSender)),
            ("Return-Path:\r\n", Err(NoReply::NoReturnPath)),
            ("Return-Path: <bob>\r\n", Err(NoReply::NoReturnPath)),
            ("Return-Path: <@example.net>\r\n", Err(NoReply::NoReturnPath)),
            ("Return-Path: <a@b> <c@d>\r\n", Err(NoReply::NoReturnPath)),
            ("Return-Path: <anna@example.org>\r\n", Err(NoReply::OwnMessage)),
            ("Return-Path: <Info+x@Example.org>\r\n", Err(NoReply::OwnMessage)),
            ("", Err(NoReply::NoReturnPath)),
        ] {
            assert_eq!(decided(&format!("{field}{from}")), expected, "{field}");
        }
    }

    #[test]
    fn ar2_nothing_automatic_is_answered() {
        assert_eq!(with("Auto-Submitted: no").unwrap(), "bob@example.net");
        assert_eq!(with("Auto-Submitted: No (a comment)").unwrap(), "bob@example.net");
        assert_eq!(with("Precedence: normal").unwrap(), "bob@example.net");
        assert_eq!(with("X-Auto-Response-Suppress: DR, RN").unwrap(), "bob@example.net");
        for field in [
            "Auto-Submitted: auto-replied",
            "auto-submitted:auto-generated; owner-email=a@b",
            "Auto-Submitted:\r\n auto-notified",
            "Auto-Submitted: something-new",
            "Auto-Submitted:",
            "Precedence: bulk",
            "PRECEDENCE:  Junk ",
            "Precedence: auto_reply",
            "X-Auto-Response-Suppress: All",
            "X-Auto-Response-Suppress: DR, OOF, AutoReply",
            "X-Autoreply: yes",
            "X-Loop: bob@example.net",
        ] {
            assert_eq!(with(field), Err(NoReply::Automatic), "{field}");
        }
    }

    #[test]
    fn ar3_lists_and_programs_are_not_answered() {
        for field in LIST_FIELDS {
            assert_eq!(with(&format!("{field}: <x.example.net>")), Err(NoReply::List), "{field}");
        }
        for local in [
            "MAILER-DAEMON",
            "owner-talk",
            "talk-request",
            "Talk-Owner",
            "talk-bounces",
            "noreply",
            "No-Reply",
            "bounce+x=y",
        ] {
            let header = format!("Return-Path: <{local}@example.net>\r\nTo: anna@example.org\r\n\r\n");
            assert_eq!(decided(&header), Err(NoReply::Program), "{local}");
        }
        for local in ["bob", "requester", "owner", "bouncer"] {
            let header = format!("Return-Path: <{local}@example.net>\r\nTo: anna@example.org\r\n\r\n");
            assert_eq!(decided(&header).unwrap(), format!("{local}@example.net"));
        }
    }

    #[test]
    fn ar4_only_what_names_the_account_and_is_no_junk_is_answered() {
        for fields in [
            "To: anna@example.org",
            "To: ANNA@EXAMPLE.ORG",
            "To: undisclosed:;\r\nCc: Bob <bob@example.net>, \"Anna, A.\" <anna+shop@example.org>",
            "Bcc: info@example.org",
            "To: team: bob@example.net, anna@example.org;",
            "To: x@example.net\r\nResent-To: anna@example.org",
        ] {
            let header = format!("Return-Path: <bob@example.net>\r\n{fields}\r\n\r\n");
            assert_eq!(decided(&header).unwrap(), "bob@example.net", "{fields}");
        }
        for fields in [
            "To: undisclosed-recipients:;",
            "To: anna@example.net",
            "To: anna-b@example.org",
            "Subject: anna@example.org",
            "X-To: anna@example.org\r\n\r\nTo: anna@example.org",
        ] {
            let header = format!("Return-Path: <bob@example.net>\r\n{fields}\r\n\r\n");
            assert_eq!(decided(&header), Err(NoReply::NotAddressed), "{fields}");
        }
        let addresses = ["anna@example.org".to_owned()];
        let header = b"Return-Path: <bob@example.net>\r\nTo: anna@example.org\r\n\r\n";
        let junk = Received { header, addresses: &addresses, separator: None, is_junk: true };
        assert_eq!(decide(&junk), Err(NoReply::Junk));
        let detail = b"Return-Path: <bob@example.net>\r\nTo: anna+x@example.org\r\n\r\n";
        let plain = Received { header: detail, addresses: &addresses, separator: None, is_junk: false };
        assert_eq!(decide(&plain), Err(NoReply::NotAddressed));
    }
}
