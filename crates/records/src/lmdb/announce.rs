//! Telling those who watch what was committed.
//!
//! Commits are answered in any order, by many threads, and some of them to nobody any more. So who tells does not tell of his
//! own commit, but of all that the feed has behind the last one that was told, in its order: that is the order of commits, and
//! an account that was committed to several times meanwhile is told once, with its last revision.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use restante_lmdb::Store;
use tracing::warn;

use super::feed::{position, touched};
use crate::{Announcement, Error, Position, Watch, watch::Announcer};

/// Rows of the feed that are told in one view. There are never many more: so many commits are answered at once.
const TOLD_AT_ONCE: usize = 1_024;

/// What is told, and to whom.
pub(super) struct Announcements {
    announcer: Announcer,
    /// The position up to which all is told, or was there to be seen when somebody began to watch. Nothing is noted here that
    /// can't be seen: what was handed in before it might come to be seen later.
    told: AtomicU64,
    /// Where it is read; `None` after the close. Held by who tells, so that what is later is told later.
    store: Mutex<Option<Store>>,
}

impl Announcements {
    /// Of a store whose last commit has this position.
    pub(super) fn new(store: Store, last: Position) -> Self {
        let told = AtomicU64::new(last.0);
        Self { announcer: Announcer::new(), told, store: Mutex::new(Some(store)) }
    }

    /// Lets the store go: an answer that is on its way must not keep it open, nor be the last who does.
    pub(super) fn close(&self) {
        self.store.lock().take();
    }

    /// Whoever begins to watch sees all that is there when he reads: it need not be told.
    pub(super) fn watch(&self) -> Watch {
        let store = self.store.lock();
        if !self.announcer.is_watched()
            && let Some(store) = &*store
        {
            match store.read(position) {
                Ok(seen) => drop(self.told.fetch_max(seen.0, Ordering::AcqRel)),
                Err(error) => warn!(%error, "watching begins with commits of before"),
            }
        }
        self.announcer.watch() // while the store is held, so that all that comes to be seen from here on is told
    }

    /// Sees to it that a commit is told, if it was made: views show all that was answered.
    fn tell(&self, position: Position) {
        if self.told.load(Ordering::Acquire) >= position.0 {
            return; // with others: a group of commits is told by the first who comes here
        }
        if !self.announcer.is_watched() {
            return; // who begins to watch now sees what was made until here when he reads
        }
        let store = self.store.lock();
        let Some(store) = &*store else { return };
        if self.told.load(Ordering::Acquire) >= position.0 {
            return; // by who had the lock until now
        }
        if let Err(error) = self.tell_all_behind(store) {
            warn!(%error, "commits can't be announced: it is tried again with the next");
        }
    }

    fn tell_all_behind(&self, store: &Store) -> Result<(), Error> {
        loop {
            let told = Position(self.told.load(Ordering::Acquire));
            let page = store.read(|view| touched(view, told, TOLD_AT_ONCE))?;
            for touched in &page {
                let (account, revision) = (touched.account, touched.revision);
                self.announcer.announce(Announcement { account, revision });
            }
            let Some(last) = page.last() else { return Ok(()) };
            self.told.fetch_max(last.position.0, Ordering::AcqRel);
            if page.len() < TOLD_AT_ONCE {
                return Ok(());
            }
        }
    }
}

/// Goes with the answer of a commit, and tells when it is dropped: where the commit is answered, or, if nobody waits for it
/// any more, on the thread of the store that answers.
pub(super) struct Announcing {
    pub(super) announcements: Arc<Announcements>,
    pub(super) position: Position,
}

impl Drop for Announcing {
    fn drop(&mut self) {
        self.announcements.tell(self.position);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        future::Future,
        pin::Pin,
        task::{Context, Waker},
        time::Duration,
    };

    use tokio::time::timeout;

    use super::super::{
        Engine,
        commit::commit,
        testing::{create, email, engine},
    };
    use super::*;
    use crate::{AccountId, Commit, Committed, Revision};

    type Committing = Pin<Box<dyn Future<Output = Result<Committed, Error>>>>;

