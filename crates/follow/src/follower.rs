use std::{
    collections::BTreeMap,
    future::{Future, pending, ready},
    sync::Arc,
    time::Duration,
};

use restante_core::{Clock, ErrorKind, NANOS_PER_SECOND, Timestamp};
use restante_records::{
    AccountId, CHANGES_MAX, Changes, Checkpoint, Error, FOLLOWER_NAME_BYTES_MAX, Feed, FeedRequest, Opened,
    Position, Records, Revision, Touched, Watch,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::{Handler, HandlerError, Metrics, metrics::Counts, stop::Stop};

/// Accounts that are read from the feed at once. It bounds what is held in memory, and what one save writes.
const WINDOW_ACCOUNTS: usize = 256;
/// Accounts that wait for another attempt after a failure while others go on. When this many fail, the cause is not the
/// accounts: the rest waits too.
const BACKOFF_MAX: usize = 16;
/// Pages of an account that are handled in one round: usually as many batches. An account that has more, because many
/// changes were committed or because they are committed faster than the handler works, is lagging and continues in the
/// next round.
const ROUND_PAGES: usize = 16;
/// The most lagging accounts. When this many lag, the first further account that needs more than one round waits, with all
/// accounts after it in the feed, until one of these has caught up.
const LAGGING_MAX: usize = 64;
/// The most accounts for which [`FeedRequest::began`] is kept: all that have not caught up, and some that have.
const BEGAN_MAX: usize = 2 * (BACKOFF_MAX + LAGGING_MAX);
/// How long to wait after a first failure. It doubles with each further one.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest wait after failures. Attempts never end: if a follower gave up, somebody would have to notice it.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// The most announcements that are received together: as many as wait for a watcher.
const ANNOUNCEMENTS_MAX: usize = 1_024;

/// The name of a follower, and how it works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Its checkpoint is saved under this name. Two followers of one name at once would each undo what the other saved.
    pub name: &'static str,
    /// The most changes that are handled before they are saved, from 1 to [`CHANGES_MAX`]; more only when a single
    /// revision has more. After a crash this many are repeated. Large batches cost fewer saves, each of which is a
    /// commit.
    pub batch: usize,
    /// How often the feed is read without an announcement, as a safety net.
    pub poll: Duration,
    /// How long a follower that has caught up waits after a commit was announced, so that it handles many commits together. Each read
    /// of the feed costs some reads and a save. Zero for a follower whose result somebody waits for.
    pub gather: Duration,
    /// How long a call of the handler may take. A longer call is given up and counts as failed, so that a handler that
    /// hangs doesn't delay other accounts and the stop for ever.
    pub handler_timeout: Duration,
}

impl Settings {
    /// The defaults for a name.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            batch: 256,
            poll: Duration::from_secs(10),
            gather: Duration::ZERO,
            handler_timeout: Duration::from_secs(300),
        }
    }
}

/// Passes the changes of all accounts to a handler, each at least once, those of one account in order.
pub struct Follower<H> {
    settings: Settings,
    records: Arc<dyn Records>,
    feed: Arc<dyn Feed>,
    handler: H,
    clock: Arc<dyn Clock>,
    counts: Counts,
    progress: Progress,
}

/// The progress of a follower.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the checkpoint was read.
    is_loaded: bool,
    /// The position that was saved.
    saved: Position,
    /// Every account whose last commit is at or before this position is followed to its end, or is in `backoff` or `lagging`.
    reached: Position,
    /// What is handled and not saved yet.
    unsaved: BTreeMap<AccountId, Revision>,
    /// The number of these changes.
    unsaved_changes: usize,
    /// Accounts that could not be followed.
    backoff: BTreeMap<AccountId, Backoff>,
    /// Accounts that have more changes than are handled in one round.
    lagging: BTreeMap<AccountId, Waiting>,
    /// For accounts that were begun from zero and have not caught up, [`FeedRequest::began`].
    began: BTreeMap<AccountId, Revision>,
}

/// An account from the feed that is not followed to its end.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Its last known commit.
    touched: Touched,
    /// A position before that commit and after those of the accounts that are done. The saved position stays there.
    before: Position,
    /// The time of the first commit with which the account appeared in the feed.
    since: Timestamp,
}

