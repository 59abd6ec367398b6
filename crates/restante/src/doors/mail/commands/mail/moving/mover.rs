//! Imports messages into accounts and exports them, in stores that this process has open.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future::join_all, stream};
use restante_core::{BlobId, Error, ErrorKind};
use restante_directory::{Actor, Answer, Directory, EmailAddress};
use restante_mail::{
    Imported, ImportedMessage, Mail, MailError, SEEN, StoredMessage, keyword, message, parse_keyword,
};
use restante_mail_files::Folder;
use restante_records::{AccountId, RecordId};
use serde::{Deserialize, Serialize};

use super::{
    page::{self, ExportedItem, FolderInfo},
    place,
};

/// Messages that are put into the blobs concurrently, so that they share syncs.
const PUTS_AT_ONCE: usize = 64;
/// The most messages of a batch: the limit of a commit.
pub(super) const BATCH_MESSAGES: usize = 256;
/// A batch ends with the message that reaches this many bytes.
pub(super) const BATCH_BYTES: u64 = 4 << 20;

/// The operations of a command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum MovingOperation {
    /// Whether the account exists, and the limits for a message.
    Begin,
    /// The mailboxes of the account.
    Folders,
    /// Makes mailboxes.
    Create { folders: Vec<Folder> },
    /// Which messages are imported from these folders.
    Known { messages: Vec<KnownMessage> },
    /// Imports messages; their bytes follow the operation.
    Add { messages: Vec<Item> },
    /// One page of emails with their bytes, the oldest first: of a mailbox, or of all.
    Page { mailbox: Option<u64>, after: Option<String> },
}

/// An operation in an account.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Moving {
    pub(super) address: EmailAddress,
    pub(super) moving: MovingOperation,
}

/// The result of an operation; messages follow a page.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MovingAnswer {
    Begun {
        account: u32,
        message_bytes_max: u64,
    },
    Folders(Vec<FolderInfo>),
    /// How many mailboxes were created.
    Created(u64),
    Known(Vec<bool>),
    Added {
        outcomes: Vec<Outcome>,
        mailboxes: u64,
    },
    Page {
        items: Vec<ExportedItem>,
        next: Option<String>,
    },
}

/// The identity of a message at its source, and its folders there.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KnownMessage {
    pub(super) key: [u8; 32],
    pub(super) origins: Vec<u64>,
    pub(super) exported: Option<ExportedEmail>,
}

impl KnownMessage {
    pub(super) fn of(item: &Item) -> Self {
        let origins = item.places.iter().map(|(_, origin)| *origin).collect();
        Self { key: item.key, origins, exported: item.exported }
    }
}

/// The email that a message was, according to our own export: if the account still has it, the message is not imported.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExportedEmail {
    pub(super) id: u64,
    /// The SHA-256 of its bytes.
    pub(super) blob: [u8; 32],
}

/// A message to import, without its bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// Its key at the source.
    pub(super) key: [u8; 32],
    /// Its mailboxes, each with the number of the corresponding folder of the source.
    pub(super) places: Vec<(Folder, u64)>,
    pub(super) keywords: Vec<String>,
    /// When it was received, in seconds since 1970, if the source knows.
    pub(super) received: Option<i64>,
    /// When the source stored it: used if the message itself does not say when it was received.
    pub(super) stored: Option<i64>,
    /// Whether its bytes are stored unchanged, not repaired.
    pub(super) is_exact: bool,
    pub(super) exported: Option<ExportedEmail>,
    pub(super) bytes: u64,
}

/// The outcome for a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// A new email; this many of its keywords are not possible in JMAP, or exceed the maximum number.
    New { keywords_left_out: u64 },
    /// An email that was imported from another folder before, and is in more mailboxes now.
    Placed,
    /// It was imported before, or is the email that was exported.
    Repeated,
    /// It can't be stored.
    Refused(String),
    /// The account would exceed its quota.
    OverQuota,
}

/// Moves mail in and out of accounts.
#[derive(Clone)]
pub(crate) struct Mover {
    pub(crate) mail: Mail,
    pub(crate) directory: Directory,
    /// The longest message.
    pub(crate) message_bytes_max: u64,
}

/// An account that exists.
#[derive(Clone, Copy, Debug)]
struct Target {
    account: AccountId,
    quota: Option<u64>,
}

/// A message that was parsed, before its blob is stored.
struct Prepared {
    item: Item,
    raw: Bytes,
    stored: StoredMessage,
    received: Option<i64>,
}

