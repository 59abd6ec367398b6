//! The operations on the queue of outgoing mail, which a command does itself or requests from a running server.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use restante_blobs::Blobs;
use restante_core::{Error, ErrorKind};
use restante_delivery::{OutcomeLog, note_dropped};
use restante_directory::{Actor, Answer, Directory, EmailAddress};
use restante_mail::{
    Mail, RecipientState,
    queue::{
        DomainCount, Held, LIST_MAX, ListFilter, Queue, QueueAccount, QueuedId, QueuedRecipient, QueuedState,
        Selection, SourceKind,
    },
};
use restante_records::{AccountId, RecordId};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::{
    clock,
    config::Config,
    doors::mail::{
        blobs,
        commands::{
            directory::reach::{Reached, RunningServer, command_line},
            mail,
        },
        journal, sending,
    },
};

/// The path for operations on the queue on a running server.
pub(super) const PATH: &str = "/admin/v1/queue";
/// The reply that a JMAP submission shows for a recipient that was dropped.
const DROPPED_REPLY: &str = "554 5.7.0 dropped by an operator of the server";
/// How long the last entries of the journal may take to be written.
const JOURNAL_CLOSE_MAX: Duration = Duration::from_secs(10);
/// The most ids that one operation names.
pub(super) const IDS_MAX: usize = 1_000;

/// The operations of operators on the queue.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum QueueOperation {
    /// One page of the recipients that match.
    List {
        #[serde(default)]
        filter: Filter,
        #[serde(default)]
        after: Option<String>,
        limit: usize,
    },
    /// The recipients by domain.
    Domains,
    /// One recipient, with all that is known of it.
    Show { id: String },
    /// Tries recipients now.
    Retry { which: Which },
    /// Keeps recipients from being tried.
    Hold { which: Which, why: String },
    /// Lets recipients be tried again; with `Which::All` also after a restore.
    Release { which: Which },
    /// Drops recipients, without a report to the sender.
    Drop { which: Which },
}

/// Which recipients are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields, default)]
pub(super) struct Filter {
    /// Their domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) domain: Option<String>,
    /// The address of the account that sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) account: Option<EmailAddress>,
    /// The envelope sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sender: Option<String>,
    /// Only those that are held.
    pub(super) held: bool,
}

/// Which recipients are changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    /// These, at most [`IDS_MAX`].
    Ids(Vec<String>),
    /// Those that match this filter in a list.
    Matching(Filter),
    /// All.
    All,
}

/// The result of an operation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum QueueAnswer {
    Listed {
        items: Vec<Queued>,
        next: Option<String>,
        held: Option<AllHeld>,
    },
    Domains {
        items: Vec<QueuedDomain>,
        held: Option<AllHeld>,
    },
    Shown(Option<Box<Queued>>),
    /// How many recipients were changed.
    Changed(u64),
}

/// Since when the whole queue is held, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AllHeld {
    /// In seconds since 1970.
    pub(super) since: u64,
    pub(super) why: String,
}

/// A recipient in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queued {
    pub(crate) id: String,
    /// `due`, `held`, `scheduled` for a later time by its author, or `trying` during an attempt.
    pub(crate) state: String,
    pub(crate) recipient: String,
    pub(crate) domain: String,
    /// Empty for `<>`.
    pub(crate) sender: String,
    /// `submission`, `smtp`, `forward`, `report`, `vacation` or `dmarc report`.
    pub(crate) source: String,
    /// The account that sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<u32>,
    /// Bytes of the message.
    pub(crate) size: u64,
    /// When it was queued, in seconds since 1970.
    pub(crate) queued: u64,
    /// When it is tried next, in seconds since 1970.
    pub(crate) due: u64,
    pub(crate) attempts: u32,
    /// When the last attempt ended, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_attempt: Option<u64>,
    /// The reply of the last attempt, such as `451 4.3.0 come later (mail.example.net)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_reply: Option<String>,
    /// Why it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

/// The queued recipients of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueuedDomain {
    pub(crate) domain: String,
    pub(crate) recipients: u64,
    pub(crate) held: u64,
    /// In seconds since 1970.
    pub(crate) oldest_due: u64,
}

/// Does operations on the queue.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) queue: Queue,
    pub(crate) directory: Directory,
    /// For the JMAP submissions.
    pub(crate) mail: Mail,
    /// Where dropped recipients are noted, unless there is no journal of deliveries.
    pub(crate) noting: Option<Noting>,
}

