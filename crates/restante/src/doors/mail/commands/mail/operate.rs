//! The operations on the mail of accounts, which a command does itself or requests from a running server.

use bytes::Bytes;
use restante_blobs::EngineUrl;
use restante_core::{Error, ErrorKind};
use restante_directory::{Actor, Answer, Directory, DirectoryMetrics, EmailAddress};
use restante_mail::{
    Finding, Mail, MailError, MailMetrics, VaultEntry, VaultPage, message::Shorthand, row::Row,
};
use restante_records::{AccountId, Cursor, RecordId};
use restante_smtp::{About, DeliveryJournal};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::deliveries::{Traced, look_up};
use crate::{
    clock,
    config::Config,
    doors::mail::{
        commands::directory::reach::{Reached, RunningServer, command_line},
        journal,
    },
    exit,
};

/// The path for operations on mail on a running server.
pub(super) const PATH: &str = "/admin/v1/mail";
/// The most emails that one operation restores.
pub(super) const RESTORED_MAX: usize = 100;

/// The operations of operators on mail.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum MailOperation {
    /// Recounts the emails of an account, and corrects wrong counters if `rebuild` is set.
    Check {
        account: u32,
        #[serde(default)]
        rebuild: bool,
    },
    /// The deliveries of an address or a message id, since a time in milliseconds since 1970.
    Trace {
        about: String,
        #[serde(default)]
        since_ms: Option<i64>,
        limit: usize,
    },
    /// One page of the destroyed emails that can be restored, at most 256.
    Vault { address: EmailAddress, after: Option<String>, limit: usize },
    /// Restores destroyed emails, at most [`RESTORED_MAX`].
    Restore { address: EmailAddress, ids: Vec<u64> },
}

/// The result of an operation.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MailAnswer {
    Checked(Vec<WrongFigure>),
    Traced(Traced),
    Vault { items: Vec<Destroyed>, next: Option<String> },
    Restored(Vec<RestoreOutcome>),
}

/// A problem in an account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WrongFigure {
    /// Such as `mailbox 3`.
    pub(super) place: String,
    /// What is wrong there.
    pub(super) what: String,
    /// Whether it is derived from emails, and so can be corrected.
    pub(super) can_be_rebuilt: bool,
}

/// A destroyed email that can be restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Destroyed {
    /// The id in the vault.
    pub(super) id: u64,
    /// The id that the email had.
    pub(super) email: u64,
    /// When it was destroyed, in seconds since 1970.
    pub(super) destroyed: u64,
    /// When it was received, in seconds since 1970.
    pub(super) received: u64,
    /// Bytes of the message.
    pub(super) size: u64,
    /// The first author: the name, else the address.
    pub(super) from: String,
    pub(super) subject: String,
}

/// The result of restoring one email.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RestoreOutcome {
    /// The id in the vault.
    pub(super) id: u64,
    /// The id of the restored email.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) email: Option<u64>,
    /// Why it was not restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

/// Does operations on the mail of accounts.
#[derive(Clone)]
pub(crate) struct Operator {
    pub(crate) mail: Mail,
    pub(crate) directory: Directory,
    /// The journal of deliveries, only for [`MailOperation::Trace`].
    pub(crate) journal: Option<DeliveryJournal>,
}

impl Operator {
    /// An operator for records that this process has open. It opens no journal: that is in a folder, which a running server may have
    /// open while both use records in a database.
    pub(crate) async fn open(records: &restante_records::Opened, config: &Config) -> anyhow::Result<Self> {
        let (settings, metrics) = (config.directory.clone(), DirectoryMetrics::default());
        let (directory, _) = Directory::open(records, settings, clock::system(), metrics).await?;
        // No operation reads a message, so the blobs are not opened.
        let blobs = restante_blobs::open(restante_blobs::Config::new(EngineUrl::Memory)).await?.blobs;
        let (limits, metrics) = (config.mail.limits.clone(), MailMetrics::default());
        let mail = Mail::new(records.records.clone(), blobs, clock::system(), limits, metrics);
        Ok(Self { mail, directory, journal: None })
    }