impl Mover {
    /// Does one operation. The bytes of messages are passed separately.
    pub(super) async fn operate(
        &self,
        moving: Moving,
        messages: Vec<Bytes>,
    ) -> Result<(MovingAnswer, Vec<Bytes>), Error> {
        let target = self.target(&moving.address).await?;
        let Target { account, .. } = target;
        let answer = match moving.moving {
            MovingOperation::Begin => {
                MovingAnswer::Begun { account: account.0, message_bytes_max: self.message_bytes_max }
            }
            MovingOperation::Folders => MovingAnswer::Folders(page::folders(&self.mail, account).await?),
            MovingOperation::Create { folders } => {
                let (_, made) = place::mailboxes(&self.mail, account, folders.into_iter().collect()).await?;
                MovingAnswer::Created(made)
            }
            MovingOperation::Known { messages } => MovingAnswer::Known(self.known(account, &messages).await?),
            MovingOperation::Add { messages: items } => {
                if items.len() != messages.len() {
                    return Err(Error::invalid("a batch has other messages than it says"));
                }
                self.add(target, items.into_iter().zip(messages).collect()).await?
            }
            MovingOperation::Page { mailbox, after } => {
                let (items, next, messages) =
                    page::read(&self.mail, account, mailbox.map(RecordId), after).await?;
                return Ok((MovingAnswer::Page { items, next }, messages));
            }
        };
        Ok((answer, Vec::new()))
    }

    async fn target(&self, address: &EmailAddress) -> Result<Target, Error> {
        let actor = Actor(String::new()); // reads are not logged
        let operation = restante_directory::Operation::Account { address: address.clone() };
        match self.directory.operate(&actor, operation).await? {
            Answer::Account(info) => {
                Ok(Target { account: AccountId(info.summary.account), quota: info.summary.quota_bytes })
            }
            _ => Err(Error::internal("the directory answered another operation")),
        }
    }

    async fn known(&self, account: AccountId, messages: &[KnownMessage]) -> Result<Vec<bool>, Error> {
        let of = |message: KnownMessage| async move {
            if let Some(ExportedEmail { id, blob }) = message.exported
                && self.mail.has_email(account, RecordId(id), BlobId(blob)).await?
            {
                return Ok(true);
            }
            self.mail.is_imported(account, &message.key, &message.origins).await
        };
        let known = stream::iter(messages.to_vec()).map(of).buffered(PUTS_AT_ONCE).try_collect();
        known.await.map_err(|error| store_error(error, "can't read what was imported"))
    }

    /// Imports a batch: known messages are skipped, blobs are stored concurrently, and edits share commits.
    async fn add(&self, target: Target, batch: Vec<(Item, Bytes)>) -> Result<MovingAnswer, Error> {
        let heads = batch.iter().map(|(item, _)| KnownMessage::of(item));
        let known = self.known(target.account, &heads.collect::<Vec<_>>()).await?;
        let mut folders = BTreeSet::new();
        for ((item, _), known) in batch.iter().zip(&known) {
            if !known {
                folders.extend(item.places.iter().map(|(folder, _)| folder.clone()));
            }
        }
        let (ids, mailboxes) = place::mailboxes(&self.mail, target.account, folders).await?;
        let new = batch.into_iter().zip(&known).filter(|(_, known)| !**known).map(|(one, _)| one).collect();
        let prepared = tokio::task::spawn_blocking(|| prepare(new)).await;
        let prepared = prepared.map_err(|_| Error::internal("a task that reads mail ended early"))?;
        let put = |one: Prepared| async move {
            let put = self.mail.blobs().put(&mut one.raw.clone()).await;
            (one, put)
        };
        let put: Vec<_> = stream::iter(prepared).map(put).buffered(PUTS_AT_ONCE).collect().await;
        let mut edits = Vec::with_capacity(put.len());
        for (one, put) in put {
            let blob = match put {
                Ok(put) => Ok(put.id),
                Err(error) if error.kind() == ErrorKind::Invalid => Err(error.to_string()),
                Err(error) => return Err(error.context("can't store a message")),
            };
            edits.push(self.import(target, &ids, one, blob));
        }
        // First polled in this order, so the emails are in the order of the source.
        let mut imported = join_all(edits).await.into_iter();
        let outcome = |known: bool| match known {
            true => Ok(Outcome::Repeated),
            false => imported.next().unwrap_or_else(|| Err(Error::internal("an edit has no outcome"))),
        };
        let outcomes = known.into_iter().map(outcome).collect::<Result<Vec<Outcome>, Error>>()?;
        Ok(MovingAnswer::Added { outcomes, mailboxes })
    }

