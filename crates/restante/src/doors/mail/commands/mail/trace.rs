//! `restante mail trace`

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
};

use anyhow::bail;
use clap::Args;
use indicatif::DecimalBytes;

use super::{
    deliveries::{LIMIT_MAX, QUEUE, Traced, TracedDelivery},
    operate::{MailAnswer, MailOperation, ReachedMail},
};
use crate::{
    clock,
    doors::mail::commands::directory::{reach::DirectoryFlags, show},
    exit,
    moment::{Moment, parse_moment},
    output::{printable, short},
};

/// The most characters of an address and of a Message-ID in a table on a terminal.
const ADDRESS_CHARS: usize = 32;
const MESSAGE_ID_CHARS: usize = 40;
const HEAD: &[&str] = &["time", "outcome", "from", "to", "peer", "size", "message id", "reply or email"];

#[derive(Args, Debug)]
pub(crate) struct TraceFlags {
    /// An address of a sender or recipient, a Message-ID as '<id@host>', or the id that the reply to a message had
    #[arg(value_name = "ADDRESS|MESSAGE-ID")]
    about: String,
    /// Nothing before this: 2026-01-31T12:00:00Z, 2026-01-31, -1h, -7d [default: everything that is kept]
    #[arg(long, value_name = "TIME", value_parser = parse_moment, allow_hyphen_values = true)]
    since: Option<Moment>,
    /// Print at most this many, the newest
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=LIMIT_MAX as i64))]
    limit: u16,
    #[command(flatten)]
    flags: DirectoryFlags,
}

pub(super) async fn run(flags: &TraceFlags) -> anyhow::Result<ExitCode> {
    let TraceFlags { about, since, limit, flags } = flags;
    let since_ms = since.map(|moment| moment.resolve(clock::system().now()).0 / 1_000_000);
    let (about, limit) = (about.trim().to_owned(), usize::from(*limit));
    let operation = MailOperation::Trace { about: about.clone(), since_ms, limit };
    let reached = flags.reach().await?;
    let answer = async { ReachedMail::with_journal(&reached).await?.operate(operation).await }.await;
    reached.close().await?;
    let MailAnswer::Traced(traced) = answer? else {
        bail!("the server's answer is none to a look-up of deliveries");
    };
    if !traced.is_on {
        bail!(
            "there is no journal of deliveries: mail.journal.days is 0, no server has run with these settings, or records are in memory"
        );
    }
    let is_terminal = io::stdout().is_terminal();
    show::list(&traced.deliveries, flags.format, HEAD, |delivery| cells(delivery, is_terminal))?;
    if traced.deliveries.is_empty() {
        eprintln!("restante: {}", printable(&nothing_found(&about, since_ms, &traced)));
        return Ok(exit::found_wrong());
    }
    if traced.has_more && io::stderr().is_terminal() {
        eprintln!("restante: there are more: see --limit and --since");
    }
    Ok(ExitCode::SUCCESS)
}

/// Explains why nothing was found.
fn nothing_found(about: &str, since_ms: Option<i64>, traced: &Traced) -> String {
    let Some(begins) = traced.begins else {
        return "the journal of deliveries has no entry yet: nothing has come by SMTP or LMTP".to_owned();
    };
    let since = show::time(begins.max(since_ms.unwrap_or(begins)).div_euclid(1_000));
    format!(
        "no message of '{about}' since {since}: none was delivered, and none was refused after its sender was named. \
         Look in the log of the server that should have sent it"
    )
}

/// The columns of an entry; with `is_short` long values are cut.
fn cells(delivery: &TracedDelivery, is_short: bool) -> Vec<String> {
    let cut = |text: &str, chars: usize| if is_short { short(text, chars) } else { text.to_owned() };
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let sender = if delivery.sender.is_empty() { "<>" } else { &delivery.sender };
    let message_id = delivery.message_id.as_deref().map(|id| cut(&format!("<{id}>"), MESSAGE_ID_CHARS));
    vec![
        show::time(delivery.at.div_euclid(1_000)),
        delivery.outcome.as_str().to_owned(),
        cut(sender, ADDRESS_CHARS),
        or_dash(cut(&delivery.recipient, ADDRESS_CHARS)),
        peer(delivery),
        DecimalBytes(delivery.bytes).to_string(),
        or_dash(message_id.unwrap_or_default()),
        or_dash(detail(delivery)),
    ]
}