/// An account that could not be followed, and waits for another attempt.
#[derive(Debug)]
struct Backoff {
    waiting: Waiting,
    attempts: u32,
    due: Instant,
}

impl Progress {
    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.backoff.values().map(|backoff| &backoff.waiting).chain(self.lagging.values())
    }

    /// The position that may be saved: a follower that starts from it misses nothing.
    fn position(&self) -> Position {
        let before = self.waiting().map(|waiting| waiting.before).min();
        before.map_or(self.reached, |before| before.min(self.reached))
    }

    /// The entry of an account from the feed that can't be followed to its end now.
    fn met(&self, touched: Touched) -> Waiting {
        let known = self.backoff.get(&touched.account).map(|backoff| &backoff.waiting);
        let known = known.or_else(|| self.lagging.get(&touched.account));
        let since = known.map_or(touched.committed_at, |waiting| waiting.since);
        Waiting { touched, before: self.reached, since }
    }
}

/// Why an account was not followed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Read(Error),
    #[error("{0}")]
    Save(Error),
    #[error("{0}")]
    Handle(HandlerError),
}

/// How a walk through an account ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    /// All of it is handled, or it waits for another attempt.
    Done,
    /// The round is over, and there is more.
    Lagging,
    /// The follower was asked to stop.
    Stopped,
}

impl<H: Handler> Follower<H> {
    /// A follower of a record store. It does nothing until [`Follower::run`]. Its lag is measured with `clock`.
    ///
    /// # Errors
    /// `Invalid` when the name is empty or too long, or the batch is out of its bounds.
    pub fn new(
        settings: Settings,
        opened: &Opened,
        handler: H,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let name = settings.name;
        if name.is_empty() || name.len() > FOLLOWER_NAME_BYTES_MAX {
            let what = format!("follower name '{name}' must have 1 to {FOLLOWER_NAME_BYTES_MAX} bytes");
            return Err(Error::invalid(what));
        }
        if settings.batch == 0 || settings.batch > CHANGES_MAX {
            let what = format!("batch of follower {name} must be from 1 to {CHANGES_MAX}");
            return Err(Error::invalid(what));
        }
        Ok(Self {
            settings,
            records: opened.records.clone(),
            feed: opened.feed.clone(),
            handler,
            clock,
            counts: Counts::new(metrics, name),
            progress: Progress::default(),
        })
    }

    /// Removes the checkpoint: when the follower runs, it begins each account from zero.
    ///
    /// # Errors
    /// Those of [`Feed::forget`]. Then some accounts would continue where they were: try again.
    pub async fn rebuild(&mut self) -> Result<(), Error> {
        self.feed.forget(self.settings.name).await?;
        self.progress = Progress::default();
        Ok(())
    }