/// Notes dropped recipients.
#[derive(Clone)]
pub(crate) struct Noting {
    pub(crate) outcomes: Arc<dyn OutcomeLog>,
    /// With the messages, for their Message-IDs.
    pub(crate) blobs: Arc<dyn Blobs>,
}

impl Operator {
    /// An operator for records that this process has open.
    pub(super) async fn open(records: &restante_records::Opened, config: &Config) -> anyhow::Result<Self> {
        let mail::Operator { mail, directory, .. } = mail::Operator::open(records, config).await?;
        Ok(Self { queue: sending::queue(records, clock::system()), directory, mail, noting: None })
    }

    /// Does one operation. Changes of the queue are logged.
    pub(super) async fn operate(
        &self,
        actor: &Actor,
        operation: QueueOperation,
    ) -> Result<QueueAnswer, Error> {
        match operation {
            QueueOperation::List { filter, after, limit } => {
                self.list(&filter, after.as_deref(), limit).await
            }
            QueueOperation::Domains => {
                let items = self.queue.domains().await?.into_iter().map(QueuedDomain::from).collect();
                Ok(QueueAnswer::Domains { items, held: self.held().await? })
            }
            QueueOperation::Show { id } => {
                let found = self.queue.get(parse_id(&id)?).await?;
                let now = self.queue.now();
                Ok(QueueAnswer::Shown(found.map(|found| Box::new(Queued::of(&found, now)))))
            }
            QueueOperation::Retry { which } => {
                let count = self.queue.retry(&self.selection(&which).await?).await?;
                Ok(changed(actor, "tried now", count))
            }
            QueueOperation::Hold { why, .. } if why.trim().is_empty() => {
                Err(Error::invalid("'why' is empty: say why mail is held"))
            }
            QueueOperation::Hold { which: Which::All, why } => {
                let count = self.queue.totals().await?.waiting;
                self.queue.hold_all(&why).await?;
                Ok(changed(actor, "held", count))
            }
            QueueOperation::Hold { which, why } => {
                let count = self.queue.hold(&self.selection(&which).await?, &why).await?;
                Ok(changed(actor, "held", count))
            }
            QueueOperation::Release { which } => {
                let count = self.queue.release(&self.selection(&which).await?).await?;
                if which == Which::All {
                    self.queue.release_all().await?;
                }
                Ok(changed(actor, "released", count))
            }
            QueueOperation::Drop { which } => {
                let count = self.drop_all(self.selection(&which).await?, actor).await?;
                Ok(changed(actor, "dropped", count))
            }
        }
    }

    /// Drops recipients, page by page.
    async fn drop_all(&self, selection: Selection, actor: &Actor) -> Result<u64, Error> {
        let filter = match selection {
            Selection::Ids(ids) => {
                let (mut found, mut damaged) = (Vec::with_capacity(ids.len()), Vec::new());
                for id in ids {
                    match self.queue.get(id).await {
                        Ok(queued) => found.extend(queued),
                        Err(error) if error.kind() == ErrorKind::Corrupt => damaged.push(id),
                        Err(error) => return Err(error),
                    }
                }
                let damaged = self.queue.drop_all(&Selection::Ids(damaged)).await?;
                return Ok(damaged + self.drop_found(found, actor).await?);
            }
            Selection::Matching(filter) => filter,
        };
        let (mut dropped, mut after) = (0, None);
        loop {
            let page = self.queue.list(&filter, after.as_ref(), LIST_MAX).await?;
            dropped += self.drop_found(page.recipients, actor).await?;
            after = page.next;
            if after.is_none() {
                return Ok(dropped);
            }
        }
    }

    /// Drops these, notes it in the journal of deliveries, and ends their state in JMAP submissions.
    async fn drop_found(&self, recipients: Vec<QueuedRecipient>, actor: &Actor) -> Result<u64, Error> {
        let ids: Vec<QueuedId> = recipients.iter().map(|recipient| recipient.id).collect();
        let dropped: BTreeSet<QueuedId> = self.queue.drop_ids(&ids).await?.into_iter().collect();
        // The others were sent or have failed since they were read.
        let gone = recipients.iter().filter(|recipient| dropped.contains(&recipient.id));
        if let Some(Noting { outcomes, blobs }) = &self.noting {
            for recipient in gone.clone() {
                note_dropped(&**outcomes, &**blobs, recipient, &actor.0).await;
            }
        }
        for recipient in gone {
            let source = &recipient.message.source;
            if let (SourceKind::Submission, Some(account)) = (source.kind, source.account) {
                let (address, no) = (&recipient.recipient.address, RecipientState::No);
                self.mail.report_submission(account, source.record, address, DROPPED_REPLY, no).await?;
            }
        }
        Ok(dropped.len() as u64)
    }