/// The client; for mail that was sent, the server that replied.
fn peer(delivery: &TracedDelivery) -> String {
    match &delivery.peer {
        Some(peer) => peer.clone(),
        None if delivery.listener != QUEUE => "socket".to_owned(),
        None if delivery.hello.is_empty() => QUEUE.to_owned(),
        None => delivery.hello.clone(),
    }
}

/// The reply of a refusal; else the email, and the account's address when it differs from the recipient.
fn detail(delivery: &TracedDelivery) -> String {
    let mut words: Vec<String> = Vec::new();
    words.extend(delivery.code.map(|code| code.to_string()));
    words.extend(delivery.status.clone().filter(|status| !status.is_empty()));
    words.extend(delivery.reason.clone());
    words.extend(delivery.email_id.clone());
    let address =
        delivery.address.clone().filter(|address| !address.eq_ignore_ascii_case(&delivery.recipient));
    words.extend(address.map(|address| format!("({address})")));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delivery(outcome: &str, more: serde_json::Value) -> TracedDelivery {
        let mut entry = json!({
            "at": 1_554_076_800_000_i64, "outcome": outcome, "listener": "smtp", "isTls": true, "peer": "192.0.2.1",
            "hello": "mx.example.net", "sender": "bob@example.net", "recipient": "info@example.org", "id": "5-1",
            "messageId": "1@example.net", "bytes": 4096,
        });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn a_line_says_what_became_of_a_message() {
        let stored =
            delivery("delivered", json!({"emailId": "e17", "account": 100, "address": "anna@example.org"}));
        assert_eq!(
            cells(&stored, false).join("|"),
            "2019-04-01T00:00:00Z|delivered|bob@example.net|info@example.org|192.0.2.1|4.10 kB|<1@example.net>|e17 (anna@example.org)"
        );
        let refused = json!({
            "code": 550, "status": "5.1.1", "reason": "no such user here", "sender": "", "messageId": null, "bytes": 0,
            "peer": null, "recipient": "",
        });
        assert_eq!(
            cells(&delivery("refused", refused), false).join("|"),
            "2019-04-01T00:00:00Z|refused|<>|-|socket|0 B|-|550 5.1.1 no such user here"
        );
        assert_eq!(cells(&delivery("broken_off", json!({})), false)[7], "-");
        let sent = json!({"listener": "queue", "peer": null, "code": 250, "status": "2.0.0", "reason": "taken", "hello": "mx"});
        let sent = cells(&delivery("sent", sent), false);
        assert_eq!((sent[1].as_str(), sent[4].as_str(), sent[7].as_str()), ("sent", "mx", "250 2.0.0 taken"));
        let down = json!({"listener": "queue", "peer": null, "hello": ""});
        assert_eq!(cells(&delivery("postponed", down), false)[4], "queue");
        let long = json!({"recipient": "a".repeat(100)});
        assert_eq!(cells(&delivery("repeated", long.clone()), true)[3].chars().count(), ADDRESS_CHARS);
        assert_eq!(cells(&delivery("repeated", long), false)[3].len(), 100);
    }

    #[test]
    fn nothing_found_has_a_meaning() {
        let mut traced = Traced { is_on: true, ..Traced::default() };
        let text = nothing_found("x@example.org", None, &traced);
        assert!(text.contains("no entry yet"), "{text}");
        traced.begins = Some(1_554_076_800_000);
        let text = nothing_found("x@example.org", None, &traced);
        assert!(text.starts_with("no message of 'x@example.org' since 2019-04-01T00:00:00Z: "), "{text}");
        let text = nothing_found("x@example.org", Some(1_554_076_801_000), &traced);
        assert!(text.contains("since 2019-04-01T00:00:01Z: "), "{text}");
    }
}
