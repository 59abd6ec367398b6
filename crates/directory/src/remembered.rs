//! Passwords that were recently found to be correct.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use restante_core::{NANOS_PER_SECOND, Timestamp};
use restante_records::{AccountId, RecordId, Revision};
use ring::hmac;

use crate::{DirectoryConfig, Error, Login, random, schema::Shard};

/// The most accounts that are known to have logged in since the start, to report them when their records are gone. 16
/// bytes each.
const KNOWN_MAX: usize = 1 << 20;

/// A record of a shard.
pub(crate) type RecordKey = (Shard, RecordId);

/// A keyed hash of a name and a password.
pub(crate) type Digest = [u8; 32];

/// Stores passwords as hashes with a key of this process: a later reader of its memory finds no passwords.
pub(crate) struct Remembered {
    key: hmac::Key,
    nanos: i64,
    max: usize,
    gauge: Gauge,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    logins: HashMap<Digest, Entry>,
    by_record: HashMap<RecordKey, Vec<Digest>>,
    /// All digests, the oldest first: each is kept for the same time.
    order: VecDeque<(Timestamp, Digest)>,
    /// The account of a record, and the oldest revision of it that was used for a log-in since its last change was seen.
    known: HashMap<RecordKey, (AccountId, Revision)>,
}

struct Entry {
    login: Arc<Login>,
    record: RecordKey,
    /// The revision of the record with which the password was compared.
    revision: Revision,
    since: Timestamp,
}

/// The accounts that a change of a record concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Account(AccountId),
    /// Nobody has logged in to it here.
    Nobody,
    /// There were too many accounts to know which.
    Anybody,
}

impl Remembered {
    pub(crate) fn new(config: &DirectoryConfig, gauge: Gauge) -> Result<Self, Error> {
        let key: [u8; 32] = random::bytes()?;
        let seconds = i64::try_from(config.remembered_seconds).unwrap_or(i64::MAX);
        Ok(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
            nanos: seconds.saturating_mul(NANOS_PER_SECOND),
            max: config.remembered_max.get(),
            gauge,
            inner: Mutex::default(),
        })
    }

    pub(crate) fn digest(&self, name: &str, password: &str) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&(name.len() as u64).to_be_bytes());
        context.update(name.as_bytes());
        context.update(password.as_bytes());
        context.sign().as_ref().try_into().unwrap_or_default()
    }

    pub(crate) fn get(&self, digest: &Digest, now: Timestamp) -> Option<Arc<Login>> {
        let inner = self.inner.lock();
        let entry = inner.logins.get(digest)?;
        let age = now.nanos().saturating_sub(entry.since.nanos());
        (0..self.nanos).contains(&age).then(|| entry.login.clone())
    }

    /// Remembers that a password was correct for a revision of a record. The caller then reads the revision again, and forgets
    /// the password when the record has changed meanwhile: the change may have been handled before this call.
    pub(crate) fn insert(
        &self,
        digest: Digest,
        login: Arc<Login>,
        (record, revision): (RecordKey, Revision),
        now: Timestamp,
    ) {
        let mut inner = self.inner.lock();
        if self.nanos == 0 || inner.logins.contains_key(&digest) {
            return;
        }
        while let Some((since, oldest)) = inner.order.front().copied() {
            let is_over = now.nanos().saturating_sub(since.nanos()) >= self.nanos;
            if !is_over && inner.order.len() < self.max {
                break;
            }
            inner.order.pop_front();
            // It may have been forgotten and remembered anew.
            if inner.logins.get(&oldest).is_some_and(|entry| entry.since == since) {
                inner.remove(&oldest);
            }
        }
        inner.logins.insert(digest, Entry { login, record, revision, since: now });
        inner.by_record.entry(record).or_default().push(digest);
        inner.order.push_back((now, digest));
        self.gauge.set(i64::try_from(inner.logins.len()).unwrap_or(i64::MAX));
    }

    /// Notes that somebody has logged in to an account, whose record had this revision.
    pub(crate) fn note(&self, record: RecordKey, account: AccountId, revision: Revision) {
        let mut inner = self.inner.lock();
        if inner.known.len() < KNOWN_MAX {
            let (_, oldest) = inner.known.entry(record).or_insert((account, revision));
            *oldest = revision.min(*oldest);
        }
    }

    /// Forgets the passwords that were compared with a revision of a record before `newest`, which is `None` when the record was
    /// destroyed. Returns its account, if there was a log-in with an older revision.
    pub(crate) fn forget(&self, record: RecordKey, newest: Option<Revision>) -> Known {
        let mut inner = self.inner.lock();
        let is_old = |revision: Revision| newest.is_none_or(|newest| revision < newest);
        for digest in inner.by_record.get(&record).cloned().unwrap_or_default() {
            if inner.logins.get(&digest).is_some_and(|entry| is_old(entry.revision)) {
                inner.remove(&digest);
            }
        }
        self.gauge.set(i64::try_from(inner.logins.len()).unwrap_or(i64::MAX));
        let is_full = inner.known.len() >= KNOWN_MAX;
        match (inner.known.get(&record).copied(), newest) {
            (Some((account, oldest)), Some(newest)) if is_old(oldest) => {
                inner.known.insert(record, (account, newest));
                Known::Account(account)
            }
            (Some((account, _)), None) => {
                inner.known.remove(&record);
                Known::Account(account)
            }
            (None, _) if is_full => Known::Anybody,
            _ => Known::Nobody,
        }
    }

    /// Forgets all passwords.
    pub(crate) fn forget_all(&self) {
        let mut inner = self.inner.lock();
        inner.logins.clear();
        inner.by_record.clear();
        inner.order.clear();
        self.gauge.set(0);
    }
}

