//! The outcome of every message, for operators who search for one.
//!
//! [`DeliveryJournal`] stores entries in its own files, so that tracing costs the records nothing: `docs/formats/journal.md`
//! describes their format. It is written in the background: entries may be lost, but no delivery waits for one.

mod config;
mod files;
mod format;
mod metrics;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    fs::File,
    mem,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use restante_core::{Clock, Error, Timestamp};
use restante_disk::{Disk, Folder, create_folder, hold};
use restante_net::{Buckets, LogThrottle, Source};
use restante_records::{AccountId, RecordId};
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

pub use self::{config::JournalConfig, metrics::JournalMetrics};
use self::{
    files::{Batch, Files, Kind},
    format::View,
};
use crate::{Protocol, config::per_minute};

/// How long entries are collected before they are written.
const WRITE_DELAY: Duration = Duration::from_millis(100);
/// How often old entries are removed when no new one comes.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3_600);
/// The most memory of entries of each kind that wait to be written.
const PENDING_BYTES_MAX: u64 = 4 << 20;

/// A recipient of a message, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryEntry {
    /// When it happened.
    pub time: Timestamp,
    /// The protocol of the listener; `None` for mail from the queue of this server.
    pub protocol: Option<Protocol>,
    /// Whether the connection of the client was encrypted.
    pub is_tls: bool,
    /// The client; `None` on a Unix socket, and for mail from the queue.
    pub peer: Option<IpAddr>,
    /// The name in the client's greeting. For mail that was sent, the server that replied; empty if no server was reached.
    pub hello: String,
    /// The sender of the envelope; empty for `<>`.
    pub sender: String,
    /// The recipient of the envelope; empty if the message was refused before one was named.
    pub recipient: String,
    /// The account and its address, if they are known. A recipient that leads to several accounts has an entry for each. For a
    /// submitted message it is the account of its sender, also when it is sent.
    pub account: Option<(AccountId, String)>,
    /// The id in our `Received` field and in our reply; empty if the message was refused before it had one. For mail from the
    /// queue it is [`queued_id`].
    pub id: String,
    /// The Message-ID, without brackets, if the message was read.
    pub message_id: Option<String>,
    /// How many bytes of the message were received; 0 if the recipient was refused earlier.
    pub bytes: u64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a message for a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored as this email.
    Stored(RecordId),
    /// Stored as this email, which checks put into Junk.
    Junk {
        /// The email.
        email: RecordId,
        /// Why, in one line.
        reason: Cow<'static, str>,
    },
    /// Held for the operator, with the reason in one line.
    Quarantined(Cow<'static, str>),
    /// Stored earlier.
    Repeated,
    /// Queued to be sent.
    Queued,
    /// Refused with this reply.
    Refused(NotedReply),
    /// The connection was closed within the message.
    BrokenOff,
    /// Sent: another server accepted it with this reply.
    Sent(NotedReply),
    /// It could not be sent for this reason, and will be tried again.
    Postponed(NotedReply),
    /// It could not be sent for this reason, and will not be tried again.
    Failed(NotedReply),
    /// Its sender gets a report; the reply contains the report's id in the queue.
    Reported(NotedReply),
    /// An operator released it from the quarantine, and the recipient got it.
    Released {
        /// The email; `None` if it was stored earlier, and for a copy that was queued for another server.
        email: Option<RecordId>,
        /// Who released it, in one line.
        by: Cow<'static, str>,
    },
    /// An operator released it from the quarantine, but the recipient could not get it for this reason: it stays there. The text
    /// names the operator.
    NotReleased(NotedReply),
    /// It was dropped from the quarantine, or from the queue, by this operator, or from the queue by its author.
    Dropped(Cow<'static, str>),
}

impl Outcome {
    /// The reply that the outcome contains, if any.
    pub fn reply(&self) -> Option<&NotedReply> {
        match self {
            Self::Refused(reply)
            | Self::Sent(reply)
            | Self::Postponed(reply)
            | Self::Failed(reply)
            | Self::Reported(reply)
            | Self::NotReleased(reply) => Some(reply),
            Self::Stored(_)
            | Self::Junk { .. }
            | Self::Quarantined(_)
            | Self::Repeated
            | Self::Queued
            | Self::BrokenOff
            | Self::Released { .. }
            | Self::Dropped(_) => None,
        }
    }
}

/// The name of a queued message in the journal, made from its [`key`](restante_mail::queue::Source::key).
pub fn queued_id(key: &[u8; 32]) -> String {
    let start = key.first_chunk::<8>().copied().unwrap_or_default();
    format!("q{:016x}", u64::from_be_bytes(start))
}

/// A reply to a message or a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedReply {
    /// Codes from 400 to 499 ask the client to try again. 0 when there was none.
    pub code: u16,
    /// The enhanced status, as `5.1.1`.
    pub status: Cow<'static, str>,
    /// Its text. For a report: what it reports (`failed`, `delayed`, `delivered`), and its id.
    pub reason: Cow<'static, str>,
}

