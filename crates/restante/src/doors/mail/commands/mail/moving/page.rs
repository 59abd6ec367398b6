//! Pages of an account's emails, with their messages.

use std::collections::HashMap;

use bytes::Bytes;
use restante_core::{Error, ErrorKind};
use restante_mail::{EmailState, Mail, email};
use restante_mail_files::Folder;
use restante_records::{AccountId, Cursor, Get, Query, Record, RecordId, get_each};
use serde::{Deserialize, Serialize};

use super::{
    mover::{BATCH_BYTES, store_error},
    place,
};

/// Emails per page.
const PAGE_EMAILS: usize = 128;

/// A mailbox that can be exported.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FolderInfo {
    pub(super) id: u64,
    pub(super) folder: Folder,
    pub(super) emails: u64,
}

/// An email of a page, without its bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ExportedItem {
    pub(super) id: u64,
    pub(super) received: i64,
    pub(super) folders: Vec<Folder>,
    pub(super) keywords: Vec<String>,
    pub(super) bytes: u64,
    /// Why its message, or the whole email, can't be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) problem: Option<String>,
}

impl ExportedItem {
    /// An email with a damaged record: nothing else is known about it.
    fn damaged(id: RecordId, error: &Error) -> Self {
        let (folders, keywords) = (Vec::new(), Vec::new());
        Self { id: id.0, received: 0, folders, keywords, bytes: 0, problem: Some(error.to_string()) }
    }
}

/// The mailboxes of an account, in the order of their paths.
pub(super) async fn folders(mail: &Mail, account: AccountId) -> Result<Vec<FolderInfo>, Error> {
    let failed = |error| store_error(error, "can't read the mailboxes");
    mail.prepare(account).await.map_err(failed)?;
    let (list, _) = mail.mailboxes(account).await.map_err(failed)?;
    let mut folders: Vec<FolderInfo> = Vec::with_capacity(list.len());
    for mailbox in list.iter() {
        let role = mailbox.role.map(|role| role.as_str().to_owned());
        let folder = Folder { path: place::path(&list, mailbox), role, is_guess: false };
        folders.push(FolderInfo { id: mailbox.id.0, folder, emails: mailbox.total });
    }
    folders.sort_by(|a, b| a.folder.cmp(&b.folder));
    Ok(folders)
}

/// The emails after a cursor, of one mailbox or all, with their messages, and where the next page begins. A page has at least one
/// message, and ends with the one that reaches [`BATCH_BYTES`].
pub(super) async fn read(
    mail: &Mail,
    account: AccountId,
    mailbox: Option<RecordId>,
    after: Option<String>,
) -> Result<(Vec<ExportedItem>, Option<String>, Vec<Bytes>), Error> {
    let mut query = match mailbox {
        Some(mailbox) => Query::new(email::KIND, email::BY_MAILBOX).equals(mailbox),
        None => Query::new(email::KIND, email::BY_RECEIVED),
    };
    query.after = after.as_deref().map(cursor).transpose()?;
    let mut page = mail.records().query(account, &query.clone().limit(PAGE_EMAILS)).await?;
    let mut records = whole(mail, account, page.ids.clone()).await?;
    let fitting = fitting(&records)?;
    if fitting < page.ids.len() {
        page = mail.records().query(account, &query.limit(fitting)).await?;
        records = whole(mail, account, page.ids.clone()).await?;
    }
    let folders: HashMap<u64, Folder> =
        folders(mail, account).await?.into_iter().map(|info| (info.id, info.folder)).collect();
    let (mut items, mut messages) = (Vec::new(), Vec::new());
    for (id, record) in page.ids.iter().zip(records) {
        let record = match record {
            Ok(Some(record)) => record,
            Ok(None) => continue,
            Err(error) => {
                items.push(ExportedItem::damaged(*id, &error));
                messages.push(Bytes::new());
                continue;
            }
        };
        let state = EmailState::of(&record)?;
        let keywords = mail.keywords(account, &state.keywords).await;
        let keywords = keywords.map_err(|error| store_error(error, "can't read the keywords"))?;
        let in_mailbox = |id: &&RecordId| mailbox.is_none_or(|mailbox| mailbox == **id);
        let own = state.mailboxes.iter().filter(in_mailbox).filter_map(|id| folders.get(&id.0)).cloned();
        let (message, problem) = match message(mail, &record).await? {
            Ok(message) => (message, None),
            Err(problem) => (Bytes::new(), Some(problem)),
        };
        items.push(ExportedItem {
            id: record.id.0,
            received: i64::try_from(state.received).unwrap_or(i64::MAX),
            folders: own.collect(),
            keywords: keywords.of_email(&state).map(str::to_owned).collect(),
            bytes: message.len() as u64,
            problem,
        });
        messages.push(message);
    }
    let next = page.next.map(|Cursor(bytes)| base64_simd::URL_SAFE_NO_PAD.encode_to_string(bytes));
    Ok((items, next, messages))
}

async fn whole(
    mail: &Mail,
    account: AccountId,
    ids: Vec<RecordId>,
) -> Result<Vec<Result<Option<Record>, Error>>, Error> {
    match ids.is_empty() {
        true => Ok(Vec::new()),
        false => get_each(&**mail.records(), account, &Get::whole(email::KIND, ids)).await,
    }
}

/// How many of these emails fit into a page.
fn fitting(records: &[Result<Option<Record>, Error>]) -> Result<usize, Error> {
    let mut bytes = 0;
    for (number, record) in (1..).zip(records) {
        if let Ok(Some(record)) = record {
            bytes += EmailState::of(record)?.size;
        }
        if bytes >= BATCH_BYTES {
            return Ok(number);
        }
    }
    Ok(records.len())
}

/// The message of an email; the inner error says why this one can't be read, though others may be readable.
async fn message(mail: &Mail, record: &Record) -> Result<Result<Bytes, String>, Error> {
    let Some(blob) = record.body.blobs.first() else { return Ok(Err("it has no message".to_owned())) };
    let mut bytes = Vec::new();
    let read = async {
        let mut source = mail.blobs().read(*blob, 0..u64::MAX).await?;
        while let Some(chunk) = source.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(())
    };
    match read.await {
        Ok(()) => Ok(Ok(bytes.into())),
        Err(error) if is_of_blob(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

fn is_of_blob(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt)
}

fn cursor(text: &str) -> Result<Cursor, Error> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(text);
    let bytes = bytes.map_err(|_| Error::invalid("'after' is not the 'next' of a page"))?;
    Ok(Cursor(Bytes::from(bytes)))
}