    /// Imports one message.
    async fn import(
        &self,
        Target { account, quota }: Target,
        ids: &HashMap<Folder, RecordId>,
        one: Prepared,
        blob: Result<BlobId, String>,
    ) -> Result<Outcome, Error> {
        let Prepared { item, stored, received, .. } = one;
        let blob = match blob {
            Ok(blob) => blob,
            Err(why) => return Ok(Outcome::Refused(why)),
        };
        let keywords_max = self.mail.config().keywords_per_email_max.get();
        let (keywords, mut keywords_left_out) = possible_keywords(&item.keywords, keywords_max);
        let places = item.places.iter().filter_map(|(folder, origin)| Some((*ids.get(folder)?, *origin)));
        let now = || self.mail.clock().now().seconds();
        let mut message = ImportedMessage {
            message: StoredMessage { blob, ..stored },
            key: item.key,
            places: places.collect(),
            keywords,
            received: received.unwrap_or_else(now),
            quota,
        };
        let mut imported = self.mail.import(account, message.clone()).await;
        if matches!(imported, Err(MailError::TooManyKeywords)) {
            // The account has its maximum number of keywords: only those that need no number are kept.
            let before = message.keywords.len();
            message
                .keywords
                .retain(|name| name == SEEN || keyword::KNOWN.iter().any(|(_, known)| known == name));
            keywords_left_out += (before - message.keywords.len()) as u64;
            imported = self.mail.import(account, message).await;
        }
        match imported {
            Ok(Imported::New(_)) => Ok(Outcome::New { keywords_left_out }),
            Ok(Imported::Placed(_)) => Ok(Outcome::Placed),
            Ok(Imported::Repeated) => Ok(Outcome::Repeated),
            Err(MailError::OverQuota) => Ok(Outcome::OverQuota),
            Err(MailError::Store(error)) if error.kind() != ErrorKind::Invalid => {
                Err(error.context("can't store an email"))
            }
            Err(error) => Ok(Outcome::Refused(error.to_string())),
        }
    }
}

/// Keywords that are possible in JMAP, in lowercase, each once, up to the maximum of an email; and how many others there are.
fn possible_keywords(keywords: &[String], most: usize) -> (Vec<String>, u64) {
    let (mut possible, mut left_out) = (BTreeSet::new(), 0);
    for name in keywords {
        match parse_keyword(name) {
            Ok(name) if possible.len() < most || possible.contains(&name) => {
                possible.insert(name);
            }
            _ => left_out += 1,
        }
    }
    (possible.into_iter().collect(), left_out)
}

/// The bytes of a message in the form in which they are stored.
pub(super) fn bytes_to_store(raw: &[u8], is_exact: bool) -> Cow<'_, [u8]> {
    if is_exact { Cow::Borrowed(raw) } else { message::repaired(raw) }
}

/// Parses messages; this takes some 100 us each.
fn prepare(batch: Vec<(Item, Bytes)>) -> Vec<Prepared> {
    let mut prepared = Vec::with_capacity(batch.len());
    for (item, raw) in batch {
        let raw = match bytes_to_store(&raw, item.is_exact) {
            Cow::Owned(repaired) => Bytes::from(repaired),
            Cow::Borrowed(_) => raw,
        };
        let read = message::read(&raw);
        let own = read.newest_received.or(item.stored).or(read.sent_at);
        let received = item.received.or(own);
        let stored = StoredMessage::new(&read, BlobId([0; 32]));
        prepared.push(Prepared { item, raw, stored, received });
    }
    prepared
}

/// Converts an error of mail into one of the stores.
pub(super) fn store_error(error: MailError, what: &str) -> Error {
    match error {
        MailError::Store(error) => error.context(what),
        MailError::OverQuota => Error::full(format!("{what}: the account has too many mailboxes")),
        error => Error::invalid(format!("{what}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_no_keyword_can_have_are_counted() {
        let flags = ["$Seen", "$seen", "a b", "later", "x", "y"].map(str::to_owned);
        let possible = ["$seen", "later", "x"].map(str::to_owned).to_vec();
        assert_eq!(possible_keywords(&flags, 3), (possible, 2));
    }
}