/// Takes entries.
pub trait Journal: Send + Sync + 'static {
    /// Notes an entry. This does not block, and its memory is bounded: an entry may be lost, the delivery that it describes goes on.
    fn note(&self, entry: DeliveryEntry);
}

/// Which entries to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// All.
    Everything,
    /// Those with this text as sender, recipient or account's address, in any case; or as Message-ID, or as id of our reply. In
    /// angle brackets it is a Message-ID only. An empty text matches nothing.
    Text(String),
    /// Those of an account.
    Account(AccountId),
}

/// A query for entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Which entries.
    pub about: About,
    /// No entries before this time.
    pub since: Timestamp,
    /// The most entries.
    pub limit: usize,
}

/// The result of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The newest first.
    pub entries: Vec<DeliveryEntry>,
    /// Whether there are more than the limit.
    pub has_more: bool,
    /// The time of the oldest entry of all.
    pub begins: Option<Timestamp>,
}

/// The journal of deliveries in files of a folder. Cloning shares it.
///
/// - An entry that was noted is found by the next [`find`](Self::find), and also after the process was killed if it was written
///   by then, which takes a tenth of a second. A power cut may lose more; a single entry is never synced on its own.
/// - Entries are kept for [`JournalConfig::days`], and removed at most a day later. All files together never exceed
///   [`JournalConfig::bytes_max`] and [`JournalConfig::entries_max`]: the oldest are removed first, in files of an eighth.
/// - Entries of messages that were stored, quarantined, sent or given up have one half of these bounds, all others the other
///   half. So neither a client that is refused often nor a remote server that accepts nothing displaces an entry of a delivered
///   message; of the others, each address of SMTP gets at most [`JournalConfig::refused_per_minute_max`] entries.
/// - A damaged file is read up to the damage.
#[derive(Clone)]
pub struct DeliveryJournal {
    shared: Arc<Shared>,
}

struct Shared {
    config: JournalConfig,
    pending: Mutex<[Batch; 2]>,
    /// Notified when something is pending.
    wake: Notify,
    files: Mutex<Files>,
    disk: Arc<dyn Disk>,
    /// Queries run one at a time, which bounds their memory.
    lookups: Semaphore,
    refused: Mutex<Buckets<Source>>,
    clock: Arc<dyn Clock>,
    metrics: JournalMetrics,
    failures: LogThrottle,
    _lock: Option<File>,
}

impl Journal for DeliveryJournal {
    fn note(&self, entry: DeliveryEntry) {
        let shared = &self.shared;
        let kind = Kind::of(&entry.outcome);
        if kind == Kind::Refused && !shared.admits_refused(&entry) {
            shared.metrics.limited.inc();
            return;
        }
        let mut pending = shared.pending.lock();
        let [stored, refused] = &mut *pending;
        let batch = if kind == Kind::Stored { stored } else { refused };
        let was_empty = batch.is_empty();
        let fits = batch.push(&entry, &shared.config.limits());
        drop(pending);
        match fits {
            true if was_empty => shared.wake.notify_one(),
            true => {}
            false => {
                shared.metrics.dropped.inc();
            }
        }
    }
}

