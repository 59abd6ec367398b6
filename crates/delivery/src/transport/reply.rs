//! How replies of servers apply to recipients.

use restante_mail::queue::Reply;
use restante_mail_wire::smtp::peer::PeerReply;

/// The longest text of a reply that is kept.
const TEXT_BYTES_MAX: usize = 512;

/// A server's reply to a command that could succeed or fail. Other replies violate the protocol, and count as temporary.
pub(super) fn of(server: &str, reply: &PeerReply) -> Reply {
    let class = reply.code / 100;
    if !matches!(class, 2 | 4 | 5) {
        return unexpected(server, reply);
    }
    let enhanced = reply.enhanced.clone().unwrap_or_else(|| format!("{class}.0.0"));
    Reply { code: reply.code, enhanced, text: reply.text(TEXT_BYTES_MAX), from: Some(server.to_owned()) }
}

/// The same for `RCPT`. RFC 5321 §4.5.3.1.10: 552 says that there are too many recipients for one message, unless its enhanced status code speaks of
/// the mailbox or the size.
pub(super) fn of_rcpt(server: &str, reply: &PeerReply) -> Reply {
    let found = of(server, reply);
    let is_about_space = found.enhanced.starts_with("5.2.") || found.enhanced.starts_with("5.3.");
    if found.code == 552 && !is_about_space {
        return Reply { code: 452, enhanced: "4.5.3".to_owned(), ..found };
    }
    found
}

/// An unexpected reply. It counts as temporary, whatever its code. The text is this server's own, so it names the other server.
pub(super) fn unexpected(server: &str, reply: &PeerReply) -> Reply {
    let text = reply.text(TEXT_BYTES_MAX);
    Reply::own(451, "4.5.0", format!("unexpected reply of the server {server}: {} {text}", reply.code))
}

/// A reply that is not about the message, such as a failed log-in: it counts as temporary.
pub(super) fn temporary(server: &str, reply: &PeerReply, code: u16, enhanced: &str) -> Reply {
    let text = reply.text(TEXT_BYTES_MAX);
    Reply::own(code, enhanced, format!("the server {server} replied {} {text}", reply.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(code: u16, enhanced: Option<&str>) -> PeerReply {
        PeerReply { code, enhanced: enhanced.map(str::to_owned), lines: vec!["text".into()] }
    }

    #[test]
    fn out14_replies_are_for_good_only_when_they_say_so() {
        for (code, enhanced, expected) in [
            (250, Some("2.1.5"), (250, "2.1.5")),
            (550, None, (550, "5.0.0")),
            (451, None, (451, "4.0.0")),
            (354, None, (451, "4.5.0")),
        ] {
            let reply = of("mx", &peer(code, enhanced));
            assert_eq!((reply.code, reply.enhanced.as_str()), expected);
            let (is_own, server) = (code == 354, reply.from.as_deref());
            assert_eq!(server, if is_own { None } else { Some("mx") });
            assert_eq!(reply.text.contains("unexpected reply of the server mx: 354 text"), is_own);
        }
    }

    #[test]
    fn out14_too_many_recipients_are_for_now() {
        let of = |enhanced| of_rcpt("mx", &peer(552, enhanced)).code;
        assert_eq!((of(None), of(Some("5.5.3"))), (452, 452));
        assert_eq!((of(Some("5.2.2")), of(Some("5.3.4"))), (552, 552), "the mailbox is full");
    }
}
