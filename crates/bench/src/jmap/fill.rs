//! Accounts and emails, written to the stores before the server starts.

use std::{fs, ops::Range, os::unix::fs::MetadataExt, path::Path, sync::Arc};

use anyhow::{Context, bail};
use bytes::Bytes;
use futures_util::future::try_join_all;
use restante_core::SystemClock;
use restante_directory::{
    Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, Domain, NewToken, Operation, Role, Scope,
};
use restante_mail::{
    Mail, MailConfig, MailMetrics, MailboxSet, NewEmail, NewMailbox, Parent, Role as MailboxRole,
    StoredMessage, message,
};
use restante_records::AccountId;
use tokio::task::JoinHandle;

use super::{corpus::Corpus, stores::Stores};
use crate::progress;

/// Emails that are stored at once, so that their commits and syncs are shared.
const BATCH: u64 = 256;
const DOMAIN: &str = "example.org";

/// What to write.
pub(super) struct Plan {
    pub(super) corpus: Corpus,
    /// Emails in each inbox; one account for each.
    pub(super) inboxes: Vec<u64>,
    /// Mailboxes of each account; one account for each.
    pub(super) mailboxes: Vec<u64>,
    /// Accounts that mail is delivered to.
    pub(super) recipients: u64,
}

/// An account whose user reads its mail.
pub(super) struct User {
    /// Emails in its inbox.
    pub(super) emails: u64,
    pub(super) mailboxes: u64,
    pub(super) address: String,
    pub(super) token: String,
}

/// What was written.
pub(super) struct Filled {
    pub(super) inboxes: Vec<User>,
    /// Accounts with many mailboxes.
    pub(super) mailboxes: Vec<User>,
    /// The addresses that mail is delivered to.
    pub(super) recipients: Vec<String>,
    /// A user whose inbox is empty.
    pub(super) searcher: User,
    /// Emails of all inboxes.
    pub(super) emails: u64,
    /// Bytes of their raw messages.
    pub(super) raw_bytes: u64,
    /// Bytes of records and blobs on disk after closing; `None` if servers store them.
    pub(super) bytes: Option<u64>,
}

/// Makes the stores, accounts and emails, and closes the stores.
pub(super) async fn fill(stores: &Stores, plan: &Plan) -> anyhow::Result<Filled> {
    let records = stores.open_records().await?;
    let blobs = stores.open_blobs().await?;
    let clock = Arc::new(SystemClock);
    let (config, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
    let (directory, _) = Directory::open(&records, config, clock.clone(), metrics).await?;
    let (config, metrics) = (MailConfig::default(), MailMetrics::default());
    let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock, config, metrics);
    let mut filling = Filling { directory, mail, corpus: plan.corpus, raw_bytes: 0 };
    let filled = filling.all(plan).await;
    drop(filling);
    records.upkeep.close().await?;
    blobs.upkeep.close().await?;
    Ok(Filled { bytes: stores.mail_bytes()?, ..filled? })
}

struct Filling {
    directory: Directory,
    mail: Mail,
    corpus: Corpus,
    raw_bytes: u64,
}

impl Filling {
    async fn all(&mut self, plan: &Plan) -> anyhow::Result<Filled> {
        let domain: Domain = DOMAIN.parse()?;
        self.operate(Operation::AddDomain { domain, separator: None, catch_all: None }).await?;
        let mut inboxes = Vec::new();
        for &emails in &plan.inboxes {
            let (account, user) = self.user(&format!("inbox{emails}")).await?;
            self.fill_inbox(account, emails).await?;
            inboxes.push(User { emails, ..user });
        }
        let mut mailboxes = Vec::new();
        for &count in &plan.mailboxes {
            let (account, user) = self.user(&format!("mailboxes{count}")).await?;
            self.make_mailboxes(account, count).await?;
            mailboxes.push(User { mailboxes: count, ..user });
        }
        let mut recipients = Vec::new();
        for number in 0..plan.recipients {
            let address = format!("recipient{number}@{DOMAIN}");
            self.add(&address).await?;
            recipients.push(address);
        }
        let (_, searcher) = self.user("searcher").await?;
        let (emails, raw_bytes) = (plan.inboxes.iter().sum(), self.raw_bytes);
        let bytes = None; // known when the stores are closed
        Ok(Filled { inboxes, mailboxes, recipients, searcher, emails, raw_bytes, bytes })
    }