    async fn list(&self, filter: &Filter, after: Option<&str>, limit: usize) -> Result<QueueAnswer, Error> {
        if !(1..=LIST_MAX).contains(&limit) {
            return Err(Error::invalid(format!("'limit' is a whole number from 1 to {LIST_MAX}")));
        }
        let after = after.map(str::parse).transpose()?;
        let page = self.queue.list(&self.filter(filter).await?, after.as_ref(), limit).await?;
        let now = self.queue.now();
        let items = page.recipients.iter().map(|queued| Queued::of(queued, now)).collect();
        let next = page.next.map(|next| next.to_string());
        Ok(QueueAnswer::Listed { items, next, held: self.held().await? })
    }

    async fn held(&self) -> Result<Option<AllHeld>, Error> {
        Ok(self.queue.gate().await?.map(|Held { since, why }| AllHeld { since, why }))
    }

    async fn selection(&self, which: &Which) -> Result<Selection, Error> {
        match which {
            Which::Ids(ids) if ids.len() > IDS_MAX => {
                Err(Error::invalid(format!("'ids' has more than {IDS_MAX} ids: name them in parts")))
            }
            Which::Ids(ids) => {
                let named: Result<Vec<QueuedId>, Error> = ids.iter().map(|id| parse_id(id)).collect();
                self.present(named?, ids).await
            }
            Which::Matching(filter) => Ok(Selection::Matching(self.filter(filter).await?)),
            Which::All => Ok(Selection::Matching(ListFilter::default())),
        }
    }

    /// Those of the ids that are in the queue. Some may leave it before they are read, but if all have, the ids are wrong or outdated.
    async fn present(&self, named: Vec<QueuedId>, ids: &[String]) -> Result<Selection, Error> {
        let mut present = Vec::new();
        for id in named {
            match self.queue.get(id).await {
                Ok(None) => {}
                Ok(Some(_)) => present.push(id),
                Err(error) if error.kind() == ErrorKind::Corrupt => present.push(id),
                Err(error) => return Err(error),
            }
        }
        if present.is_empty() {
            let ids = ids.join(", ");
            return Err(Error::not_found(format!("not in the queue: {ids} (sent, failed or dropped)")));
        }
        Ok(Selection::Ids(present))
    }

    async fn filter(&self, filter: &Filter) -> Result<ListFilter, Error> {
        let account = match &filter.account {
            None => None,
            Some(address) => Some(self.account(address).await?),
        };
        let (domain, sender) = (filter.domain.clone(), filter.sender.clone());
        Ok(ListFilter { domain, account, sender, state: filter.held.then_some(QueuedState::Held) })
    }

    async fn account(&self, address: &EmailAddress) -> Result<AccountId, Error> {
        let (actor, address) = (Actor(String::new()), address.clone()); // reads are not logged
        match self.directory.operate(&actor, restante_directory::Operation::Account { address }).await? {
            Answer::Account(info) => Ok(AccountId(info.summary.account)),
            _ => Err(Error::internal("the directory answered another operation")),
        }
    }
}

fn changed(actor: &Actor, what: &str, recipients: u64) -> QueueAnswer {
    info!(by = %actor.0, recipients, "queued mail was {what}");
    QueueAnswer::Changed(recipients)
}

/// An id as shown to operators: the number of the queue account, and that of the record.
pub(super) fn show_id(id: QueuedId) -> String {
    let account = QueueAccount::of_account(id.account).map_or(0, QueueAccount::number);
    format!("{account}-{}", id.record.0)
}

fn parse_id(text: &str) -> Result<QueuedId, Error> {
    let parse = || {
        let (account, record) = text.split_once('-')?;
        let account = QueueAccount::all().nth(account.parse().ok()?)?;
        Some(QueuedId { account: account.account(), record: RecordId(record.parse().ok()?) })
    };
    let wrong =
        || Error::invalid(format!("'{text}' is no id of the queue: `restante queue list` shows them"));
    parse().ok_or_else(wrong)
}

