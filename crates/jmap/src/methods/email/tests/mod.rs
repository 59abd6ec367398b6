//! Methods of Email, called through the router. The names of tests begin with the rule's number in `docs/design/mail-rules.md`.

mod changes;
mod damaged;
mod get;
mod index;
mod interrupted;
mod model;
mod parse;
mod query;
mod query_changes;
mod races;
mod snippet;
mod text;

use std::sync::Arc;

use bytes::Bytes;
use restante_mail::{EmailUpdate, MailConfig, NewEmail, Patch, Role, StoredMessage, message};
use restante_records::{Commit, RecordId, Revision};
use restante_search::Search;
use serde_json::{Map, Value, json};

use crate::{JmapConfig, testing::TestServer};

/// A server with mail of alice.
pub(super) struct Fixture {
    pub(super) server: TestServer,
    pub(super) inbox: RecordId,
    pub(super) archive: RecordId,
}

/// A message with the usual header.
pub(super) fn message(subject: &str, more: &str, body: &str) -> String {
    format!(
        "From: Alice <alice@example.com>\r\nTo: Bob <bob@example.org>\r\nSubject: {subject}\r\n\
         Date: Thu, 30 Oct 2014 06:12:00 +0100\r\n{more}\r\n{body}\r\n"
    )
}

/// The header field that makes a message a reply to another one.
pub(super) fn reply_to(id: &str) -> String {
    format!("In-Reply-To: <{id}@example.com>\r\n")
}

impl Fixture {
    pub(super) async fn new() -> Self {
        Self::with(JmapConfig::default(), None).await
    }

    pub(super) async fn with(config: JmapConfig, search: Option<Arc<dyn Search>>) -> Self {
        Self::of(TestServer::open_with(config, MailConfig::default(), None, search).await).await
    }

    pub(super) async fn of(server: TestServer) -> Self {
        server.mail.prepare(server.alice.account).await.unwrap();
        let (mailboxes, _) = server.mail.mailboxes(server.alice.account).await.unwrap();
        let of = |role: Role| mailboxes.iter().find(|mailbox| mailbox.role == Some(role)).unwrap().id;
        let (inbox, archive) = (of(Role::Inbox), of(Role::Archive));
        Self { server, inbox, archive }
    }

    /// Puts a message into mailboxes.
    pub(super) async fn add(
        &self,
        raw: &str,
        mailboxes: &[RecordId],
        keywords: &[&str],
        received: i64,
    ) -> RecordId {
        let account = self.server.alice.account;
        let blob = self.server.blobs.blobs.put(&mut Bytes::from(raw.to_owned())).await.unwrap();
        let message = message::read(raw.as_bytes());
        let email = NewEmail {
            if_in_state: None,
            message: StoredMessage {
                row: message.row(),
                size: message.size,
                thread_keys: message.thread_keys.clone(),
                blob: blob.id,
            },
            mailboxes: mailboxes.to_vec(),
            keywords: keywords.iter().map(|keyword| (*keyword).to_owned()).collect(),
            received,
            quota: None,
        };
        self.server.mail.create_email(account, email).await.unwrap().id
    }

    /// Puts a plain message into the inbox.
    pub(super) async fn add_plain(&self, subject: &str, received: i64) -> RecordId {
        self.add(&message(subject, "", "text"), &[self.inbox], &[], received).await
    }

    pub(super) async fn set_keywords(&self, id: RecordId, keywords: &[&str]) {
        let keywords = Patch::Whole(keywords.iter().map(|keyword| (*keyword).to_owned()).collect());
        let update = EmailUpdate { if_in_state: None, mailboxes: Patch::Keep, keywords };
        self.server.mail.update_email(self.server.alice.account, id, update).await.unwrap();
    }

    pub(super) async fn set_mailboxes(&self, id: RecordId, mailboxes: &[RecordId]) {
        let mailboxes = Patch::Whole(mailboxes.iter().copied().collect());
        let update = EmailUpdate { if_in_state: None, mailboxes, keywords: Patch::Keep };
        self.server.mail.update_email(self.server.alice.account, id, update).await.unwrap();
    }

    pub(super) async fn destroy(&self, id: RecordId) {
        self.server.mail.destroy_email(self.server.alice.account, id, None).await.unwrap();
    }

    /// Commits to the account directly, like several edits that share a commit.
    pub(super) async fn commit(&self, commit: Commit) -> Revision {
        let records = &self.server.records.records;
        records.commit(self.server.alice.account, commit).await.unwrap().revision
    }

    /// Calls a method on alice's account, and returns the arguments of its response.
    pub(super) async fn call(&self, name: &str, mut arguments: Value) -> Value {
        arguments["accountId"] = self.server.alice.id.clone().into();
        self.server.call(name, arguments).await
    }

    /// The type of the error that a call returns.
    pub(super) async fn error(&self, name: &str, arguments: Value) -> String {
        let answer = self.call(name, arguments).await;
        answer["type"].as_str().unwrap_or_else(|| panic!("no error: {answer}")).to_owned()
    }

    /// One email with some properties.
    pub(super) async fn email(&self, id: RecordId, properties: &[&str]) -> Value {
        let mut answer =
            self.call("Email/get", json!({"ids": [email_id(id)], "properties": properties})).await;
        answer["list"][0].take()
    }

    /// The ids that a query returns.
    pub(super) async fn ids(&self, arguments: Value) -> Vec<String> {
        let answer = self.call("Email/query", arguments).await;
        assert!(answer["ids"].is_array(), "{answer}");
        strings(&answer["ids"])
    }

    pub(super) fn inbox_id(&self) -> String {
        mailbox_id(self.inbox)
    }
}

pub(super) fn email_id(id: RecordId) -> String {
    format!("e{}", id.0)
}

pub(super) fn mailbox_id(id: RecordId) -> String {
    format!("m{}", id.0)
}

pub(super) fn email_ids(ids: &[RecordId]) -> Vec<String> {
    ids.iter().map(|id| email_id(*id)).collect()
}

pub(super) fn strings(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Both objects as one.
pub(super) fn with(left: Value, right: Value) -> Value {
    let (Value::Object(mut left), Value::Object(right)) = (left, right) else { panic!("two objects") };
    left.extend(right);
    Value::Object(left)
}

/// An object with one member.
pub(super) fn member(name: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value)]))
}
