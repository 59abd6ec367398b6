//! Reads the mail of an account of another server by JMAP (RFC 8620, RFC 8621).

mod client;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    path::PathBuf,
};

use anyhow::{Context, bail};

use clap::{Args, ValueHint};
use futures_util::{StreamExt, stream};
use restante_mail_files::Folder;
use restante_mail_wire::header::Date;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::client::{Client, Credentials, Session};
use super::{
    batches::Batch,
    mover::{BATCH_BYTES, BATCH_MESSAGES, Item, KnownMessage},
    target::Target,
};
use crate::{exit::UsageError, secrets};

/// Concurrent downloads.
const DOWNLOADS: usize = 4;

/// How to log in to the server that mail comes from.
#[derive(Args, Clone, Debug)]
pub(super) struct JmapFlags {
    /// The user name at the server that mail comes from
    #[arg(long, value_name = "NAME", requires = "source_password_file")]
    source_user: Option<String>,
    /// A file with the password there
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "source_user")]
    source_password_file: Option<PathBuf>,
    /// A file with a token of that server, instead of a user and a password
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "source_user")]
    source_token_file: Option<PathBuf>,
    /// The JMAP id of the account there [default: the user's own]
    #[arg(long, value_name = "ID")]
    source_account: Option<String>,
    /// Trust the certificates in this PEM file instead of those of the system
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    source_ca_file: Option<PathBuf>,
}

impl JmapFlags {
    /// Fails when the flags have no credentials.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let is_there = self.source_user.is_some() || self.source_token_file.is_some();
        let advice = "name a log-in: --source-user with --source-password-file, or --source-token-file";
        if is_there { Ok(()) } else { Err(UsageError(advice.to_owned()).into()) }
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        match (&self.source_user, &self.source_password_file, &self.source_token_file) {
            (Some(user), Some(file), _) => {
                Ok(Credentials::Basic(user.clone(), secrets::read("password", file)?))
            }
            (_, _, Some(file)) => Ok(Credentials::Bearer(secrets::read("token", file)?)),
            _ => bail!("there is no log-in for the source"),
        }
    }
}

/// The emails of an account, the oldest first.
pub(super) struct JmapSource {
    client: Client,
    session: Session,
    folders: HashMap<String, Folder>,
    /// The id of the last listed email, and how many were listed.
    last: Option<String>,
    listed: usize,
    /// Emails that were listed but not downloaded yet.
    waiting: VecDeque<(RemoteEmail, Item)>,
    is_listed: bool,
    total: Option<u64>,
    message_bytes_max: u64,
    /// Whether the mailboxes were returned already.
    has_folders: bool,
    done: u64,
}

/// An email as Email/get describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RemoteEmail {
    id: String,
    blob_id: String,
    mailbox_ids: HashMap<String, bool>,
    #[serde(default)]
    keywords: HashMap<String, bool>,
    received_at: String,
    size: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RemoteMailbox {
    id: String,
    name: String,
    #[serde(default)]
    parent_id: Option<String>,
    #[serde(default)]
    role: Option<String>,
}

impl JmapSource {
    /// Logs in, and reads the mailboxes.
    pub(super) async fn open(url: &str, flags: &JmapFlags, message_bytes_max: u64) -> anyhow::Result<Self> {
        let client = Client::new(&flags.credentials()?, flags.source_ca_file.clone())?;
        let session = client.session(url, flags.source_account.as_deref()).await?;
        let mut source = Self {
            client,
            session,
            folders: HashMap::new(),
            last: None,
            listed: 0,
            waiting: VecDeque::new(),
            is_listed: false,
            total: None,
            message_bytes_max,
            has_folders: false,
            done: 0,
        };
        source.read_folders().await?;
        let query = json!({"accountId": source.session.account, "limit": 1, "calculateTotal": true});
        let [answer] = source.client.call(&source.session, [("Email/query", query)]).await?;
        source.total = answer.get("total").and_then(Value::as_u64);
        Ok(source)
    }

    /// The number of emails of the account, if the server counts them.
    pub(super) fn total(&self) -> Option<u64> {
        self.total
    }

