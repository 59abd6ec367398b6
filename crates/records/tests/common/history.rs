//! A history of commits and reads by several clients of several servers, under faults, and what must hold of it.
//!
//! Each commit creates one record whose body is a unique text. So the end state shows whether it was made, and how often. What is
//! checked:
//!
//! - what was acknowledged exists once, at its revision and with its id, and nothing that was refused exists;
//! - a commit whose outcome is unknown to its client (`Unavailable`) was made once or not at all;
//! - revisions have no gaps, and ids rise with them;
//! - a commit that expected a state came right after it;
//! - no reader goes back, and none misses what was acknowledged before it began to read.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use restante_core::ErrorKind;
use restante_records::{
    AccountId, Body, Change, ChangesSince, Commit, Error, Get, Opened, Query, Record, RecordId, Records,
    Revision, Upkeep,
};

use super::{BY_MAILBOX, EMAIL, in_mailbox, mirror::all_of};

/// What a client knows about its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Acknowledged { revision: Revision, id: RecordId },
    Refused,
    Unknown,
}

/// A commit that was tried.
#[derive(Clone, Debug)]
struct Attempt {
    account: AccountId,
    text: String,
    expected: Option<Revision>,
    outcome: Outcome,
}

/// How often each outcome occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub acknowledged: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Of the unknown ones, those that were made.
    pub made_unknown: usize,
}

#[derive(Default)]
pub struct History {
    attempts: Mutex<Vec<Attempt>>,
    /// The last commit of each account that was acknowledged.
    acknowledged: Mutex<BTreeMap<AccountId, (Revision, RecordId)>>,
    next: AtomicU64,
    /// The errors of unknown outcomes, and how often each occurred.
    errors: Mutex<BTreeMap<String, u64>>,
}

impl History {
    /// Tries a commit and records its outcome. With `expected` the emails must be in that state.
    pub async fn commit(
        &self,
        records: &dyn Records,
        account: AccountId,
        expected: Option<Revision>,
    ) -> Result<Revision, Error> {
        let (text, mut commit) = self.next_commit();
        if let Some(expected) = expected {
            commit = commit.if_in_state(EMAIL, expected);
        }
        let answer = records.commit(account, commit).await;
        let outcome = match &answer {
            Ok(made) => {
                assert_eq!(made.created.len(), 1, "one record was created");
                Outcome::Acknowledged { revision: made.revision, id: made.created[0] }
            }
            // The client can't know whether such a commit was made.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full) => {
                *self.errors.lock().entry(error.to_string()).or_default() += 1;
                Outcome::Unknown
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                assert!(expected.is_some(), "it had no precondition: {error}");
                Outcome::Refused
            }
        };
        self.attempts.lock().push(Attempt { account, text, expected, outcome });
        if let Outcome::Acknowledged { revision, id } = outcome {
            let mut acknowledged = self.acknowledged.lock();
            let newest = acknowledged.entry(account).or_insert((revision, id));
            *newest = (*newest).max((revision, id));
        }
        answer.map(|made| made.revision)
    }

    /// Tries a commit on a server that dies when `death` is over: its client gets no answer then. An answer before that counts.
    pub async fn commit_until(
        &self,
        records: &dyn Records,
        account: AccountId,
        death: impl Future<Output = ()>,
    ) {
        let (text, commit) = self.next_commit();
        let attempt = Attempt { account, text, expected: None, outcome: Outcome::Unknown };
        let outcome = tokio::select! {
            answer = records.commit(account, commit) => match answer {
                Ok(made) => Outcome::Acknowledged { revision: made.revision, id: made.created[0] },
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    Outcome::Unknown
                }
            },
            () = death => Outcome::Unknown,
        };
        self.attempts.lock().push(Attempt { outcome, ..attempt });
    }

    /// A commit that creates one record, and its text.
    fn next_commit(&self) -> (String, Commit) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let text = format!("{number}");
        let create = Change::Create {
            kind: EMAIL,
            body: Body::new(text.clone()),
            properties: in_mailbox(number % 3, number),
        };
        (text, Commit::of([create]))
    }

    fn newest(&self, account: AccountId) -> Option<(Revision, RecordId)> {
        self.acknowledged.lock().get(&account).copied()
    }

    /// How many commits were acknowledged.
    pub fn acknowledged(&self) -> usize {
        let attempts = self.attempts.lock();
        attempts.iter().filter(|attempt| matches!(attempt.outcome, Outcome::Acknowledged { .. })).count()
    }

    /// The errors of unknown outcomes, and how often each occurred.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().clone()
    }

    /// Compares the history with what the store has at the end.
    pub async fn check(&self, opened: &Opened) -> Counts {
        let attempts = self.attempts.lock().clone();
        let mut counts = Counts::default();
        let mut accounts: Vec<AccountId> = attempts.iter().map(|attempt| attempt.account).collect();
        accounts.sort_unstable();
        accounts.dedup();
        for account in accounts {
            let there = check_account(&*opened.records, &*opened.upkeep, account).await;
            for attempt in attempts.iter().filter(|attempt| attempt.account == account) {
                check_attempt(attempt, there.get(&attempt.text), &mut counts);
            }
            let texts: Vec<&String> = attempts.iter().map(|attempt| &attempt.text).collect();
            assert!(
                there.keys().all(|text| texts.contains(&text)),
                "something is there that nobody committed"
            );
        }
        let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
        assert_eq!(report.findings, [], "the store is whole");
        counts
    }
}