    /// Does one operation. Changes of mail are recorded in the log of operations.
    pub(super) async fn operate(&self, actor: &Actor, operation: MailOperation) -> Result<MailAnswer, Error> {
        match operation {
            MailOperation::Check { account, rebuild } => self.check(actor, AccountId(account), rebuild).await,
            MailOperation::Trace { about, since_ms, limit } => {
                let traced = look_up(self.journal.as_ref(), About::Text(about), since_ms, limit).await;
                traced.map(MailAnswer::Traced)
            }
            MailOperation::Vault { address, after, limit } => self.vault(&address, after, limit).await,
            MailOperation::Restore { address, ids } => self.restore(actor, &address, ids).await,
        }
    }

    async fn check(&self, actor: &Actor, account: AccountId, rebuild: bool) -> Result<MailAnswer, Error> {
        let findings = match rebuild {
            true => self.mail.rebuild(account).await,
            false => self.mail.check(account).await,
        };
        let findings = match findings {
            Err(MailError::Store(error)) if error.kind() == ErrorKind::Corrupt => {
                // Other accounts can still be checked.
                let what = format!("the mail can't be counted: {error}");
                let figure = WrongFigure { place: "records".to_owned(), what, can_be_rebuilt: false };
                return Ok(MailAnswer::Checked(vec![figure]));
            }
            findings => findings.map_err(|error| core_error(error, "can't check the account"))?,
        };
        let corrected = findings.iter().filter(|finding| finding.is_derived).count();
        if rebuild && corrected > 0 {
            info!(account = account.0, corrected, "wrong counters of mail were corrected");
            if let Some(address) = self.directory.address_of(account).await? {
                let what = format!("corrected {corrected} counters of the mail of {address}");
                self.note(actor, &address, what).await;
            }
        }
        Ok(MailAnswer::Checked(findings.into_iter().map(WrongFigure::from).collect()))
    }

    async fn vault(
        &self,
        address: &EmailAddress,
        after: Option<String>,
        limit: usize,
    ) -> Result<MailAnswer, Error> {
        let (account, _) = self.account(address).await?;
        let after = after.as_deref().map(parse_cursor).transpose()?;
        let page = self.mail.vault(account, after, limit).await;
        let VaultPage { entries, next } = page.map_err(|error| core_error(error, "can't read the vault"))?;
        let next = next.map(|Cursor(bytes)| base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes));
        Ok(MailAnswer::Vault { items: entries.into_iter().map(Destroyed::from).collect(), next })
    }

    async fn restore(
        &self,
        actor: &Actor,
        address: &EmailAddress,
        ids: Vec<u64>,
    ) -> Result<MailAnswer, Error> {
        if ids.len() > RESTORED_MAX {
            return Err(Error::invalid(format!(
                "'ids' has more than {RESTORED_MAX} ids: restore them in parts"
            )));
        }
        let (account, quota) = self.account(address).await?;
        let mut outcomes = Vec::with_capacity(ids.len());
        for id in ids {
            let restored = self.mail.restore(account, RecordId(id), quota).await;
            let (email, problem) = match restored {
                Ok(created) => (Some(created.id.0), None),
                Err(MailError::NotFound) => (None, Some("the vault has no such email".to_owned())),
                Err(error) => (None, Some(error.to_string())),
            };
            outcomes.push(RestoreOutcome { id, email, problem });
        }
        let restored = outcomes.iter().filter(|outcome| outcome.email.is_some()).count();
        if restored > 0 {
            info!(account = account.0, restored, "an operator restored destroyed emails");
            let what = format!("restored {restored} destroyed emails of {address}");
            self.note(actor, address, what).await;
        }
        Ok(MailAnswer::Restored(outcomes))
    }

    /// Logs an operation that was done; a failure of the log is not an error of the operation.
    async fn note(&self, actor: &Actor, address: &EmailAddress, what: String) {
        if let Err(error) = self.directory.note(actor, address, what).await {
            warn!(%error, "an operation on mail is not in the log of operations");
        }
    }

    /// The number of an account, and its quota in bytes.
    async fn account(&self, address: &EmailAddress) -> Result<(AccountId, Option<u64>), Error> {
        let actor = Actor(String::new()); // reads are not logged
        let address = address.clone();
        match self.directory.operate(&actor, restante_directory::Operation::Account { address }).await? {
            Answer::Account(info) => Ok((AccountId(info.summary.account), info.summary.quota_bytes)),
            _ => Err(Error::internal("the directory answered another operation")),
        }
    }
}

