//! The queue of outgoing mail: a record for each recipient, in reserved accounts.
//!
//! An added message is durable, and each recipient is tried until it has ended: delivered, failed or dropped. A sender reads which
//! recipients are due, claims them by a conditional commit with a lease, tries them, and records the outcome; when a lease ends
//! without an outcome, the recipient is tried again. Several servers may send from one store. The queue keeps no recipients in
//! memory.

mod account;
mod add;
mod claim;
mod edit;
mod gate;
mod item;
mod joint;
mod list;
mod operate;
mod stored;
#[cfg(test)]
mod tests;
mod transmit;
mod view;

use std::sync::Arc;

use restante_core::{Clock, Error};
use restante_records::{Cursor, Records, Watch};

pub use account::{QUEUE_ACCOUNTS, QueueAccount};
pub use claim::{Claimed, Ending, Lease, Outcome};
pub use gate::Held;
pub use item::{NewMessage, NewRecipient, Notify, QueuedId, Reply, Return, Source, SourceKind, Transmission};
pub use list::{DomainCount, DueItem, DuePage, LIST_MAX, ListCursor, ListFilter, ListPage, Totals};
pub use operate::Selection;
pub use transmit::{Attempted, Outgoing, Recipient, message_id};
pub use view::{LastAttempt, QueuedMessage, QueuedRecipient, QueuedState};

use edit::Editor;
use operate::Action;
pub(crate) use stored::{number, property_text};

/// The queue. Cloning shares it. All handles of one process on one store should be clones of one, so that their edits don't conflict.
#[derive(Clone)]
pub struct Queue {
    editor: Arc<Editor>,
    /// How often the store was restored from a backup.
    restores: u64,
}

