//! Searches the journal of deliveries: for `restante mail trace`, and `GET /admin/v1/mail/deliveries` for the console and scripts.

use axum::{
    Json,
    extract::RawQuery,
    response::{IntoResponse, Response},
};
use restante_core::{Error, Timestamp};
use restante_http::{Audience, Refusal, Route, path::decode_form};
use restante_records::AccountId;
use restante_smtp::{About, DeliveryEntry, DeliveryJournal, Lookup, Outcome, Protocol};
use serde::{Deserialize, Serialize};

use crate::doors::mail::commands::directory::refusal;

/// The default and the maximum of entries in a response.
const LIMIT: usize = 50;
pub(super) const LIMIT_MAX: usize = 1_000;
/// The longest search text.
const ABOUT_BYTES_MAX: usize = 1_024;
/// The allowed parameters of a request.
const NAMES: &[&str] = &["about", "account", "limit", "since"];
const NANOS_PER_MS: i64 = 1_000_000;
/// The listener of mail that was sent from the queue.
pub(super) const QUEUE: &str = "queue";

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Traced {
    /// The newest first.
    pub(super) deliveries: Vec<TracedDelivery>,
    /// Whether there are more than the limit.
    pub(super) has_more: bool,
    /// The time of the oldest entry of all, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) begins: Option<i64>,
    /// Whether there is a journal.
    pub(super) is_on: bool,
}

/// A recipient of a message, and the outcome for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TracedDelivery {
    /// In milliseconds since 1970.
    pub(super) at: i64,
    pub(super) outcome: TracedOutcome,
    /// The JMAP id of the email.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) email_id: Option<String>,
    /// The reply with which it was refused or sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// `smtp`, `lmtp`, `submission`, `submissions`; `queue` for mail that was in the queue of this server.
    pub(super) listener: String,
    pub(super) is_tls: bool,
    /// None on a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<String>,
    pub(super) hello: String,
    /// Empty for `<>`.
    pub(super) sender: String,
    pub(super) recipient: String,
    /// The address of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) account: Option<u32>,
    /// The id of the reply.
    pub(super) id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) message_id: Option<String>,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TracedOutcome {
    /// Stored.
    Delivered,
    /// Stored in Junk because of a check.
    Junk,
    /// Kept for the operator because of a check.
    Quarantined,
    /// Queued for another server.
    Queued,
    /// Had already been stored.
    Repeated,
    /// Refused temporarily.
    Deferred,
    /// Refused permanently.
    Refused,
    /// The connection was lost during the message.
    BrokenOff,
    /// Accepted by another server.
    Sent,
    /// Sending failed, and will be retried.
    Postponed,
    /// Sending failed, and will not be retried.
    Failed,
    /// Its sender gets a report.
    Reported,
    /// Released from the quarantine by an operator, and delivered to the recipient.
    Released,
    /// Released by an operator, but it could not be delivered to the recipient.
    NotReleased,
    /// Dropped by an operator from the quarantine or from the queue, or canceled by its author.
    Dropped,
}

impl TracedOutcome {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Junk => "junk",
            Self::Quarantined => "quarantined",
            Self::Queued => "queued",
            Self::Repeated => "repeated",
            Self::Deferred => "deferred",
            Self::Refused => "refused",
            Self::BrokenOff => "broken off",
            Self::Sent => "sent",
            Self::Postponed => "postponed",
            Self::Failed => "failed",
            Self::Reported => "reported",
            Self::Released => "released",
            Self::NotReleased => "not released",
            Self::Dropped => "dropped",
        }
    }
}