    /// Follows until `stop` is ready. Then it finishes and saves the current page.
    ///
    /// Errors of the store and of the handler are counted and tried again, after waits from 100 ms up to a minute.
    ///
    /// # Errors
    /// When the last save failed: what was handled since the save before is repeated.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let follower = self.settings.name;
        let mut stop = Stop::new(stop);
        let mut watch = Some(self.records.watch()); // before the first read, so that no commit is missed
        let mut failures = 0;
        while !stop.is_requested().await {
            match self.catch_up(&mut stop).await {
                Ok(()) => {
                    if failures > 0 {
                        info!(follower, "the follower continues");
                    }
                    failures = 0;
                    self.wait_for_work(&mut watch, &mut stop).await;
                }
                // The store was closed, or the series of writes has ended: the one that requested the stop logs the reason.
                Err(error) if stop.is_requested().await => {
                    debug!(follower, %error, "the follower stops");
                }
                Err(error) => {
                    failures += 1;
                    self.counts.records_errors.inc();
                    warn!(follower, failures, %error, "the follower can't continue and tries again");
                    if self.progress.is_loaded {
                        let _ = self.measure_lag().await; // the store's error is logged already
                    }
                    tokio::select! {
                        () = stop.requested() => {}
                        () = sleep(retry_delay(failures)) => {}
                    }
                }
            }
        }
        self.save().await
    }

    /// Follows everything that is committed now. When commits are faster than the handler, it does not return before the stop.
    async fn catch_up(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        self.load().await?;
        self.save().await?; // what an earlier attempt could not save
        loop {
            // In each iteration: with steady commits there is always a next window.
            self.follow_backoff(stop).await?;
            self.follow_lagging(stop).await?;
            if self.progress.backoff.len() >= BACKOFF_MAX || stop.is_requested().await {
                break;
            }
            let window = self.feed.touched(self.progress.reached, WINDOW_ACCOUNTS).await?;
            if window.is_empty() && self.progress.lagging.is_empty() {
                break;
            }
            self.follow_window(&window, stop).await?;
            self.save().await?;
            if self.may_gather(&window) {
                break;
            }
        }
        self.save().await?;
        self.measure_lag().await
    }

    /// Whether to gather commits before the next read: the window contained all there were.
    fn may_gather(&self, window: &[Touched]) -> bool {
        let is_whole = window.len() < WINDOW_ACCOUNTS && self.progress.lagging.is_empty();
        is_whole && !self.settings.gather.is_zero()
    }

    async fn load(&mut self) -> Result<(), Error> {
        if self.progress.is_loaded {
            return Ok(());
        }
        let checkpoint = self.feed.checkpoint(self.settings.name, &[]).await?;
        self.progress.saved = checkpoint.position;
        self.progress.reached = checkpoint.position;
        self.progress.is_loaded = true;
        self.measure_lag().await
    }

    /// Tries the accounts again whose backoff is over.
    async fn follow_backoff(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        let now = Instant::now();
        let due = self.progress.backoff.values().filter(|backoff| backoff.due <= now);
        let due: Vec<Waiting> = due.map(|backoff| backoff.waiting).collect();
        let seen = self.seen(due.iter().map(|waiting| waiting.touched.account)).await?;
        for waiting in due {
            let since = seen.get(&waiting.touched.account).copied().unwrap_or_default();
            match self.follow_account(waiting, since, stop).await? {
                Walked::Done => {}
                Walked::Lagging => self.end_backoff(waiting),
                Walked::Stopped => break,
            }
        }
        Ok(())
    }

    /// The account can be followed again and has more changes: it becomes lagging, if the limit permits another one.
    fn end_backoff(&mut self, waiting: Waiting) {
        let account = waiting.touched.account;
        if self.progress.lagging.len() < LAGGING_MAX {
            self.progress.backoff.remove(&account);
            self.progress.lagging.insert(account, waiting);
        } else if let Some(backoff) = self.progress.backoff.get_mut(&account) {
            (backoff.attempts, backoff.due) = (0, Instant::now());
        }
    }

    /// Handles a round of each lagging account, unless so many fail that the cause is not the accounts.
    async fn follow_lagging(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        let lagging: Vec<Waiting> = self.progress.lagging.values().copied().collect();
        let seen = self.seen(lagging.iter().map(|waiting| waiting.touched.account)).await?;
        for waiting in lagging {
            let account = waiting.touched.account;
            if self.progress.backoff.len() >= BACKOFF_MAX {
                break; // a handler that hangs would hang once per lagging account
            }
            let since = seen.get(&account).copied().unwrap_or_default();
            match self.follow_account(waiting, since, stop).await? {
                Walked::Done => drop(self.progress.lagging.remove(&account)),
                Walked::Lagging => {}
                Walked::Stopped => break,
            }
        }
        Ok(())
    }

    /// Follows accounts in the order of their last commits, until too many fail or lag.
    async fn follow_window(
        &mut self,
        window: &[Touched],
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        let seen = self.seen(window.iter().map(|touched| touched.account)).await?;
        for touched in window.iter().copied() {
            let account = touched.account;
            if self.progress.backoff.len() >= BACKOFF_MAX {
                break;
            }
            let met = self.progress.met(touched);
            if let Some(lagging) = self.progress.lagging.get_mut(&account) {
                *lagging = met; // it was committed to again, and has its rounds anyway
            } else if !self.progress.backoff.contains_key(&account) {
                let since = seen.get(&account).copied().unwrap_or_default();
                let walked = match since >= touched.revision {
                    true => Walked::Done,
                    false => self.follow_account(met, since, stop).await?,
                };
                match walked {
                    Walked::Done => {}
                    Walked::Lagging if self.progress.lagging.len() < LAGGING_MAX => {
                        self.progress.lagging.insert(account, met);
                    }
                    Walked::Lagging | Walked::Stopped => break,
                }
            }
            self.progress.reached = touched.position;
        }
        Ok(())
    }

    /// The revision up to which each of these accounts is handled, saved or not.
    async fn seen(
        &self,
        accounts: impl Iterator<Item = AccountId>,
    ) -> Result<BTreeMap<AccountId, Revision>, Error> {
        let accounts: Vec<AccountId> = accounts.collect();
        if accounts.is_empty() {
            return Ok(BTreeMap::new());
        }
        let checkpoint = self.feed.checkpoint(self.settings.name, &accounts).await?;
        let mut seen: BTreeMap<AccountId, Revision> = checkpoint.accounts.into_iter().collect();
        for account in accounts {
            if let Some(unsaved) = self.progress.unsaved.get(&account) {
                seen.insert(account, *unsaved);
            }
        }
        Ok(seen)
    }

    /// Follows an account for a round, or notes that it failed. An error of the store as a whole is returned.
    async fn follow_account(
        &mut self,
        waiting: Waiting,
        since: Revision,
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<Walked, Error> {
        let account = waiting.touched.account;
        let failure = match self.walk(account, since, stop).await {
            Ok(walked @ (Walked::Stopped | Walked::Lagging)) => return Ok(walked),
            Ok(Walked::Done) => {
                self.progress.backoff.remove(&account);
                self.progress.began.remove(&account);
                return Ok(Walked::Done);
            }
            Err(Failure::Save(error)) => return Err(error),
            Err(Failure::Read(error)) if error.is_transient() => return Err(error),
            Err(_) if stop.is_requested().await => return Ok(Walked::Stopped), // it fails because of the stop, or is repeated
            Err(failure) => failure,
        };
        self.progress.lagging.remove(&account);
        self.back_off(waiting, &failure);
        Ok(Walked::Done)
    }

    /// Handles the changes of an account since a revision page by page, for one round.
    async fn walk(
        &mut self,
        account: AccountId,
        mut since: Revision,
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<Walked, Failure> {
        if stop.is_requested().await {
            return Ok(Walked::Stopped);
        }
        let mut began = self.progress.began.get(&account).copied().unwrap_or_default();
        if since == Revision(0) {
            began = self.reset(account).await?;
        }
        for _ in 0..ROUND_PAGES {
            if stop.is_requested().await {
                return Ok(Walked::Stopped);
            }
            let limit = self.settings.batch - self.progress.unsaved_changes; // a full batch is saved at once
            let request = FeedRequest { since, began, limit };
            let page = match self.feed.follow(account, &request).await {
                Ok(page) => page,
                Err(error) if error.kind() == ErrorKind::NotFound && since > Revision(0) => {
                    (since, began) = (Revision(0), self.reset(account).await?);
                    continue;
                }
                Err(error) => return Err(Failure::Read(error)),
            };
            if page.has_more && page.revision <= since {
                let what = format!(
                    "the changes of account {} since {} have a page that ends where it begins",
                    account.0, since.0
                );
                return Err(Failure::Read(Error::internal(what)));
            }
            self.handle(account, &page).await?;
            since = page.revision;
            if !page.has_more {
                return Ok(Walked::Done);
            }
        }
        Ok(Walked::Lagging)
    }

    /// Lets the handler drop an account, and returns the account's revision at that moment.
    async fn reset(&mut self, account: AccountId) -> Result<Revision, Failure> {
        in_time(self.settings.handler_timeout, self.handler.reset(account)).await?;
        let states = self.records.states(account).await.map_err(Failure::Read)?;
        self.counts.resets.inc();
        debug!(
            follower = self.settings.name,
            account = account.0,
            "the follower begins an account from zero"
        );
        self.progress.unsaved.insert(account, Revision(0));
        if self.progress.began.len() >= BEGAN_MAX {
            self.progress.began.clear(); // at worst those accounts begin once more
        }
        self.progress.began.insert(account, states.revision);
        Ok(states.revision)
    }

    async fn handle(&mut self, account: AccountId, page: &Changes) -> Result<(), Failure> {
        let changes = page.created.len() + page.updated.len() + page.destroyed.len();
        let is_too_much = self.progress.unsaved_changes + changes > self.settings.batch; // a single revision is never split
        if is_too_much && self.progress.unsaved_changes > 0 {
            self.save().await.map_err(Failure::Save)?;
        }
        if changes > 0 {
            in_time(self.settings.handler_timeout, self.handler.handle(account, page)).await?;
        }
        self.counts.changes.inc_by(changes as u64);
        self.progress.unsaved.insert(account, page.revision);
        self.progress.unsaved_changes += changes;
        if self.progress.unsaved_changes >= self.settings.batch {
            self.save().await.map_err(Failure::Save)?;
        }
        Ok(())
    }

    fn back_off(&mut self, waiting: Waiting, failure: &Failure) {
        let is_handlers = matches!(failure, Failure::Handle(_));
        let errors = if is_handlers { &self.counts.handler_errors } else { &self.counts.records_errors };
        errors.inc();
        let (account, now) = (waiting.touched.account, Instant::now());
        let backoff =
            self.progress.backoff.entry(account).or_insert(Backoff { waiting, attempts: 0, due: now });
        backoff.attempts += 1;
        backoff.due = now + retry_delay(backoff.attempts);
        let (follower, attempts) = (self.settings.name, backoff.attempts);
        warn!(follower, account = account.0, attempts, error = %failure, "an account can't be followed and waits");
    }

    /// Saves what was handled.
    async fn save(&mut self) -> Result<(), Error> {
        let position = self.progress.position();
        if position == self.progress.saved && self.progress.unsaved.is_empty() {
            return Ok(());
        }
        let accounts =
            self.progress.unsaved.iter().map(|(account, revision)| (*account, *revision)).collect();
        self.feed.save(self.settings.name, &Checkpoint { position, accounts }).await?;
        self.progress.saved = position;
        self.progress.unsaved.clear();
        self.progress.unsaved_changes = 0;
        self.measure_lag().await
    }

    /// Measures the age of the oldest commit that is not handled and saved, and how many accounts wait.
    async fn measure_lag(&self) -> Result<(), Error> {
        self.counts.backoff.set(self.progress.backoff.len() as i64);
        self.counts.lagging.set(self.progress.lagging.len() as i64);
        let next = self.feed.touched(self.progress.saved, 1).await?;
        let of_feed = next.first().map(|touched| touched.committed_at);
        let oldest = self.progress.waiting().map(|waiting| waiting.since).chain(of_feed).min();
        let age_nanos = oldest.map_or(0, |oldest| self.clock.now().nanos().saturating_sub(oldest.nanos()));
        self.counts.lag.set(age_nanos.max(0) as f64 / NANOS_PER_SECOND as f64);
        Ok(())
    }

    /// Returns when there may be something to do.
    async fn wait_for_work(&self, watch: &mut Option<Watch>, stop: &mut Stop<impl Future<Output = ()>>) {
        let mut next_look = Instant::now() + self.settings.poll;
        for backoff in self.progress.backoff.values() {
            next_look = next_look.min(backoff.due);
        }
        tokio::select! {
            () = stop.requested() => {}
            () = announced(watch, self.settings.gather) => {}
            () = sleep_until(next_look) => {}
        }
    }
}

/// The handler's result, or an error if it took too long.
async fn in_time(
    limit: Duration,
    call: impl Future<Output = Result<(), HandlerError>>,
) -> Result<(), Failure> {
    let answer = timeout(limit, call).await;
    let answer = answer.unwrap_or_else(|_| Err(HandlerError::new(format!("no answer within {limit:?}"))));
    answer.map_err(Failure::Handle)
}

/// Returns this long after a commit was announced, or announcements were left out.
async fn announced(watch: &mut Option<Watch>, gather: Duration) {
    let Some(open) = watch else { return pending().await };
    if open.next().await.is_none() {
        *watch = None; // the store is gone: nothing will be announced any more
        return;
    }
    if !gather.is_zero() {
        sleep(gather).await;
    }
    // One read finds everything that was committed until now, so it answers all announcements until now.
    for _ in 1..ANNOUNCEMENTS_MAX {
        let is_one_waiting = tokio::select! {
            biased;
            announcement = open.next() => announcement.is_some(),
            () = ready(()) => false,
        };
        if !is_one_waiting {
            break;
        }
    }
}

fn retry_delay(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (RETRY_DELAY_MIN * (1 << doublings)).min(RETRY_DELAY_MAX)
}