impl Queue {
    /// The queue in these records, which were opened with [`crate::kinds`] in their schema.
    pub fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        Self { editor: Arc::new(Editor::new(records, clock)), restores: 0 }
    }

    /// The same for a store that was restored from backups so many times, see [`restante_records::Upkeep::restores`]: nothing is
    /// sent until an operator releases the queue after the last restore.
    #[must_use]
    pub fn restored(mut self, restores: u64) -> Self {
        self.restores = restores;
        self
    }

    /// Adds a message, and returns the ids of its recipients, in their order, when they are durable. All are added in one commit
    /// (in several beyond 2,048 recipients or 1 MiB). A recipient that is already there with the same [`Source::key`] is not added
    /// again. For a submission of JMAP, a forward or a vacation reply this holds even if it has ended: those are remembered for 5
    /// days.
    ///
    /// The blob must have been put or touched for this.
    ///
    /// # Errors
    /// `Invalid` without recipients; those of a commit: repeating is safe.
    pub async fn add(&self, message: NewMessage) -> Result<Vec<QueuedId>, Error> {
        self.editor.add(&message).await
    }

    /// A page of the recipients of an account that are due between two times, both included, in seconds since 1970. At most 4,096 a page.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn due(
        &self,
        account: QueueAccount,
        times: (u64, u64),
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<DuePage, Error> {
        self.editor.due(account, times, after, limit).await
    }

    /// The recipients of one domain, as [`DueItem::domain`] names it, that are due in an account until a time, the oldest first.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn due_of(
        &self,
        account: QueueAccount,
        domain: &str,
        until: u64,
        limit: usize,
    ) -> Result<Vec<QueuedId>, Error> {
        self.editor.due_of(account, domain, until, limit).await
    }

    /// When the next recipient of an account becomes due after a time, in seconds since 1970.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn next_due(&self, account: QueueAccount, after: Option<u64>) -> Result<Option<u64>, Error> {
        self.editor.next_due(account, after).await
    }

    /// Claims those of some recipients of one account that are due now, until a time in seconds since 1970. If several senders
    /// claim a recipient at once, one of them gets it. When the lease has ended, the recipient is due again. The expiry of one that
    /// is claimed more than an hour late is moved by that time.
    ///
    /// # Errors
    /// `Invalid` for recipients of several accounts; those of a commit.
    pub async fn claim(&self, ids: &[QueuedId], lease_until: u64) -> Result<Vec<Claimed>, Error> {
        self.editor.claim(ids, lease_until).await
    }

    /// Extends those of some leases of one account that end before a time. Returns the leases whose recipients may still be tried:
    /// no other sender has claimed them, and no operator has dropped or held them. Commits nothing when no lease ends so soon.
    ///
    /// # Errors
    /// As [`Queue::claim`].
    pub async fn renew(&self, leases: &[Lease], before: u64, until: u64) -> Result<Vec<Lease>, Error> {
        self.editor.renew(leases, before, until).await
    }

    /// Records the outcomes for recipients of one account, and adds the reports about them, in one commit; returns how many endings
    /// were recorded. A recipient whose lease is no longer the caller's is left out, unless it was delivered.
    ///
    /// # Errors
    /// As [`Queue::claim`].
    pub async fn end(&self, outcomes: &[Outcome]) -> Result<usize, Error> {
        self.editor.end(outcomes).await
    }

    /// A recipient; `None` when it has left the queue.
    ///
    /// # Errors
    /// Those of a get; `Corrupt`.
    pub async fn get(&self, id: QueuedId) -> Result<Option<QueuedRecipient>, Error> {
        self.editor.find(id).await
    }

    /// A page of the recipients that match, at most [`LIST_MAX`], in each account by time.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn list(
        &self,
        filter: &ListFilter,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<ListPage, Error> {
        self.editor.list(filter, after, limit).await
    }

    /// The recipients by domain, the domain with the most first. It walks the whole queue, so it is meant for operators. At most
    /// 20,000 domains are counted separately.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn domains(&self) -> Result<Vec<DomainCount>, Error> {
        self.editor.domains().await
    }

    /// How many recipients there are. It walks the whole queue.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn totals(&self) -> Result<Totals, Error> {
        self.editor.totals().await
    }

    /// Holds recipients: they are not tried until they are released. An attempt that is under way is finished. Returns how many were held.
    ///
    /// # Errors
    /// Those of a commit; those that were held before stay held.
    pub async fn hold(&self, selection: &Selection, why: &str) -> Result<u64, Error> {
        self.editor.operate(selection, &Action::Hold { why: why.to_owned() }).await
    }

    /// Releases recipients that are held. The expiry of one that was due more than an hour ago is moved by that time. Returns how
    /// many were released.
    ///
    /// # Errors
    /// As [`Queue::hold`].
    pub async fn release(&self, selection: &Selection) -> Result<u64, Error> {
        self.editor.operate(selection, &Action::Release).await
    }

    /// Makes recipients due now that wait for a later time. Those that their author has scheduled for later
    /// ([`QueuedRecipient::is_scheduled`]) are included only when they are named by their ids. Returns how many were made due.
    ///
    /// # Errors
    /// As [`Queue::hold`].
    pub async fn retry(&self, selection: &Selection) -> Result<u64, Error> {
        self.editor
            .operate(selection, &Action::Retry { is_named: matches!(selection, Selection::Ids(_)) })
            .await
    }

    /// Drops recipients: nothing more is sent to them, and nothing is reported. Returns how many were dropped.
    ///
    /// # Errors
    /// As [`Queue::hold`].
    pub async fn drop_all(&self, selection: &Selection) -> Result<u64, Error> {
        self.editor.operate(selection, &Action::Drop).await
    }

    /// Drops these recipients; returns those that were in the queue until then.
    ///
    /// # Errors
    /// As [`Queue::hold`].
    pub async fn drop_ids(&self, ids: &[QueuedId]) -> Result<Vec<QueuedId>, Error> {
        self.editor.operate_on_ids(ids, &Action::Drop).await
    }

    /// Forgets recipients that have ended and were remembered long enough, some of each account; returns whether there are more.
    ///
    /// # Errors
    /// The first one of a commit; the other accounts are cleared nevertheless.
    pub async fn forget(&self) -> Result<bool, Error> {
        self.editor.forget().await
    }

    /// Whether everything was held when a clone of this queue last read, held or released it.
    pub fn was_held(&self) -> bool {
        self.editor.known_gate.lock().is_held
    }

    /// Whether everything is held, and why; `None` when mail is sent.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn gate(&self) -> Result<Option<Held>, Error> {
        self.editor.gate(self.restores).await
    }

    /// Holds everything: once this returns, senders on clones of this queue begin no attempt. Returns why it is held: the reason
    /// that was in force already, if there was one.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn hold_all(&self, why: &str) -> Result<Option<Held>, Error> {
        self.editor.set_gate(Some(why), None).await
    }

    /// Lets mail be sent again, also after a restore. Recipients that are held individually stay held.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn release_all(&self) -> Result<(), Error> {
        self.editor.set_gate(None, Some(self.restores)).await.map(drop)
    }

    /// Announcements of commits, of all accounts of the store: those of the queue are [`QueueAccount::of_account`].
    pub fn changes(&self) -> Watch {
        self.editor.records.watch()
    }

    /// Now, in seconds since 1970.
    pub fn now(&self) -> u64 {
        self.editor.now()
    }
}