impl From<DeliveryEntry> for TracedDelivery {
    fn from(entry: DeliveryEntry) -> Self {
        let mut why = None;
        let (outcome, email_id, reply) = match entry.outcome {
            Outcome::Stored(id) => (TracedOutcome::Delivered, Some(format!("e{}", id.0)), None),
            Outcome::Junk { email, reason } => {
                why = Some(reason.into_owned());
                (TracedOutcome::Junk, Some(format!("e{}", email.0)), None)
            }
            Outcome::Quarantined(reason) => {
                why = Some(reason.into_owned());
                (TracedOutcome::Quarantined, None, None)
            }
            Outcome::Queued => (TracedOutcome::Queued, None, None),
            Outcome::Repeated => (TracedOutcome::Repeated, None, None),
            Outcome::BrokenOff => (TracedOutcome::BrokenOff, None, None),
            Outcome::Refused(reply) if reply.code < 500 => (TracedOutcome::Deferred, None, Some(reply)),
            Outcome::Refused(reply) => (TracedOutcome::Refused, None, Some(reply)),
            Outcome::Sent(reply) => (TracedOutcome::Sent, None, Some(reply)),
            Outcome::Postponed(reply) => (TracedOutcome::Postponed, None, Some(reply)),
            Outcome::Failed(reply) => (TracedOutcome::Failed, None, Some(reply)),
            Outcome::Reported(reply) => (TracedOutcome::Reported, None, Some(reply)),
            Outcome::Released { email, by } => {
                why = Some(format!("by {by}"));
                (TracedOutcome::Released, email.map(|id| format!("e{}", id.0)), None)
            }
            Outcome::NotReleased(reply) => (TracedOutcome::NotReleased, None, Some(reply)),
            Outcome::Dropped(by) => {
                why = Some(format!("by {by}"));
                (TracedOutcome::Dropped, None, None)
            }
        };
        let (account, address) = entry.account.map(|(account, address)| (account.0, address)).unzip();
        Self {
            at: entry.time.0 / NANOS_PER_MS,
            outcome,
            email_id,
            code: reply.as_ref().map(|reply| reply.code).filter(|code| *code != 0),
            status: reply.as_ref().map(|reply| reply.status.to_string()),
            reason: reply.map(|reply| reply.reason.into_owned()).or(why),
            listener: entry.protocol.map_or(QUEUE, Protocol::as_str).to_owned(),
            is_tls: entry.is_tls,
            peer: entry.peer.map(|ip| ip.to_string()),
            hello: entry.hello,
            sender: entry.sender,
            recipient: entry.recipient,
            address,
            account,
            id: entry.id,
            message_id: entry.message_id,
            bytes: entry.bytes,
        }
    }
}

/// Searches the journal, if there is one. `since_ms` counts from 1970.
pub(super) async fn look_up(
    journal: Option<&DeliveryJournal>,
    about: About,
    since_ms: Option<i64>,
    limit: usize,
) -> Result<Traced, Error> {
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Error::invalid(format!("'limit' is a whole number from 1 to {LIMIT_MAX}")));
    }
    if matches!(&about, About::Text(text) if text.len() > ABOUT_BYTES_MAX) {
        return Err(Error::invalid(format!("'about' has more than {ABOUT_BYTES_MAX} bytes")));
    }
    let Some(journal) = journal else { return Ok(Traced::default()) };
    let since = since_ms.map_or(Timestamp::MIN, |ms| Timestamp(ms.saturating_mul(NANOS_PER_MS)));
    let found = journal.find(Lookup { about, since, limit }).await?;
    Ok(Traced {
        deliveries: found.entries.into_iter().map(TracedDelivery::from).collect(),
        has_more: found.has_more,
        begins: found.begins.map(|time| time.0 / NANOS_PER_MS),
        is_on: true,
    })
}

/// `GET /admin/v1/mail/deliveries?about=anna@example.org&limit=50`
pub(super) fn route(journal: Option<DeliveryJournal>) -> Route {
    let show = move |query| answer(journal.clone(), query);
    let what = "what became of messages that came by SMTP or LMTP or were sent, the newest first";
    Route::get("/admin/v1/mail/deliveries", what, show).with_audience(Audience::Operators)
}

async fn answer(
    journal: Option<DeliveryJournal>,
    RawQuery(query): RawQuery,
) -> Result<Json<Traced>, Response> {
    let asked = Asked::read(query.as_deref().unwrap_or_default()).map_err(IntoResponse::into_response)?;
    let found = look_up(journal.as_ref(), asked.about, asked.since_ms, asked.limit).await;
    found.map(Json).map_err(|error| refusal(&error))
}

