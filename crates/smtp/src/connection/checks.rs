//! The results of the checks of mail from other servers, for a client and its message.

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use restante_checks::{ClientFacts, Envelope, Judgement, Peer, Refused, Reverse, SenderChecks, Verdict};
use tokio::{task::JoinHandle, time::timeout};
use tracing::warn;

use super::{Client, envelope::Transaction, message::Incoming};
use crate::{
    NotedReply, Protocol,
    quarantine::{Quarantine, QuarantinedAbout},
    recipients::address_of_recipient,
    refusal::Refusal,
    trace::Header,
};

/// The longest that the server waits for a check, whatever the settings: clients wait ten minutes (RFC 5321 §4.5.3.2.6).
const CHECK_TIME_MAX: Duration = Duration::from_secs(300);
/// The most bytes of fields that checks put before a message.
const FIELDS_BYTES_MAX: usize = 16 << 10;
/// The longest text of a refusal, and the longest reason.
const TEXT_BYTES_MAX: usize = 400;

/// The checks of one client.
pub(super) struct ClientChecks {
    checks: Arc<dyn SenderChecks>,
    address: IpAddr,
    lookup: Option<Lookup>,
    facts: Arc<ClientFacts>,
}

/// A look-up that runs while the client talks. Dropping it ends it.
struct Lookup(JoinHandle<ClientFacts>);

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is done with a message.
pub(super) enum Decision {
    /// It is delivered to its recipients.
    Accept,
    /// It goes to Junk.
    Junk(String),
    /// It is kept for the operator.
    Quarantine(String, Arc<dyn Quarantine>),
    /// It is refused.
    Refuse(Refused),
}

/// A decision, and the fields that are put before the message.
pub(super) struct Judged {
    pub(super) decision: Decision,
    pub(super) fields: String,
}

impl Judged {
    /// The result for a message that is not checked.
    const UNCHECKED: Self = Self { decision: Decision::Accept, fields: String::new() };
}

impl ClientChecks {
    /// Begins to look up a client; `None` when its mail is not checked.
    pub(super) fn begin(checks: &Arc<dyn SenderChecks>, address: IpAddr) -> Option<Self> {
        if checks.is_exempt(address) {
            return None;
        }
        let asked = checks.clone();
        let lookup = tokio::spawn(async move { asked.client(address).await });
        let facts = Arc::new(ClientFacts::UNKNOWN);
        Some(Self { checks: checks.clone(), address, lookup: Some(Lookup(lookup)), facts })
    }

    /// What is known of the client. The first call waits for the look-up.
    async fn facts(&mut self) -> Arc<ClientFacts> {
        if let Some(mut lookup) = self.lookup.take() {
            match timeout(CHECK_TIME_MAX, &mut lookup.0).await {
                Ok(Ok(facts)) => self.facts = Arc::new(facts),
                Ok(Err(error)) => {
                    warn!(%error, "looking a client up broke off: its mail is checked without that")
                }
                Err(_) => warn!("looking a client up took too long: its mail is checked without that"),
            }
        }
        self.facts.clone()
    }

    /// The name of the client that resolves back to its address, as far as it is known now.
    fn confirmed_name(&self) -> Option<&str> {
        match &self.facts.reverse {
            Reverse::Confirmed(name) if is_plain(name) => Some(name),
            _ => None,
        }
    }
}

impl Client {
    /// Begins to look the client up, if its mail is checked.
    pub(super) fn begin_checks(&mut self) {
        if self.protocol != Protocol::Smtp {
            return;
        }
        if let (Some(checks), Some(address)) = (&self.server.checks, self.address) {
            self.checks = ClientChecks::begin(checks, address);
        }
    }

    /// The client's name in the DNS, if it resolves back to the client's address.
    pub(super) fn confirmed_name(&self) -> Option<&str> {
        self.checks.as_ref()?.confirmed_name()
    }

    fn peer_of(&self, address: IpAddr) -> Peer {
        Peer { address, hello: self.hello_name().to_owned(), is_tls: self.is_tls }
    }

    /// Whether the checks let the client send to a recipient that exists.
    pub(super) async fn check_recipient_of_client(&mut self, recipient: &str) -> Result<(), Refused> {
        let Some(checks) = &mut self.checks else { return Ok(()) };
        let facts = checks.facts().await;
        let (checks, address) = (checks.checks.clone(), checks.address);
        let peer = self.peer_of(address);
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        // Checked once: each recipient of the message gets the same result.
        let sender_checked = match &transaction.sender_checked {
            Some(checked) => checked.clone(),
            None => {
                let asked = checks.sender(&peer, &facts, &transaction.sender);
                let checked = timeout(CHECK_TIME_MAX, asked).await.unwrap_or(Ok(())).map_err(plain);
                transaction.sender_checked = Some(checked.clone());
                checked
            }
        };
        sender_checked?;
        let asked = checks.recipient(&peer, &facts, &transaction.sender, recipient);
        timeout(CHECK_TIME_MAX, asked).await.unwrap_or(Ok(())).map_err(plain)
    }