    async fn operate(&self, operation: Operation) -> anyhow::Result<Answer> {
        Ok(self.directory.operate(&Actor("restante bench".to_owned()), operation).await?)
    }

    async fn add(&self, address: &str) -> anyhow::Result<AccountId> {
        let address = address.parse()?;
        let add = Operation::AddAccount { address, password: None, role: Role::User, quota_bytes: None };
        match self.operate(add).await? {
            Answer::Password { account: Some(number), .. } => Ok(AccountId(number)),
            _ => bail!("a new account has no number"),
        }
    }

    /// An account with a token.
    async fn user(&self, name: &str) -> anyhow::Result<(AccountId, User)> {
        let address = format!("{name}@{DOMAIN}");
        let account = self.add(&address).await?;
        self.mail.prepare(account).await?;
        let token = NewToken { name: "bench".to_owned(), scopes: vec![Scope::Mail], expires_in: None };
        let create = Operation::CreateToken { address: address.parse()?, token };
        let Answer::Token { token, .. } = self.operate(create).await? else { bail!("no token was made") };
        let mailboxes = self.mail.mailboxes(account).await?.0.len() as u64;
        Ok((account, User { emails: 0, mailboxes, address, token }))
    }

    async fn fill_inbox(&mut self, account: AccountId, emails: u64) -> anyhow::Result<()> {
        let (mailboxes, _) = self.mail.mailboxes(account).await?;
        let inbox = mailboxes.iter().find(|mailbox| mailbox.role == Some(MailboxRole::Inbox));
        let inbox = inbox.context("a new account has no inbox")?.id;
        let bar = progress::bar("storing emails", emails);
        let batch = |first: u64| first..emails.min(first + BATCH);
        let mut storing = self.begin_storing(batch(0));
        for first in (0..emails).step_by(BATCH as usize) {
            let numbers = batch(first);
            // The messages of the next batch are stored while the emails of this one are created.
            let next = self.begin_storing(batch(emails.min(first + BATCH)));
            let stored = std::mem::replace(&mut storing, next).await??;
            let creates = numbers.clone().zip(stored).map(|(n, message)| {
                self.raw_bytes += message.size;
                let email = NewEmail {
                    if_in_state: None,
                    message,
                    mailboxes: vec![inbox],
                    keywords: self.corpus.keywords(n),
                    received: Corpus::received(n),
                    quota: None,
                };
                self.mail.create_email(account, email)
            });
            try_join_all(creates.collect::<Vec<_>>()).await?;
            bar.inc(numbers.end - numbers.start);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Starts storing messages, on another thread.
    fn begin_storing(&self, numbers: Range<u64>) -> JoinHandle<anyhow::Result<Vec<StoredMessage>>> {
        let (corpus, mail) = (self.corpus, self.mail.clone());
        tokio::spawn(async move { try_join_all(numbers.map(|n| store(&mail, corpus, n))).await })
    }

    /// Adds mailboxes to those that every account has.
    async fn make_mailboxes(&self, account: AccountId, count: u64) -> anyhow::Result<()> {
        let there = self.mail.mailboxes(account).await?.0.len() as u64;
        let create = (there..count).map(|number| NewMailbox {
            name: format!("Folder {number}"),
            parent: Parent::Top,
            role: None,
            sort_order: number as u32,
            is_subscribed: true,
        });
        let set = MailboxSet { create: create.collect(), ..MailboxSet::default() };
        let outcome = self.mail.set_mailboxes(account, set).await?;
        for created in outcome.created {
            created?;
        }
        Ok(())
    }
}

async fn store(mail: &Mail, corpus: Corpus, n: u64) -> anyhow::Result<StoredMessage> {
    let raw = Bytes::from(corpus.email(n));
    let put = mail.blobs().put(&mut raw.clone()).await?;
    Ok(StoredMessage::new(&message::read(&raw), put.id))
}

/// Bytes that the files below a folder occupy on disk.
pub(super) fn disk_bytes(folder: &Path) -> anyhow::Result<u64> {
    const BLOCK_BYTES: u64 = 512; // the unit of st_blocks, whatever the file system's is
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))? {
        let entry = entry?;
        let facts = entry.metadata()?;
        bytes += if facts.is_dir() { disk_bytes(&entry.path())? } else { facts.blocks() * BLOCK_BYTES };
    }
    Ok(bytes)
}