/// The mail as a command accesses it.
pub(super) enum ReachedMail<'r> {
    Here(Box<Operator>),
    Server(&'r RunningServer),
}

impl<'r> ReachedMail<'r> {
    pub(super) async fn of(reached: &'r Reached) -> anyhow::Result<Self> {
        Ok(match reached {
            Reached::Here { opened, config } => Self::Here(Box::new(Operator::open(opened, config).await?)),
            Reached::Server(server) => Self::Server(server),
        })
    }

    /// The same for [`MailOperation::Trace`], which reads the journal.
    ///
    /// # Errors
    /// `Conflict` when a running server has the journal open, too.
    pub(super) async fn with_journal(reached: &'r Reached) -> anyhow::Result<Self> {
        let mut mail = Self::of(reached).await?;
        if let (Self::Here(operator), Reached::Here { config, .. }) = (&mut mail, reached) {
            operator.journal = journal::open_existing(config).map_err(advise)?;
        }
        Ok(mail)
    }

    /// Does one operation, or makes the server do it.
    pub(super) async fn operate(&self, operation: MailOperation) -> anyhow::Result<MailAnswer> {
        match self {
            // A refusal has the same exit code as when a running server refuses.
            Self::Here(operator) => {
                operator.operate(&command_line(), operation).await.map_err(|error| anyhow::anyhow!("{error}"))
            }
            Self::Server(server) => server.ask(PATH, operation).await,
        }
    }
}

/// Adds how to use a server that has the journal open.
fn advise(error: anyhow::Error) -> anyhow::Error {
    if exit::kind(&error) != Some(ErrorKind::Conflict) {
        return error;
    }
    Error::conflict(format!("{error:#}, or name its server with --rest URL")).into()
}

fn parse_cursor(text: &str) -> Result<Cursor, Error> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text);
    let bytes = bytes.map_err(|_| Error::invalid("'after' is not the 'next' of a page"))?;
    Ok(Cursor(Bytes::from(bytes)))
}

fn core_error(error: MailError, what: &str) -> Error {
    match error {
        MailError::Store(error) => error.context(what),
        error => Error::internal(format!("{what}: {error}")),
    }
}

impl From<Finding> for WrongFigure {
    fn from(finding: Finding) -> Self {
        Self { place: finding.place, what: finding.what, can_be_rebuilt: finding.is_derived }
    }
}

impl From<VaultEntry> for Destroyed {
    fn from(entry: VaultEntry) -> Self {
        let row = Row::read(entry.row).ok();
        let subject = row.as_ref().and_then(|row| row.json(Shorthand::Subject));
        let subject = subject.and_then(|json| serde_json::from_slice::<Option<String>>(json).ok().flatten());
        Self {
            id: entry.id.0,
            email: entry.email.0,
            destroyed: entry.deleted_at,
            received: entry.received,
            size: entry.size,
            from: row.as_ref().map(|row| row.address_key(Shorthand::From)).unwrap_or_default(),
            subject: subject.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use restante_smtp::JournalMetrics;

    use super::*;
    use crate::doors::mail::{commands::directory::reach::eraser, records};

    /// Regression test: a command that has records in a database open beside a running server can't open the journal, and `restante
    /// check` was refused.
    #[tokio::test]
    async fn only_a_trace_needs_the_journal_that_a_running_server_holds() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = folder.path().to_owned();
        let settings = config.mail.journal.clone();
        let of_server = DeliveryJournal::open(
            &config.journal_folder(),
            settings,
            clock::system(),
            JournalMetrics::default(),
        );
        let of_server = of_server.unwrap();
        let opened = records::open(&config, Default::default()).await.unwrap();
        assert!(Operator::open(&opened, &config).await.is_ok());
        assert!(eraser(&opened, &config).await.is_ok());
        let reached = Reached::Here { opened, config: Box::new(config) };
        assert!(ReachedMail::of(&reached).await.is_ok());
        let error = ReachedMail::with_journal(&reached).await.err().unwrap();
        assert_eq!(exit::kind(&error), Some(ErrorKind::Conflict));
        assert!(error.to_string().ends_with("name its server with --rest URL"), "{error}");
        of_server.close().await.unwrap();
        drop(of_server);
        assert!(ReachedMail::with_journal(&reached).await.is_ok());
        reached.close().await.unwrap();
    }
}