/// The records of an account, by texts; checks revisions and ids.
async fn check_account(
    records: &dyn Records,
    upkeep: &dyn Upkeep,
    account: AccountId,
) -> BTreeMap<String, Record> {
    let all: Vec<Record> = all_of(upkeep, account).await.into_values().collect();
    let state = records.states(account).await.unwrap();
    let revisions: Vec<u64> = all.iter().map(|record| record.created.0).collect();
    let dense: Vec<u64> = (1..=state.revision.0).collect();
    assert_eq!(revisions, dense, "{account:?}: by rising ids, every revision created one record");
    let listed = super::walk(records, account, &Query::new(EMAIL, BY_MAILBOX)).await;
    assert_eq!(listed.len(), all.len(), "{account:?}: the index has each record once");
    let mut by_text = BTreeMap::new();
    for record in all {
        let text = String::from_utf8(record.body.bytes.to_vec()).unwrap();
        let twice = by_text.insert(text, record);
        assert!(twice.is_none(), "{account:?}: a commit was made twice: {twice:?}");
    }
    by_text
}

fn check_attempt(attempt: &Attempt, there: Option<&Record>, counts: &mut Counts) {
    match attempt.outcome {
        Outcome::Acknowledged { revision, id } => {
            counts.acknowledged += 1;
            let Some(record) = there else { panic!("what was acknowledged is lost: {attempt:?}") };
            assert_eq!((record.created, record.id), (revision, id), "{attempt:?}");
        }
        Outcome::Refused => {
            counts.refused += 1;
            assert_eq!(there, None, "what was refused is there: {attempt:?}");
        }
        Outcome::Unknown => {
            counts.unknown += 1;
            counts.made_unknown += usize::from(there.is_some());
        }
    }
    if let (Some(expected), Some(record)) = (attempt.expected, there) {
        assert_eq!(record.created.0, expected.0 + 1, "it was made in another state: {attempt:?}");
    }
}

/// A client that reads one account from one server, again and again.
pub struct Reader {
    account: AccountId,
    seen: Revision,
    read: usize,
}

impl Reader {
    pub fn new(account: AccountId) -> Self {
        Self { account, seen: Revision(0), read: 0 }
    }

    /// How many records it has seen in changes.
    pub fn read(&self) -> usize {
        self.read
    }

    /// The newest revision that it has seen.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Reads what is new, and checks it. Errors are those of the server.
    pub async fn read_on(&mut self, records: &dyn Records, history: &History) -> Result<(), Error> {
        let before = history.newest(self.account);
        let at_least = before.map_or(self.seen, |(revision, _)| revision.max(self.seen));
        let states = records.states(self.account).await?;
        assert!(states.revision >= at_least, "{:?}: {:?} after {at_least:?}", self.account, states.revision);
        assert_eq!(states.of(EMAIL), states.revision, "each commit changes the emails");
        let newest = Query::new(EMAIL, BY_MAILBOX).limit(1);
        let page = records.query(self.account, &newest).await?;
        assert!(page.state >= states.revision, "a page is older than a state that was read before it");
        if let Some((revision, id)) = before {
            let found = records.get(self.account, &Get::whole(EMAIL, vec![id])).await?.remove(0);
            let found = found.unwrap_or_else(|| panic!("{id:?} was acknowledged and can't be read"));
            assert_eq!(found.created, revision);
        }
        let since = ChangesSince { kind: None, since: self.seen, limit: 100 };
        let changes = records.changes(self.account, &since).await?;
        assert!(changes.revision >= self.seen && (changes.has_more || changes.revision >= at_least));
        assert_eq!(
            changes.created.len() as u64,
            changes.revision.0 - self.seen.0,
            "each revision creates one"
        );
        self.read += changes.created.len();
        self.seen = changes.revision;
        Ok(())
    }
}