/// The parameters of a request.
#[derive(Debug, PartialEq)]
struct Asked {
    about: About,
    since_ms: Option<i64>,
    limit: usize,
}

impl Asked {
    fn read(query: &str) -> Result<Self, Refusal> {
        let mut asked = Self { about: About::Everything, since_ms: None, limit: LIMIT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = |what: &str| Refusal::field(name, what);
            match name {
                "about" | "account" if asked.about != About::Everything => {
                    return Err(Refusal::field(name, "name one address, message or account"));
                }
                "about" => asked.about = About::Text(decode_form(value, name)?.into_owned()),
                "account" => {
                    let account = value.parse().map_err(|_| number("expected the number of an account"))?;
                    asked.about = About::Account(AccountId(account));
                }
                "since" => {
                    let since = value.parse().map_err(|_| number("expected milliseconds since 1970"))?;
                    asked.since_ms = Some(since);
                }
                "limit" => {
                    asked.limit =
                        value.parse().map_err(|_| number("expected a whole number from 1 to 1000"))?;
                }
                _ => return Err(Refusal::unknown(name, NAMES)),
            }
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;
    use restante_records::RecordId;
    use restante_smtp::NotedReply;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_names_what_it_is_about() {
        let about = |about| Asked { about, since_ms: None, limit: 50 };
        assert_eq!(Asked::read("").unwrap(), about(About::Everything));
        let text = About::Text("<a+b@x>".to_owned());
        assert_eq!(Asked::read("about=%3Ca%2Bb%40x%3E").unwrap(), about(text));
        let whole = Asked { about: About::Account(AccountId(12)), since_ms: Some(-5), limit: 7 };
        assert_eq!(Asked::read("account=12&since=-5&limit=7").unwrap(), whole);
        for wrong in ["x=1", "limit=a", "since=1s", "account=anna", "about=a&account=1", "about=%ff"] {
            assert!(Asked::read(wrong).is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn without_a_journal_the_answer_says_so() {
        assert!(!look_up(None, About::Everything, None, 1).await.unwrap().is_on);
        for limit in [0, LIMIT_MAX + 1] {
            let error = look_up(None, About::Everything, None, limit).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn an_entry_is_shown_with_what_is_known() {
        let reply = NotedReply { code: 452, status: "4.2.2".into(), reason: "the mailbox is full".into() };
        let entry = DeliveryEntry {
            time: Timestamp(1_700_000_000_123_456_789),
            protocol: Some(Protocol::Lmtp),
            is_tls: false,
            peer: None,
            hello: "mx".to_owned(),
            sender: String::new(),
            recipient: "anna@example.org".to_owned(),
            account: None,
            id: "5-1".to_owned(),
            message_id: None,
            bytes: 0,
            outcome: Outcome::Refused(reply),
        };
        assert_eq!(
            serde_json::to_value(TracedDelivery::from(entry.clone())).unwrap(),
            json!({
                "at": 1_700_000_000_123_i64, "outcome": "deferred", "code": 452, "status": "4.2.2",
                "reason": "the mailbox is full", "listener": "lmtp", "isTls": false, "hello": "mx", "sender": "",
                "recipient": "anna@example.org", "id": "5-1", "bytes": 0,
            })
        );
        let report = NotedReply { code: 0, status: "".into(), reason: "failed, report q01".into() };
        let reported = DeliveryEntry { protocol: None, outcome: Outcome::Reported(report), ..entry.clone() };
        let shown = TracedDelivery::from(reported);
        assert_eq!(
            (shown.listener.as_str(), shown.outcome, shown.code),
            (QUEUE, TracedOutcome::Reported, None)
        );
        let account = Some((AccountId(100), "anna@example.org".to_owned()));
        let stored = DeliveryEntry { account, outcome: Outcome::Stored(RecordId(17)), ..entry };
        let shown = TracedDelivery::from(stored);
        assert_eq!((shown.outcome, shown.email_id.as_deref()), (TracedOutcome::Delivered, Some("e17")));
        assert_eq!((shown.account, shown.address.as_deref()), (Some(100), Some("anna@example.org")));
    }
}