impl DeliveryJournal {
    /// Opens the journal in a folder, which is created if it does not exist. Files are read with the first entry or query.
    ///
    /// # Errors
    /// `Conflict` if another process has it open; those of the disk.
    pub fn open(
        folder: &Path,
        config: JournalConfig,
        clock: Arc<dyn Clock>,
        metrics: JournalMetrics,
    ) -> Result<Self, Error> {
        create_folder(folder)?;
        let what = format!("the journal of deliveries in {}", folder.display());
        let lock = hold(&folder.join("LOCK"), &what, "stop that process first")?;
        Ok(Self::on(Arc::new(Folder::new(folder)), Some(lock), config, clock, metrics))
    }

    fn on(
        disk: Arc<dyn Disk>,
        lock: Option<File>,
        config: JournalConfig,
        clock: Arc<dyn Clock>,
        metrics: JournalMetrics,
    ) -> Self {
        let shared = Shared {
            pending: Mutex::default(),
            wake: Notify::new(),
            files: Mutex::new(Files::new(disk.clone(), config.limits())),
            disk,
            lookups: Semaphore::new(1),
            refused: Mutex::new(Buckets::new(per_minute(config.refused_per_minute_max))),
            config,
            clock,
            metrics,
            failures: LogThrottle::default(),
            _lock: lock,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Writes entries and removes those that are too old, for ever.
    pub async fn run(self) {
        loop {
            if timeout(EXPIRE_INTERVAL, self.shared.wake.notified()).await.is_ok() {
                sleep(WRITE_DELAY).await;
            }
            if let Err(error) = self.blocking(Shared::write).await {
                self.shared.log_failure(&error);
            }
        }
    }

    /// Writes all entries, and syncs them.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn close(&self) -> Result<(), Error> {
        self.blocking(|shared| {
            shared.write()?;
            shared.files.lock().sync()
        })
        .await
    }

    /// Queries everything that was noted before this call. It reads every file, newest first, until the limit is reached.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn find(&self, lookup: Lookup) -> Result<Found, Error> {
        let permit = self.shared.lookups.acquire().await;
        let _permit = permit.map_err(|_| Error::internal("nobody closes this semaphore"))?;
        self.blocking(move |shared| shared.find(&lookup)).await
    }

    /// Erases the entries of an account, and those that refuse mail to its address, and returns how many there were, durably.
    /// Entries that other accounts have of mail from this address stay. The caller ensures that nothing is delivered to the
    /// account any more.
    ///
    /// # Errors
    /// Those of the disk; calling it again goes on.
    pub async fn erase(&self, account: AccountId, address: &str) -> Result<u64, Error> {
        let address = address.to_lowercase();
        self.blocking(move |shared| {
            if let Err(error) = shared.write() {
                shared.log_failure(&error); // its entries are dropped, so none of the account is written later
            }
            let is_of_account = |view: &View<'_>| match view.account {
                Some(known) => known == account,
                None => is_same(view.recipient, &address),
            };
            let mut files = shared.files.lock();
            let erased = files.erase(&is_of_account);
            shared.metrics.bytes.set(i64::try_from(files.bytes()).unwrap_or(i64::MAX));
            erased
        })
        .await
    }

    /// Runs work on files on a thread where it keeps no connection waiting.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || work(&shared)).await;
        done.map_err(|error| Error::internal(format!("a task of the journal of deliveries ended: {error}")))?
    }
}

impl Shared {
    /// Whether an address of SMTP may have one more entry of a message that was not stored. Clients of LMTP are mail servers that
    /// this one trusts.
    fn admits_refused(&self, entry: &DeliveryEntry) -> bool {
        let peer = entry.peer.filter(|_| entry.protocol != Some(Protocol::Lmtp));
        let source = peer.and_then(|ip| Source::of(SocketAddr::new(ip, 0)));
        source.is_none_or(|source| self.refused.lock().take(source, Instant::now()))
    }