    /// Decides what is done with a complete message. The message is taken out of `incoming` meanwhile, and is back in it when this returns.
    pub(super) async fn judge(&self, transaction: &Transaction, incoming: &mut Incoming) -> Judged {
        let Some(checks) = &self.checks else { return Judged::UNCHECKED };
        let peer = self.peer_of(checks.address);
        let recipients: Vec<&str> =
            transaction.recipients.iter().map(|recipient| recipient.address.as_str()).collect();
        let envelope = Envelope {
            peer: &peer,
            facts: &checks.facts,
            id: &transaction.id,
            sender: &transaction.sender,
            recipients: &recipients,
            received: u64::try_from(self.server.clock.now().seconds()).unwrap_or_default(),
        };
        let whole = Bytes::from(std::mem::take(&mut incoming.raw)); // not copied
        let raw = whole.slice(incoming.trace_bytes.min(whole.len())..);
        let judgement = timeout(CHECK_TIME_MAX, checks.checks.message(envelope, raw)).await;
        incoming.raw = Vec::from(whole); // not copied, unless a check still has the message
        let Ok(judgement) = judgement else {
            warn!("checking a message took too long: it is taken without that");
            return Judged::UNCHECKED;
        };
        let Judgement { verdict, mut fields, filter, .. } = judgement;
        if fields.len() > FIELDS_BYTES_MAX || !(fields.is_empty() || fields.ends_with("\r\n")) {
            warn!("checks made fields that can't be put before a message: they are left out");
            fields.clear();
        }
        let decision = match verdict {
            Verdict::Accept => Decision::Accept,
            Verdict::Junk(reason) => Decision::Junk(with_filter(&reason, filter)),
            Verdict::Quarantine(reason) => match &self.server.quarantine {
                Some(quarantine) => Decision::Quarantine(with_filter(&reason, filter), quarantine.clone()),
                None => Decision::Junk(with_filter(&reason, filter)),
            },
            Verdict::Refuse(refused) => Decision::Refuse(plain(refused)),
        };
        Judged { decision, fields }
    }

    /// Reads the header of a message, and notes which fields must not be stored: also those of others that claim to be from this
    /// server, where its checks add such fields themselves.
    pub(super) fn header_of(&self, message: &[u8]) -> Header {
        match &self.checks {
            Some(checks) => Header::read_with(message, |value| checks.checks.claims_to_be_ours(value)),
            None => Header::read(message),
        }
    }

    /// What is stored with a message in the quarantine.
    pub(super) async fn about_quarantined(
        &self,
        transaction: &Transaction,
        reason: String,
    ) -> Result<QuarantinedAbout, Refusal> {
        let mut recipients = Vec::new();
        for recipient in &transaction.recipients {
            let address = address_of_recipient(&self.server, &recipient.address).await?;
            if !recipients.contains(&address) {
                recipients.push(address);
            }
        }
        Ok(QuarantinedAbout {
            id: transaction.id.clone(),
            peer: self.address,
            hello: self.hello_name().to_owned(),
            sender: transaction.sender.clone(),
            recipients,
            reason,
            is_utf8: transaction.parameters.is_utf8,
        })
    }
}

/// A refusal by a check, as the journal stores it.
pub(super) fn refused_with(refused: &Refused) -> NotedReply {
    NotedReply { code: refused.code, status: refused.enhanced.into(), reason: refused.text.clone().into() }
}

/// A refusal as it can be sent, whatever foreign text a check has put into it.
fn plain(refused: Refused) -> Refused {
    let is_permanent = (500..600).contains(&refused.code);
    let code = if is_permanent || (400..500).contains(&refused.code) { refused.code } else { 451 };
    // The class of the enhanced code must be that of the code (RFC 2034 §4).
    let fits = refused.enhanced.starts_with(if is_permanent { "5." } else { "4." });
    let enhanced = match (fits, is_permanent) {
        (true, _) => refused.enhanced,
        (false, true) => "5.7.1",
        (false, false) => "4.7.1",
    };
    Refused { code, enhanced, text: one_line(&refused.text), check: refused.check }
}

/// A reason, with what the filter said unless the reason already contains it.
fn with_filter(reason: &str, filter: Option<String>) -> String {
    match filter.filter(|said| !reason.contains(said.as_str())) {
        Some(said) => one_line(&format!("{reason} ({said})")),
        None => one_line(reason),
    }
}

/// A text reduced to printable ASCII and to the maximum length.
fn one_line(text: &str) -> String {
    let text = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
    text.take(TEXT_BYTES_MAX).collect()
}

/// Whether a name may be used in a `Received` field.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chk12_whatever_a_check_says_is_one_reply_of_the_right_class() {
        let refused = |code, enhanced, text: &str| {
            let refused = plain(Refused { code, enhanced, text: text.to_owned(), check: "filter" });
            (refused.code, refused.enhanced, refused.text)
        };
        assert_eq!(refused(550, "5.7.1", "no"), (550, "5.7.1", "no".to_owned()));
        assert_eq!(refused(451, "5.7.1", "a\r\n250 b"), (451, "4.7.1", "a??250 b".to_owned()));
        assert_eq!(refused(554, "", "\u{e9}"), (554, "5.7.1", "?".to_owned()));
        assert_eq!(refused(250, "2.0.0", ""), (451, "4.7.1", String::new()));
        assert_eq!(refused(550, "5.7.1", &"x".repeat(1_000)).2.len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn chk12_a_reason_has_what_the_filter_said() {
        assert_eq!(with_filter("dmarc", None), "dmarc");
        assert_eq!(with_filter("dmarc", Some("score 7".to_owned())), "dmarc (score 7)");
        assert_eq!(with_filter("rspamd: score 7", Some("score 7".to_owned())), "rspamd: score 7");
    }
}