    async fn read_folders(&mut self) -> anyhow::Result<()> {
        let get = json!({
            "accountId": self.session.account,
            "ids": null,
            "properties": ["id", "name", "parentId", "role"],
        });
        let [answer] = self.client.call(&self.session, [("Mailbox/get", get)]).await?;
        let list = answer.get("list").cloned().unwrap_or_default();
        let list: Vec<RemoteMailbox> =
            serde_json::from_value(list).context("the source's mailboxes are unreadable")?;
        self.folders = folders(&list);
        Ok(())
    }

    /// The next emails that are not imported yet; `None` after the last.
    pub(super) async fn next(&mut self, target: &Target) -> anyhow::Result<Option<Batch>> {
        let mut batch = Batch::default();
        if !self.has_folders {
            self.has_folders = true;
            batch.folders = self.folders.values().cloned().collect();
        }
        if self.waiting.is_empty() && !self.is_listed {
            self.list(target, &mut batch).await?;
        }
        if self.waiting.is_empty() && self.is_listed {
            let is_over = batch.folders.is_empty() && batch.known == 0 && batch.refused.is_empty();
            return Ok((!is_over).then_some(batch));
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && taken.len() < BATCH_MESSAGES
            && let Some((email, item)) = self.waiting.pop_front()
        {
            bytes += email.size;
            taken.push((email, item));
        }
        let (client, session, bytes_max) = (&self.client, &self.session, self.message_bytes_max);
        let download = |(email, item): (RemoteEmail, Item)| async move {
            let message = client.download(session, &email.blob_id, bytes_max).await;
            (email, item, message)
        };
        let mut downloaded = stream::iter(taken).map(download).buffered(DOWNLOADS);
        while let Some((email, item, message)) = downloaded.next().await {
            self.done += 1;
            match message? {
                Ok(message) => {
                    batch.items.push(Item { bytes: message.len() as u64, ..item });
                    batch.messages.push(message);
                }
                Err(why) => batch.refused.push(format!("email {}: {why}", email.id)),
            }
        }
        drop(downloaded);
        batch.done = self.done;
        Ok(Some(batch))
    }

    /// Lists emails, and selects those to be downloaded.
    async fn list(&mut self, target: &Target, batch: &mut Batch) -> anyhow::Result<()> {
        let emails = self.page().await?;
        self.is_listed = emails.is_empty();
        self.last = emails.last().map(|email| email.id.clone()).or(self.last.take());
        self.listed += emails.len();
        let is_unknown = |id: &String| !self.folders.contains_key(id);
        if emails.iter().flat_map(|email| email.mailbox_ids.keys()).any(is_unknown) {
            self.read_folders().await?; // a mailbox was created in the meantime
        }
        let items: Vec<(RemoteEmail, Item)> =
            emails.into_iter().map(|email| (email.clone(), self.item(email))).collect();
        let heads = items.iter().map(|(_, item)| KnownMessage::of(item));
        let known = target.known(heads.collect()).await?;
        for ((email, item), known) in items.into_iter().zip(known) {
            if known {
                batch.known += 1;
                self.done += 1;
            } else if email.size > self.message_bytes_max {
                let (size, max) = (email.size, self.message_bytes_max);
                batch
                    .refused
                    .push(format!("email {}: it has {size} bytes, and at most {max} are taken", email.id));
                self.done += 1;
            } else {
                self.waiting.push_back((email, item));
            }
        }
        batch.done = self.done;
        Ok(())
    }

    /// The emails after the last listed one.
    async fn page(&self) -> anyhow::Result<Vec<RemoteEmail>> {
        let limit = self.session.objects_in_get_max.min(BATCH_MESSAGES);
        let after = self.last.as_ref().map(|last| json!({"anchor": last, "anchorOffset": 1}));
        match self.page_from(after.unwrap_or_else(|| json!({"position": 0})), limit).await {
            // The last one was destroyed in the meantime. Emails that are listed again are already known.
            Err(error) if error.to_string().contains("anchorNotFound") => {
                let position = self.listed.saturating_sub(limit);
                self.page_from(json!({"position": position}), limit).await
            }
            page => page,
        }
    }

    async fn page_from(&self, mut query: Value, limit: usize) -> anyhow::Result<Vec<RemoteEmail>> {
        let account = &self.session.account;
        if let Some(query) = query.as_object_mut() {
            query.insert("accountId".to_owned(), json!(account));
            query.insert("limit".to_owned(), json!(limit));
            query.insert("sort".to_owned(), json!([{"property": "receivedAt", "isAscending": true}]));
        }
        let get = json!({
            "accountId": account,
            "#ids": {"resultOf": "0", "name": "Email/query", "path": "/ids"},
            "properties": ["id", "blobId", "mailboxIds", "keywords", "receivedAt", "size"],
        });
        let calls = [("Email/query", query), ("Email/get", get)];
        let [listed, got] = self.client.call(&self.session, calls).await?;
        let list = got.get("list").cloned().unwrap_or_default();
        let list: Vec<RemoteEmail> =
            serde_json::from_value(list).context("the source's emails are unreadable")?;
        let ids = listed.get("ids").and_then(Value::as_array).map_or(0, Vec::len);
        if list.is_empty() && ids > 0 {
            bail!("the source lists emails and does not have them");
        }
        // In the order of the query.
        let order: HashMap<&str, usize> = listed
            .get("ids")
            .and_then(Value::as_array)
            .map(|ids| ids.iter().filter_map(Value::as_str).zip(0..).collect())
            .unwrap_or_default();
        let mut list = list;
        list.sort_by_key(|email| order.get(email.id.as_str()).copied().unwrap_or(usize::MAX));
        Ok(list)
    }

    /// The data of an email to import.
    fn item(&self, email: RemoteEmail) -> Item {
        let mut hash = Sha256::new();
        for part in ["jmap", &self.session.host, &self.session.account, &email.id] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mailboxes = email.mailbox_ids.iter().filter(|(_, is_in)| **is_in);
        let mut places: Vec<(Folder, u64)> =
            mailboxes.filter_map(|(id, _)| Some((self.folders.get(id)?.clone(), origin(id)))).collect();
        if places.is_empty() {
            places.push((Folder::of_role("Archive", "archive"), 0));
        }
        places.sort_unstable();
        let keywords = email.keywords.into_iter().filter(|(_, is_set)| *is_set);
        Item {
            key: hash.finalize().into(),
            places,
            keywords: keywords.map(|(keyword, _)| keyword).collect(),
            received: Date::parse(&email.received_at).map(|date| date.seconds),
            stored: None,
            is_exact: true,
            exported: None,
            bytes: email.size,
        }
    }
}

/// A number for a mailbox of the source that does not depend on its name, which may change.
fn origin(id: &str) -> u64 {
    Sha256::digest(id).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The mailboxes of the source by their ids.
fn folders(list: &[RemoteMailbox]) -> HashMap<String, Folder> {
    let by_id: HashMap<&str, &RemoteMailbox> =
        list.iter().map(|mailbox| (mailbox.id.as_str(), mailbox)).collect();
    let of = |mailbox: &RemoteMailbox| {
        let mut path = vec![mailbox.name.clone()];
        let mut seen = HashSet::from([mailbox.id.as_str()]);
        let mut parent = mailbox.parent_id.as_deref();
        while let Some(above) = parent.and_then(|id| by_id.get(id)).filter(|above| seen.insert(&above.id)) {
            path.push(above.name.clone());
            parent = above.parent_id.as_deref();
        }
        path.reverse();
        let role = mailbox.role.clone();
        (mailbox.id.clone(), Folder { path, role, is_guess: false })
    };
    list.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_of_the_source_has_its_path_also_when_parents_run_in_a_circle() {
        let mailbox = |id: &str, name: &str, parent: Option<&str>| RemoteMailbox {
            id: id.to_owned(),
            name: name.to_owned(),
            parent_id: parent.map(str::to_owned),
            role: None,
        };
        let list = [
            mailbox("a", "Work", None),
            mailbox("b", "Old", Some("a")),
            mailbox("c", "X", Some("d")),
            mailbox("d", "Y", Some("c")),
        ];
        let folders = folders(&list);
        assert_eq!(folders["b"].path, ["Work", "Old"]);
        assert_eq!(folders["c"].path, ["Y", "X"]);
    }
}