    /// Writes what is pending and removes what is too old. What can't be written is dropped.
    fn write(&self) -> Result<(), Error> {
        // Files first: batches are written in the order in which they were taken.
        let mut files = self.files.lock();
        let batches = mem::take(&mut *self.pending.lock());
        let mut result = files.expire(self.expired_before());
        for (kind, batch) in Kind::ALL.into_iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
            let appended = files.append(kind, &batch);
            let counter = if appended.is_ok() { &self.metrics.noted } else { &self.metrics.dropped };
            counter.inc_by(batch.entries);
            result = result.and(appended);
        }
        self.metrics.bytes.set(i64::try_from(files.bytes()).unwrap_or(i64::MAX));
        result
    }

    fn expired_before(&self) -> Timestamp {
        let days = i64::from(self.config.days);
        self.clock.now().plus_seconds(days.saturating_mul(-86_400))
    }

    fn find(&self, lookup: &Lookup) -> Result<Found, Error> {
        if let Err(error) = self.write() {
            self.log_failure(&error); // what was written earlier is found
        }
        let kept_since = self.expired_before();
        let since = lookup.since.max(kept_since);
        // Files are read without the lock. One that is removed meanwhile was too old.
        let lists = self.files.lock().segments()?;
        let matcher = Matcher::of(&lookup.about);
        let mut found = Found::default();
        for segments in lists {
            let oldest = segments.iter().map(|segment| segment.oldest.max(kept_since)).min();
            found.begins = found.begins.into_iter().chain(oldest).min();
            let wanted = lookup.limit.saturating_add(1);
            let entries =
                files::newest(&*self.disk, &segments, since, wanted, &|view| matcher.matches(view))?;
            found.entries.extend(entries);
        }
        found.entries.sort_by_key(|entry| std::cmp::Reverse(entry.time));
        found.has_more = found.entries.len() > lookup.limit;
        found.entries.truncate(lookup.limit);
        Ok(found)
    }

    /// Logs at most one line a minute: everything fails while a disk is full.
    fn log_failure(&self, error: &Error) {
        match self.failures.count() {
            Some(times) => {
                warn!(%error, times, "the journal of deliveries can't be written: entries are lost")
            }
            None => debug!(%error, "the journal of deliveries can't be written"),
        }
    }
}

/// A query, prepared for matching.
enum Matcher {
    Everything,
    /// The text in lower case, and as it was typed.
    Text(String, String),
    Nothing,
    MessageId(String),
    Account(AccountId),
}

impl Matcher {
    fn of(about: &About) -> Self {
        match about {
            About::Everything => Self::Everything,
            About::Account(account) => Self::Account(*account),
            About::Text(text) if text.trim().is_empty() || text == "<>" => Self::Nothing, // unknown texts are stored as empty
            About::Text(text) => match text.strip_prefix('<').and_then(|text| text.strip_suffix('>')) {
                Some(id) => Self::MessageId(format::cut(id).to_owned()),
                None => Self::Text(format::cut(text).to_lowercase(), format::cut(text).to_owned()),
            },
        }
    }

    fn matches(&self, view: &View<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Nothing => false,
            Self::Account(account) => view.account == Some(*account),
            Self::MessageId(id) => view.message_id == id,
            Self::Text(lower, text) => {
                view.id == text
                    || view.message_id == text
                    || [view.recipient, view.sender, view.address].iter().any(|known| is_same(known, lower))
            }
        }
    }
}

/// Whether an address is this one in lower case. The local part is compared without case, too: operators type what users say.
fn is_same(address: &str, lower: &str) -> bool {
    if address.is_ascii() { address.eq_ignore_ascii_case(lower) } else { address.to_lowercase() == lower }
}
