//! The operations on the quarantine, which a command requests from a running server.

use base64_simd::STANDARD;
use restante_core::Error;
use restante_directory::Actor;
use restante_mail::quarantine::{LIST_MAX, ListFilter, Quarantined};
use restante_records::RecordId;
use restante_smtp::MailQuarantine;
use serde::{Deserialize, Serialize};
use tracing::info;

/// The path for operations on the quarantine on a running server.
pub(super) const PATH: &str = "/admin/v1/quarantine";
/// The most ids that one operation names.
pub(super) const IDS_MAX: usize = 100;
/// How much of a message is shown.
const SHOWN_BYTES_MAX: usize = 256 << 10;

/// The operations of operators on the quarantine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum QuarantineOperation {
    /// One page of the messages that match, the newest first.
    List {
        /// The domain of the envelope sender, empty for `<>`.
        #[serde(default)]
        domain: Option<String>,
        #[serde(default)]
        recipient: Option<String>,
        #[serde(default)]
        after: Option<String>,
        limit: usize,
    },
    /// One message with the beginning of its bytes.
    Show { id: u64 },
    /// Delivers messages to their recipients.
    Release { ids: Vec<u64> },
    /// Removes messages.
    Drop { ids: Vec<u64> },
}

/// The result of an operation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum QuarantineAnswer {
    Listed {
        items: Vec<QuarantinedMessage>,
        next: Option<String>,
    },
    Shown(Option<Box<Shown>>),
    /// The outcome for each recipient of each message that existed.
    Released(Vec<ReleasedTo>),
    /// How many messages were removed.
    Dropped(u64),
}

/// A message in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QuarantinedMessage {
    pub(super) id: u64,
    /// When it was received, in seconds since 1970.
    pub(super) received: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) peer: Option<String>,
    pub(super) hello: String,
    /// Empty for `<>`.
    pub(super) sender: String,
    pub(super) recipients: Vec<String>,
    /// The reason for the quarantine.
    pub(super) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    /// Its bytes.
    pub(super) size: u64,
}

/// A message in quarantine with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shown {
    #[serde(flatten)]
    pub(super) kept: QuarantinedMessage,
    /// The beginning of the message, in Base64.
    pub(super) message: String,
}

impl Shown {
    /// The beginning of the message.
    pub(super) fn bytes(&self) -> Option<Vec<u8>> {
        STANDARD.decode_to_vec(&self.message).ok()
    }
}

/// The outcome for a recipient of a released message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReleasedTo {
    pub(super) id: u64,
    pub(super) recipient: String,
    /// Why it was not delivered, as an SMTP reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

impl From<&Quarantined> for QuarantinedMessage {
    fn from(message: &Quarantined) -> Self {
        Self {
            id: message.id.0,
            received: message.at,
            peer: message.peer.map(|peer| peer.to_string()),
            hello: message.hello.clone(),
            sender: message.sender.clone(),
            recipients: message.recipients.clone(),
            reason: message.reason.clone(),
            from: message.from.clone(),
            subject: message.subject.clone(),
            size: message.size,
        }
    }
}

/// Does operations on the quarantine.
#[derive(Clone)]
pub(crate) struct Operator(pub(crate) MailQuarantine);

impl Operator {
    /// Does one operation. Changes of the quarantine are logged.
    pub(super) async fn operate(
        &self,
        actor: &Actor,
        operation: QuarantineOperation,
    ) -> Result<QuarantineAnswer, Error> {
        match operation {
            QuarantineOperation::List { domain, recipient, after, limit } => {
                if !(1..=LIST_MAX).contains(&limit) {
                    return Err(Error::invalid(format!("'limit' is a whole number from 1 to {LIST_MAX}")));
                }
                let page =
                    self.0.kept.list(&ListFilter { domain, recipient }, after.as_deref(), limit).await?;
                Ok(QuarantineAnswer::Listed {
                    items: page.items.iter().map(QuarantinedMessage::from).collect(),
                    next: page.next,
                })
            }
            QuarantineOperation::Show { id } => self.show(RecordId(id)).await,
            QuarantineOperation::Release { ids } => self.release(actor, &of_ids(&ids)?).await,
            QuarantineOperation::Drop { ids } => {
                let dropped = self.0.drop_messages(&of_ids(&ids)?, &actor.0).await?;
                info!(by = %actor.0, messages = dropped, "mail in quarantine was dropped");
                Ok(QuarantineAnswer::Dropped(dropped))
            }
        }
    }

    async fn show(&self, id: RecordId) -> Result<QuarantineAnswer, Error> {
        let Some(message) = self.0.kept.get(id).await? else { return Ok(QuarantineAnswer::Shown(None)) };
        let raw = self.0.kept.read(message.blob).await?;
        let shown = raw.get(..SHOWN_BYTES_MAX).unwrap_or(&raw);
        let shown =
            Shown { kept: QuarantinedMessage::from(&message), message: STANDARD.encode_to_string(shown) };
        Ok(QuarantineAnswer::Shown(Some(Box::new(shown))))
    }

    async fn release(&self, actor: &Actor, ids: &[RecordId]) -> Result<QuarantineAnswer, Error> {
        let mut all = Vec::new();
        for id in ids {
            let Some(released) = self.0.release(*id, &actor.0).await? else { continue };
            info!(by = %actor.0, message = id.0, recipients = released.len(), "mail was released from quarantine");
            let of_id = |to: restante_smtp::Released| ReleasedTo {
                id: id.0,
                recipient: to.recipient,
                problem: to.problem,
            };
            all.extend(released.into_iter().map(of_id));
        }
        Ok(QuarantineAnswer::Released(all))
    }
}

fn of_ids(ids: &[u64]) -> Result<Vec<RecordId>, Error> {
    if ids.len() > IDS_MAX {
        return Err(Error::invalid(format!("'ids' has more than {IDS_MAX} ids: name them in parts")));
    }
    Ok(ids.iter().copied().map(RecordId).collect())
}
