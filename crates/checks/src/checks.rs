//! All checks of a message together.

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use restante_core::Error;
use tokio::{
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tracing::warn;

use crate::{
    Authentication, Authenticator, ChecksConfig, ChecksMetrics, ClientFacts, DmarcSeen, Envelope, Filter,
    FilterVerdict, Judgement, Peer, Refused, ReportSink, SenderChecks,
    attachments::Patterns,
    authentication::{claims_to_be_ours, results_field},
    network::Network,
    policy::{self, Found},
};

/// The most names of attachments that are compared with patterns.
const ATTACHMENTS_MAX: usize = 1_000;

/// The names of the attachments of a raw message, decoded; `None` if it has more than this many, or more parts than are parsed.
/// The mail model parses the structure of messages.
pub type AttachmentNames = Arc<dyn Fn(&[u8], usize) -> Option<Vec<String>> + Send + Sync>;

/// The components of the checks.
#[derive(Clone)]
pub struct Parts {
    /// The name of this server, for `Authentication-Results`.
    pub hostname: String,
    /// Finds out which domains authenticate a message.
    pub authenticator: Authenticator,
    /// Checks clients.
    pub client: Arc<dyn ClientChecking>,
    /// A content filter, if there is one.
    pub filter: Option<Arc<dyn Filter>>,
    /// Extracts the names of attachments.
    pub attachment_names: AttachmentNames,
    /// Gets the results of DMARC, for reports to the owners of domains.
    pub reports: Option<Arc<dyn ReportSink>>,
    /// The metrics.
    pub metrics: ChecksMetrics,
}

/// All checks, by the settings. Cloning shares them.
#[derive(Clone)]
pub struct Checks(Arc<Inner>);

struct Inner {
    config: ChecksConfig,
    exempt: Vec<Network>,
    attachments: Patterns,
    parts: Parts,
}

impl Checks {
    /// Creates the checks for these settings.
    ///
    /// # Errors
    /// `Invalid` if the settings can't be used.
    pub fn new(config: ChecksConfig, parts: Parts) -> Result<Self, Error> {
        if let Some((setting, advice)) = config.problem() {
            return Err(Error::invalid(format!("the setting checks.{setting} can't be used: {advice}")));
        }
        let exempt = config.exempt.iter().filter_map(|network| Network::parse(network).ok()).collect();
        let attachments = Patterns::new(&config.attachments);
        Ok(Self(Arc::new(Inner { config, exempt, attachments, parts })))
    }
}

impl Inner {
    fn timeout(&self) -> Duration {
        Duration::from_millis(self.config.timeout_ms.get())
    }

    /// The result of a check, or `None` if it takes too long or fails: then it is not held against the message.
    async fn in_time<T>(&self, check: &'static str, found: impl Future<Output = T> + Send) -> Option<T> {
        match timeout(self.timeout(), AssertUnwindSafe(found).catch_unwind()).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(_)) => {
                warn!(check, "a check of a message failed: the message is taken without it");
                self.parts.metrics.count_not_judged(check);
                None
            }
            Err(_) => {
                self.parts.metrics.count_not_judged(check);
                None
            }
        }
    }

    async fn ask_filter(&self, envelope: Envelope<'_>, raw: Bytes) -> Option<FilterVerdict> {
        let filter = self.parts.filter.as_ref().filter(|filter| filter.takes(raw.len() as u64))?;
        match self.in_time("filter", filter.judge(envelope, raw)).await? {
            Ok(verdict) => Some(verdict),
            Err(error) => {
                tracing::debug!(%error, "the filter did not judge a message");
                self.parts.metrics.count_not_judged("filter");
                None
            }
        }
    }

    /// The first attachment that is refused.
    async fn find_attachment(&self, raw: Bytes) -> Option<String> {
        if self.attachments.is_empty() {
            return None;
        }
        let (names, patterns) = (self.parts.attachment_names.clone(), self.attachments.clone());
        let found = spawn_blocking(move || {
            match names(&raw, ATTACHMENTS_MAX) {
                Some(names) => patterns.find(&names).cloned(),
                // Mail clients may show parts that are not parsed here: a sender could hide an attachment by adding parts.
                None => Some("(too many parts)".to_owned()),
            }
        });
        let found = async { found.await.map_err(|error| warn!(%error, "attachments could not be read")) };
        self.in_time("attachment", found).await?.ok()?
    }

    /// Passes the results of DMARC to the reports.
    fn note(&self, envelope: Envelope<'_>, found: &Authentication, decision: &policy::Decision) {
        let Some(reports) = &self.parts.reports else { return };
        if found.dmarc_record.is_none() || found.from.is_none() {
            return;
        }
        let is_by_policy = decision.check == Some("dmarc");
        reports.note(DmarcSeen {
            address: envelope.peer.address,
            sender: envelope.sender.to_owned(),
            received: envelope.received,
            authentication: found.clone(),
            disposition: match is_by_policy {
                true => policy::disposition(&decision.verdict),
                false => crate::Disposition::None,
            },
            overridden: decision.overridden,
        });
    }
}

