//! The records of commits and pages: emails as in a mailbox.

use std::{
    future::Future,
    ops::Bound::{Included, Unbounded},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use restante_records::{
    AccountId, Body, Change, Commit, Config, EngineUrl, Index, IndexSchema, Kind, KindSchema, Opened,
    Properties, Property, Query, RecordId, Revision, Schema, Value,
};

use super::{
    Bench, Subject,
    pairs::{Bound, load},
};
use crate::random::Random;

pub(super) const EMAIL: Kind = Kind(1);
const MAILBOX: Property = Property(1);
const RECEIVED: Property = Property(2);
const MESSAGE: Property = Property(3);
pub(super) const BY_MAILBOX: Index = Index(1);
const BY_RECEIVED: Index = Index(2);
const BY_MESSAGE: Index = Index(3);

/// About what a listing shows of an email.
const BODY_BYTES: usize = 600;
const MESSAGE_BYTES: usize = 16;
/// Records of a page.
pub(super) const PAGE: usize = 50;
/// The one mailbox, and when the first email was received.
const INBOX: u64 = 1;
const FIRST_RECEIVED: u64 = 1_700_000_000;
/// The account whose commits show what a commit writes.
pub(super) const SAMPLE: AccountId = AccountId(1);
/// The first of the accounts with commits.
const COMMITTERS: u32 = 1_000;

/// Compares clients that commit an email each time, each to its own account, with a raw commit by as many clients. `next` is the
/// number of the next email.
pub(super) async fn compare_commits<W: Future<Output = anyhow::Result<()>> + Send>(
    bench: &mut Bench<'_>,
    (subject, bounds): (Subject<'_>, &[Bound]),
    clients: usize,
    opened: &Opened,
    next: &Arc<AtomicU64>,
    raw: impl Fn(usize) -> W + Clone + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let base = async |span| {
        let raw = raw.clone();
        load(clients, span, move |client, _| raw(client)).await
    };
    let ours = async |span| {
        let (records, next) = (opened.records.clone(), next.clone());
        load(clients, span, move |client, _| {
            let (records, number) = (records.clone(), next.fetch_add(1, Ordering::Relaxed));
            async move { Ok(records.commit(committer(client), commit(number)).await.map(drop)?) }
        })
        .await
    };
    bench.compare(subject, bounds, base, ours).await
}

/// The account of a client that commits.
pub(super) fn committer(client: usize) -> AccountId {
    AccountId(COMMITTERS + client as u32)
}

/// Opens the records of this run.
pub(super) async fn open(url: EngineUrl) -> anyhow::Result<Opened> {
    let email = KindSchema::new(EMAIL, "email")
        .property(MAILBOX, "mailbox")
        .property(RECEIVED, "received")
        .property(MESSAGE, "message")
        .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[MAILBOX, RECEIVED]))
        .index(IndexSchema::ordered(BY_RECEIVED, "received", &[RECEIVED]))
        .index(IndexSchema::scattered(BY_MESSAGE, "message", &[MESSAGE]));
    Ok(restante_records::open(Config::new(url, Schema::new(vec![email])?)).await?)
}

/// The body of an email: bytes that can't be compressed.
pub(super) fn body(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BODY_BYTES];
    Random::new(number, 1).fill(&mut bytes);
    bytes
}

fn email(number: u64) -> Change {
    let mut message = vec![0; MESSAGE_BYTES];
    Random::new(number, 2).fill(&mut message);
    let properties = Properties::default()
        .with(MAILBOX, INBOX)
        .with(RECEIVED, FIRST_RECEIVED + number)
        .with(MESSAGE, Value::Text(message.into()));
    Change::Create { kind: EMAIL, body: Body::new(body(number)), properties }
}

/// A commit of one email.
pub(super) fn commit(number: u64) -> Commit {
    Commit::of([email(number)])
}

/// An account that was filled, and its emails by their numbers.
pub(super) struct Filled {
    pub(super) account: AccountId,
    pub(super) ids: Vec<RecordId>,
    /// The revision before the first email.
    pub(super) before: Revision,
}

/// Fills an account, with this many emails in a commit.
pub(super) async fn fill(
    opened: &Opened,
    account: AccountId,
    emails: u64,
    in_commit: u64,
) -> anyhow::Result<Filled> {
    let bar = crate::progress::bar("records", emails);
    let before = opened.records.states(account).await?.revision;
    let mut ids = Vec::new();
    for first in (0..emails).step_by(in_commit as usize) {
        let last = emails.min(first + in_commit);
        let committed = opened.records.commit(account, Commit::of((first..last).map(email))).await?;
        ids.extend(committed.created);
        bar.inc(last - first);
    }
    bar.finish_and_clear();
    Ok(Filled { account, ids, before })
}

/// The page of the mailbox that begins with an email.
pub(super) fn page(number: u64) -> Query {
    let from = Included(Value::Number(FIRST_RECEIVED + number));
    Query::new(EMAIL, BY_MAILBOX).equals(INBOX).between(from, Unbounded).limit(PAGE)
}