    /// A commit that is handed to the thread that writes, and that nobody waits for yet.
    fn begin(engine: &Arc<Engine>, account: u32) -> Committing {
        let engine = engine.clone();
        let create = create(email(1, 100));
        let mut committing: Committing =
            Box::pin(async move { commit(&engine, AccountId(account), Commit::of([create])).await });
        assert!(committing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        committing
    }

    async fn until_at(engine: &Engine, account: u32, revision: u64) {
        while engine.states(AccountId(account)).unwrap().revision.0 < revision {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn next(watch: &mut Watch) -> Announcement {
        let announced = timeout(Duration::from_secs(60), watch.next()).await;
        announced.expect("an announcement comes").expect("the store is there").unwrap()
    }

    fn of(account: u32, revision: u64) -> Announcement {
        Announcement { account: AccountId(account), revision: Revision(revision) }
    }

    /// Answers come to many threads, in any order: who was told of revision 3 was told of 1 afterwards.
    #[tokio::test]
    async fn no_smaller_revision_is_told_after_a_larger_one() {
        let (_folder, engine) = engine();
        let mut watch = engine.announcements.watch();
        let commits = [7, 7, 8, 7].map(|account| begin(&engine, account));
        until_at(&engine, 7, 3).await;
        for committing in commits.into_iter().rev() {
            committing.await.unwrap();
        }
        let last = begin(&engine, 9).await.unwrap();
        assert_eq!(last.revision, Revision(1));
        // Some of the first may have been told before the others were there.
        let mut told = Vec::new();
        while told.last() != Some(&of(9, 1)) {
            told.push(next(&mut watch).await);
        }
        let of_seven: Vec<u64> =
            told.iter().filter(|told| told.account.0 == 7).map(|told| told.revision.0).collect();
        assert!(of_seven.is_sorted_by(|one, other| one < other) && of_seven.last() == Some(&3), "{told:?}");
        assert!(told.contains(&of(8, 1)));
    }

    /// A thread of the store tells of them: nobody else is left.
    #[tokio::test]
    async fn commits_that_nobody_waits_for_are_told() {
        let (_folder, engine) = engine();
        let mut watch = engine.announcements.watch();
        for hundred in 0..6 {
            drop((0..100).map(|n| begin(&engine, 100 * hundred + n)).collect::<Vec<_>>());
            tokio::task::yield_now().await; // a task may not hand over more than that at once
        }
        let mut told = BTreeSet::new();
        while told.len() < 600 {
            let Announcement { account, revision } = next(&mut watch).await;
            assert!(revision == Revision(1) && told.insert(account), "{account:?} {revision:?}");
        }
    }

    #[tokio::test]
    async fn while_nobody_watches_nothing_is_kept_for_later() {
        let (_folder, engine) = engine();
        for account in 0..3 {
            begin(&engine, account).await.unwrap();
        }
        let mut watch = engine.announcements.watch();
        begin(&engine, 1).await.unwrap();
        assert_eq!(next(&mut watch).await, of(1, 2));
    }

    /// Of commits that are synced together one may fail, and be answered before the others can be seen.
    #[tokio::test]
    async fn a_later_commit_that_fails_while_nobody_watches_hides_none() {
        let (_folder, engine) = engine();
        drop(Announcing { announcements: engine.announcements.clone(), position: Position(2) });
        let mut watch = engine.announcements.watch();
        begin(&engine, 5).await.unwrap();
        assert_eq!(next(&mut watch).await, of(5, 1));
    }

    /// What was refused has no place in the feed, and keeps nobody from being told.
    #[tokio::test]
    async fn a_commit_that_fails_is_not_told() {
        let (_folder, engine) = engine();
        let mut watch = engine.announcements.watch();
        engine.ledger.next_position(); // of a commit for which there was no room
        drop(Announcing { announcements: engine.announcements.clone(), position: Position(1) });
        begin(&engine, 5).await.unwrap();
        assert_eq!(next(&mut watch).await, of(5, 1));
    }
}