impl Queued {
    /// The form shown to operators; `now` is in seconds since 1970.
    fn of(queued: &QueuedRecipient, now: u64) -> Self {
        let state = match queued.state {
            QueuedState::Held => "held",
            QueuedState::Due if queued.is_scheduled(now) && queued.due > now => "scheduled",
            QueuedState::Due if queued.is_leased => "trying",
            QueuedState::Due => "due",
        };
        let source = match queued.message.source.kind {
            SourceKind::Submission => "submission",
            SourceKind::Smtp => "smtp",
            SourceKind::Forward => "forward",
            SourceKind::Report => "report",
            SourceKind::Vacation => "vacation",
            SourceKind::AggregateReport => "dmarc report",
        };
        let reply = |reply: &restante_mail::queue::Reply| {
            let from = reply.from.as_ref().map(|from| format!(" ({from})")).unwrap_or_default();
            format!("{} {} {}{from}", reply.code, reply.enhanced, reply.text)
        };
        Self {
            id: show_id(queued.id),
            state: state.to_owned(),
            recipient: queued.recipient.address.clone(),
            domain: queued.domain.clone(),
            sender: queued.message.sender.clone(),
            source: source.to_owned(),
            account: queued.message.source.account.map(|account| account.0),
            size: queued.message.size,
            queued: queued.message.queued,
            due: queued.due,
            attempts: queued.attempts,
            last_attempt: queued.last.as_ref().map(|last| last.at),
            last_reply: queued.last.as_ref().map(|last| reply(&last.reply)),
            reason: queued.reason.clone(),
        }
    }
}

impl From<DomainCount> for QueuedDomain {
    fn from(count: DomainCount) -> Self {
        let DomainCount { domain, recipients, held, oldest_due } = count;
        Self { domain, recipients, held, oldest_due }
    }
}

/// The queue as a command accesses it.
pub(super) enum ReachedQueue<'r> {
    Here { operator: Box<Operator>, config: &'r Config },
    Server(&'r RunningServer),
}

impl<'r> ReachedQueue<'r> {
    pub(super) async fn of(reached: &'r Reached) -> anyhow::Result<Self> {
        Ok(match reached {
            Reached::Here { opened, config } => {
                Self::Here { operator: Box::new(Operator::open(opened, config).await?), config }
            }
            Reached::Server(server) => Self::Server(server),
        })
    }

    /// Does one operation, or makes the server do it.
    pub(super) async fn operate(&self, operation: QueueOperation) -> anyhow::Result<QueueAnswer> {
        match self {
            // A refusal has the same exit code as when a running server refuses.
            Self::Here { operator, config } => match operation {
                QueueOperation::Drop { .. } => operate_with_journal(operator, config, operation).await,
                operation => here(operator, operation).await,
            },
            Self::Server(server) => server.ask(PATH, operation).await,
        }
    }
}

async fn here(operator: &Operator, operation: QueueOperation) -> anyhow::Result<QueueAnswer> {
    operator.operate(&command_line(), operation).await.map_err(|error| anyhow::anyhow!("{error}"))
}

/// Does an operation whose outcomes are noted in the journal of deliveries, unless a running server has it open.
async fn operate_with_journal(
    operator: &Operator,
    config: &Config,
    operation: QueueOperation,
) -> anyhow::Result<QueueAnswer> {
    let Some(journal) = journal::open_unless_held(config)? else { return here(operator, operation).await };
    // Without them notes have no Message-ID, but mail can be dropped.
    let stored = match blobs::open_existing(config).await {
        Ok(stored) => Some(stored),
        Err(error) => {
            warn!(error = format!("{error:#}"), "the journal of deliveries gets no Message-IDs");
            None
        }
    };
    let blobs = stored.as_ref().map_or_else(|| operator.mail.blobs(), |stored| &stored.blobs).clone();
    let outcomes = sending::outcomes(Arc::new(journal.clone()), clock::system());
    let operator = Operator { noting: Some(Noting { outcomes, blobs }), ..operator.clone() };
    let writing = tokio::spawn(journal.clone().run());
    let answer = here(&operator, operation).await;
    writing.abort();
    journal::close(&journal, JOURNAL_CLOSE_MAX).await?;
    if let Some(stored) = stored {
        stored.upkeep.close().await?;
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_shown() {
        let id =
            QueuedId { account: QueueAccount::all().nth(17).unwrap().account(), record: RecordId(4_711) };
        assert_eq!(show_id(id), "17-4711");
        assert_eq!(parse_id("17-4711").unwrap(), id);
        for wrong in ["", "17", "64-1", "17-", "-1", "a-1", "17-4711-2"] {
            assert!(parse_id(wrong).is_err(), "{wrong}");
        }
    }
}