impl Inner {
    fn remove(&mut self, digest: &Digest) {
        let Some(entry) = self.logins.remove(digest) else { return };
        if let Some(digests) = self.by_record.get_mut(&entry.record) {
            digests.retain(|other| other != digest);
            if digests.is_empty() {
                self.by_record.remove(&entry.record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::Role;

    fn remembered(max: usize) -> Remembered {
        let max = NonZero::new(max).unwrap();
        let config =
            DirectoryConfig { remembered_seconds: 60, remembered_max: max, ..DirectoryConfig::default() };
        Remembered::new(&config, Gauge::default()).unwrap()
    }

    fn login(account: u32) -> Arc<Login> {
        Arc::new(Login {
            account: AccountId(account),
            address: "anna@example.org".parse().unwrap(),
            role: Role::User,
            grants: Vec::new(),
            scopes: None,
            expires: None,
            credential: 0,
        })
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn record(id: u64) -> RecordKey {
        (Shard::of("x"), RecordId(id))
    }

    #[test]
    fn a_password_is_remembered_for_its_time_only() {
        let remembered = remembered(10);
        let digest = remembered.digest("anna", "secret");
        assert_ne!(digest, remembered.digest("annas", "ecret"));
        remembered.insert(digest, login(1), (record(1), Revision(3)), at(100));
        assert!(remembered.get(&digest, at(159)).is_some());
        assert!(remembered.get(&digest, at(160)).is_none());
        assert!(remembered.get(&digest, at(99)).is_none(), "a clock that was put back");
        assert!(remembered.get(&remembered.digest("anna", "other"), at(100)).is_none());
    }

    #[test]
    fn a_change_forgets_what_was_compared_before_it() {
        let remembered = remembered(10);
        let digest = remembered.digest("anna", "secret");
        let insert = |revision| remembered.insert(digest, login(7), (record(1), Revision(revision)), at(0));
        let is_there = || remembered.get(&digest, at(0)).is_some();
        insert(5);
        assert_eq!(remembered.forget(record(1), Some(Revision(5))), Known::Nobody);
        assert!(is_there(), "it was compared with what the change has made");
        assert_eq!(remembered.forget(record(2), None), Known::Nobody);
        assert!(is_there(), "another record has changed");
        remembered.forget(record(1), Some(Revision(6)));
        assert!(!is_there());
        insert(6);
        remembered.forget(record(1), None);
        assert!(!is_there());
        insert(7);
        remembered.forget_all();
        assert!(!is_there());
    }

    #[test]
    fn a_log_in_before_a_change_is_known() {
        let remembered = remembered(10);
        let account = Known::Account(AccountId(7));
        let note = |revision| remembered.note(record(1), AccountId(7), Revision(revision));
        note(3);
        note(5);
        assert_eq!(
            remembered.forget(record(1), Some(Revision(5))),
            account,
            "one has logged in with revision 3"
        );
        assert_eq!(remembered.forget(record(1), Some(Revision(5))), Known::Nobody);
        note(5);
        assert_eq!(remembered.forget(record(1), Some(Revision(6))), account);
        assert_eq!(remembered.forget(record(1), None), account);
        assert_eq!(remembered.forget(record(1), None), Known::Nobody);
    }

    #[test]
    fn the_oldest_go_first() {
        let remembered = remembered(3);
        let digests: Vec<Digest> = (0..5).map(|n| remembered.digest("anna", &n.to_string())).collect();
        for (n, digest) in digests.iter().enumerate() {
            remembered.insert(*digest, login(1), (record(n as u64), Revision(1)), at(n as i64));
        }
        let there: Vec<bool> = digests.iter().map(|digest| remembered.get(digest, at(5)).is_some()).collect();
        assert_eq!(there, [false, false, true, true, true]);
        let inner = remembered.inner.lock();
        assert_eq!((inner.logins.len(), inner.by_record.len(), inner.order.len()), (3, 3, 3));
    }
}