#[async_trait]
impl SenderChecks for Checks {
    fn is_exempt(&self, address: IpAddr) -> bool {
        self.0.exempt.iter().any(|network| network.contains(address))
    }

    async fn client(&self, address: IpAddr) -> ClientFacts {
        self.0.in_time("client", self.0.parts.client.client(address)).await.unwrap_or(ClientFacts::UNKNOWN)
    }

    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused> {
        self.0.in_time("client", self.0.parts.client.sender(peer, facts, sender)).await.unwrap_or(Ok(()))
    }

    async fn recipient(
        &self,
        peer: &Peer,
        facts: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused> {
        let checked = self.0.parts.client.recipient(peer, facts, sender, recipient);
        self.0.in_time("greylist", checked).await.unwrap_or(Ok(()))
    }

    async fn message(&self, envelope: Envelope<'_>, raw: Bytes) -> Judgement {
        let (inner, begun) = (&self.0, Instant::now());
        let Parts { authenticator, client, .. } = &inner.parts;
        let (authentication, filter, attachment, hello) = tokio::join!(
            inner.in_time("authentication", authenticator.authenticate(envelope.peer, envelope.sender, &raw)),
            inner.ask_filter(envelope, raw.clone()),
            inner.find_attachment(raw.clone()),
            inner.in_time("client", client.has_good_hello(envelope.peer)),
        );
        let found = Found {
            facts: envelope.facts,
            has_good_hello: hello.unwrap_or(true),
            authentication: authentication.as_ref(),
            attachment: attachment.as_deref(),
            filter: filter.as_ref(),
        };
        let decision = policy::decide(&inner.config, found);
        if let Some(authentication) = &authentication {
            inner.note(envelope, authentication, &decision);
        }
        inner.parts.metrics.count(authentication.as_ref(), &decision, begun.elapsed());
        let unknown = Authentication::UNKNOWN;
        let mut fields =
            results_field(&inner.parts.hostname, envelope, authentication.as_ref().unwrap_or(&unknown));
        if let Some(said) = &filter {
            fields.push_str(&spam_status(said));
        }
        let filter = filter.as_ref().map(policy::summary);
        Judgement { verdict: decision.verdict, fields, authentication, filter }
    }

    fn claims_to_be_ours(&self, value: &[u8]) -> bool {
        claims_to_be_ours(&self.0.parts.hostname, value)
    }
}

/// The filter's verdict, in the field that users' own rules know. Names of symbols have no characters that could end the field.
fn spam_status(said: &FilterVerdict) -> String {
    use crate::FilterAction::{Junk, Quarantine, Refuse};
    let is_spam = matches!(said.action, Junk | Quarantine | Refuse);
    let required = said.required.map(|required| format!(" required={required:.1}")).unwrap_or_default();
    let mut field =
        format!("X-Spam-Status: {}, score={:.1}{required}", if is_spam { "Yes" } else { "No" }, said.score);
    for (at, symbol) in said.symbols.iter().enumerate() {
        field.push_str(if at == 0 { "\r\n\ttests=" } else { ",\r\n\t" });
        field.push_str(symbol);
    }
    field.push_str("\r\n");
    field
}

/// Checks a client before its message: its name, block lists, greylisting.
#[async_trait]
pub trait ClientChecking: Send + Sync + 'static {
    /// See [`crate::SenderChecks::client`].
    async fn client(&self, address: IpAddr) -> ClientFacts;

    /// Whether the name in a client's greeting exists in the DNS or is an address literal; also true if that is not known now.
    /// Returns at once if the setting `hello` requests nothing.
    async fn has_good_hello(&self, peer: &Peer) -> bool;

    /// See [`crate::SenderChecks::sender`].
    ///
    /// # Errors
    /// The refusal that each `RCPT` of the message gets.
    async fn sender(&self, peer: &Peer, facts: &ClientFacts, sender: &str) -> Result<(), Refused>;

    /// See [`crate::SenderChecks::recipient`].
    ///
    /// # Errors
    /// The temporary refusal of this recipient.
    async fn recipient(
        &self,
        peer: &Peer,
        facts: &ClientFacts,
        sender: &str,
        recipient: &str,
    ) -> Result<(), Refused>;
}

#[cfg(test)]
mod tests;
