//! What the tests of records share: a schema, changes that are easy to tell apart, and a client that keeps up with a store.
#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

pub mod cassandra;
pub mod engines;
pub mod history;
pub mod mirror;
pub mod moving;

use restante_core::BlobId;
use restante_records::{
    AccountId, Body, Change, Commit, Committed, Feed, Get, Index, IndexSchema, Kind, KindSchema, Position,
    Properties, Property, Query, Record, RecordId, Records, Revision, Schema, TOUCHED_MAX, Value,
};

pub const EMAIL: Kind = Kind(1);
pub const MAILBOX: Kind = Kind(2);
/// A kind with the largest number, without properties.
pub const THREAD: Kind = Kind(255);
pub const NO_KIND: Kind = Kind(77);

pub const IN: Property = Property(1);
pub const RECEIVED: Property = Property(2);
pub const KEYWORD: Property = Property(3);
pub const HASH: Property = Property(4);
/// A property that no index has.
pub const SIZE: Property = Property(255);
pub const NAME: Property = Property(1);
/// A counter.
pub const UID_NEXT: Property = Property(200);
pub const NO_PROPERTY: Property = Property(77);

pub const BY_MAILBOX: Index = Index(1);
pub const BY_KEYWORD: Index = Index(2);
pub const BY_HASH: Index = Index(3);
pub const BY_HASH_AND_MAILBOX: Index = Index(4);
pub const BY_ALL: Index = Index(255);
pub const BY_NAME: Index = Index(1);
pub const NO_INDEX: Index = Index(77);

pub const A: AccountId = AccountId(1);
pub const B: AccountId = AccountId(2);
/// The last possible account.
pub const LAST: AccountId = AccountId(u32::MAX);

/// The most pages of a walk that ends.
pub const PAGES_MAX: usize = 1_000;

pub fn email_schema() -> KindSchema {
    KindSchema::new(EMAIL, "email")
        .property(IN, "mailbox")
        .property(RECEIVED, "received")
        .property(KEYWORD, "keyword")
        .property(HASH, "hash")
        .property(SIZE, "size")
        .index(IndexSchema::ordered(BY_MAILBOX, "mailbox", &[IN, RECEIVED]))
        .index(IndexSchema::ordered(BY_KEYWORD, "keyword", &[KEYWORD]))
        .index(IndexSchema::scattered(BY_HASH, "hash", &[HASH]))
        .index(IndexSchema::scattered(BY_HASH_AND_MAILBOX, "hash and mailbox", &[HASH, IN]))
        .index(IndexSchema::ordered(BY_ALL, "all", &[KEYWORD, IN, RECEIVED]))
}

pub fn mailbox_schema() -> KindSchema {
    KindSchema::new(MAILBOX, "mailbox")
        .property(NAME, "name")
        .counter(UID_NEXT, "uid_next")
        .index(IndexSchema::ordered(BY_NAME, "name", &[NAME]))
}

pub fn schema() -> Schema {
    let thread = KindSchema::new(THREAD, "thread");
    Schema::new(vec![email_schema(), mailbox_schema(), thread]).unwrap()
}

pub fn none() -> Properties {
    Properties::default()
}

pub fn number(n: u64) -> Value {
    Value::Number(n)
}

pub fn text(text: &'static str) -> Value {
    text.into()
}

pub fn blob(n: u64) -> BlobId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&n.to_be_bytes());
    BlobId(bytes)
}

/// An email in a mailbox, received at a time.
pub fn in_mailbox(mailbox: u64, received: u64) -> Properties {
    none().with(IN, mailbox).with(RECEIVED, received)
}

pub fn create(kind: Kind, body: &str, properties: Properties) -> Change {
    Change::Create { kind, body: Body::new(body.to_owned()), properties }
}

/// An email whose body names its number.
pub fn email(n: u64) -> Change {
    create(EMAIL, &format!("email {n}"), in_mailbox(n % 3, n))
}

pub fn mailbox(name: &'static str) -> Change {
    create(MAILBOX, name, none().with(NAME, name))
}

pub fn thread() -> Change {
    create(THREAD, "", none())
}

pub fn move_to(id: RecordId, mailbox: u64, received: u64) -> Change {
    Change::Update { kind: EMAIL, id, body: None, properties: Some(in_mailbox(mailbox, received)) }
}

pub fn rewrite(kind: Kind, id: RecordId, body: &str) -> Change {
    Change::Update { kind, id, body: Some(Body::new(body.to_owned())), properties: None }
}

pub fn destroy(kind: Kind, id: RecordId) -> Change {
    Change::Destroy { kind, id }
}

pub async fn commit(
    records: &dyn Records,
    account: AccountId,
    changes: impl IntoIterator<Item = Change>,
) -> Committed {
    records.commit(account, Commit::of(changes)).await.unwrap()
}

/// Commits one change, and returns the id that it created, if any.
pub async fn commit_one(records: &dyn Records, account: AccountId, change: Change) -> Option<RecordId> {
    commit(records, account, [change]).await.created.first().copied()
}

/// Creates one record.
pub async fn create_one(records: &dyn Records, account: AccountId, change: Change) -> RecordId {
    commit_one(records, account, change).await.unwrap()
}

pub async fn get_one(records: &dyn Records, account: AccountId, kind: Kind, id: RecordId) -> Option<Record> {
    records.get(account, &Get::whole(kind, vec![id])).await.unwrap().remove(0)
}

/// The ids of one page.
pub async fn ids(records: &dyn Records, account: AccountId, query: &Query) -> Vec<RecordId> {
    records.query(account, query).await.unwrap().ids
}

/// The ids of all pages.
pub async fn walk(records: &dyn Records, account: AccountId, query: &Query) -> Vec<RecordId> {
    let mut all = Vec::new();
    let mut query = query.clone();
    for _ in 0..PAGES_MAX {
        let page = records.query(account, &query).await.unwrap();
        assert!(page.ids.len() <= query.limit, "a page is not longer than its limit");
        all.extend(page.ids);
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => return all,
        }
    }
    panic!("the walk of {query:?} doesn't end");
}

/// Some position, which need not be that of a commit.
pub fn at(n: u64) -> Position {
    Position::from_bytes(n.to_be_bytes())
}

/// The accounts of the feed after a position, with their revisions; their positions are in order.
pub async fn accounts_after(feed: &dyn Feed, after: Position) -> Vec<(AccountId, Revision)> {
    let touched = feed.touched(after, TOUCHED_MAX).await.unwrap();
    let positions: Vec<Position> =
        std::iter::once(after).chain(touched.iter().map(|one| one.position)).collect();
    assert!(positions.is_sorted_by(|one, other| one < other), "{positions:?}");
    touched.into_iter().map(|touched| (touched.account, touched.revision)).collect()
}

/// All accounts with their revisions, as a follower finds them that starts at the beginning.
pub async fn all_accounts(feed: &dyn Feed) -> Vec<(AccountId, Revision)> {
    let (mut all, mut after) = (Vec::new(), Position::default());
    loop {
        let page = feed.touched(after, TOUCHED_MAX).await.unwrap();
        let Some(last) = page.last() else { return all };
        after = last.position;
        all.extend(page.iter().map(|touched| (touched.account, touched.revision)));
    }
}

/// The position of the last commit.
pub async fn last_position(feed: &dyn Feed) -> Position {
    let touched = feed.touched(Position::default(), TOUCHED_MAX).await.unwrap();
    touched.last().map(|touched| touched.position).unwrap_or_default()
}

pub async fn revision(records: &dyn Records, account: AccountId) -> Revision {
    records.states(account).await.unwrap().revision
}
