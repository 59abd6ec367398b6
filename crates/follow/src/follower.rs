use std::{
    collections::BTreeMap,
    future::{Future, pending, ready},
    sync::Arc,
    time::Duration,
};

use restante_core::ErrorKind;
use restante_records::{
    AccountId, CHANGES_MAX, Changes, Checkpoint, Error, FOLLOWER_NAME_BYTES_MAX, Feed, Onward, Opened,
    Position, Records, Revision, Touched, Watch,
};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use crate::{Handler, HandlerError, Metrics, metrics::Counts, stop::Stop};

/// Accounts that are read from the feed at once. It bounds what is held in memory, and what one save writes.
const WINDOW_ACCOUNTS: usize = 256;
/// Accounts that wait for another attempt while others go on. When so many fail it is not the accounts: the rest waits too.
const ASIDE_MAX: usize = 16;
/// How long to wait after a first failure. It doubles with each further one.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest wait after failures. Attempts don't end: a follower that gives up would have to be noticed by somebody.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// How many announcements are taken together at most: as many as wait for a watcher.
const ANNOUNCEMENTS_MAX: usize = 1_024;

/// What a follower is called, and how it works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Under this name its checkpoint is kept. Two followers of one name at once would each undo what the other saved.
    pub name: &'static str,
    /// The most changes that are handed on before they are saved, from 1 to [`CHANGES_MAX`]; more only when a single
    /// revision has more. So many come again after a crash. Large ones cost fewer saves, each of which is a commit.
    pub batch: usize,
    /// How often the feed is read without an announcement, as a safety net.
    pub poll: Duration,
    /// How long a call of the handler may take. One that takes longer is given up and counts as failed, so that a handler
    /// that hangs holds up neither the other accounts nor the end for good.
    pub handler_timeout: Duration,
}

impl Settings {
    /// The defaults for a name.
    pub fn new(name: &'static str) -> Self {
        Self { name, batch: 256, poll: Duration::from_secs(10), handler_timeout: Duration::from_secs(300) }
    }
}

/// Hands the changes of all accounts to a handler, each at least once, those of one account in order.
pub struct Follower<H> {
    settings: Settings,
    records: Arc<dyn Records>,
    feed: Arc<dyn Feed>,
    handler: H,
    counts: Counts,
    progress: Progress,
}

/// How far a follower is.
#[derive(Debug, Default)]
struct Progress {
    /// Whether the checkpoint was read.
    is_loaded: bool,
    /// The position that was saved.
    saved: Position,
    /// Every account whose last commit is at or before this is followed to its end, or waits in `aside`.
    reached: Position,
    /// What was handed on and is not saved yet.
    unsaved: BTreeMap<AccountId, Revision>,
    /// How many changes that were.
    unsaved_changes: usize,
    /// Accounts that could not be followed.
    aside: BTreeMap<AccountId, Aside>,
    /// For accounts that were begun from zero and are not at their end, [`Onward::began`].
    began: BTreeMap<AccountId, Revision>,
}

/// An account that could not be followed, and waits.
#[derive(Debug)]
struct Aside {
    /// Where it stood then. The position that is saved stays before it.
    position: Position,
    attempts: u32,
    due: Instant,
}

impl Progress {
    /// The position that may be saved: a follower that starts from it misses nothing.
    fn position(&self) -> Position {
        let before_aside =
            self.aside.values().map(|aside| Position(aside.position.0.saturating_sub(1))).min();
        before_aside.map_or(self.reached, |before| before.min(self.reached))
    }
}

/// Why an account was not followed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
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
    /// All of it is handed on, or it waits for another attempt.
    On,
    /// The follower was told to stop.
    Stopped,
}

impl<H: Handler> Follower<H> {
    /// A follower of a record store. It does nothing until [`Follower::run`].
    ///
    /// # Errors
    /// `Invalid` when the name is empty or too long, or the batch is out of its bounds.
    pub fn new(settings: Settings, opened: &Opened, handler: H, metrics: &Metrics) -> Result<Self, Error> {
        let name = settings.name;
        if name.is_empty() || name.len() > FOLLOWER_NAME_BYTES_MAX {
            let what = format!("follower name '{name}' must have 1 to {FOLLOWER_NAME_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        if settings.batch == 0 || settings.batch > CHANGES_MAX {
            let what = format!("batch of follower {name} must be from 1 to {CHANGES_MAX}");
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(Self {
            settings,
            records: opened.records.clone(),
            feed: opened.feed.clone(),
            handler,
            counts: Counts::new(metrics, name),
            progress: Progress::default(),
        })
    }

    /// Forgets how far the follower was: when it runs, each account is reset and told from zero.
    ///
    /// # Errors
    /// Those of [`Feed::forget`]. Then some accounts would go on where they were: try again.
    pub async fn rebuild(&mut self) -> Result<(), Error> {
        self.feed.forget(self.settings.name).await?;
        self.progress = Progress::default();
        Ok(())
    }

    /// Follows until `stop` is ready. Then the page in hand is finished and saved.
    ///
    /// Errors of the store and of the handler are counted and tried again, after waits from 100 ms up to a minute.
    ///
    /// # Errors
    /// When the last save failed: what was handed on since the one before comes again.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) -> Result<(), Error> {
        let follower = self.settings.name;
        let mut stop = Stop::new(stop);
        let mut watch = Some(self.records.watch()); // before the first look, so that no commit falls between
        let mut failures = 0;
        while !stop.is_told().await {
            match self.catch_up(&mut stop).await {
                Ok(()) => {
                    if failures > 0 {
                        info!(follower, "the follower goes on");
                    }
                    failures = 0;
                    self.wait_for_work(&mut watch, &mut stop).await;
                }
                Err(error) => {
                    failures += 1;
                    self.counts.records_errors.inc();
                    warn!(follower, failures, %error, "the follower can't go on and tries again");
                    if self.progress.is_loaded {
                        let _ = self.tell_lag().await; // as good as the store lets it: its trouble is told already
                    }
                    tokio::select! {
                        () = stop.told() => {}
                        () = sleep(retry_delay(failures)) => {}
                    }
                }
            }
        }
        self.save().await
    }

    /// Follows all that there is now.
    async fn catch_up(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        self.load().await?;
        self.save().await?; // what an attempt before could not save
        loop {
            // Each time: with steady commits there is always a next window.
            self.follow_aside(stop).await?;
            if self.progress.aside.len() >= ASIDE_MAX || stop.is_told().await {
                break;
            }
            let window = self.feed.touched(self.progress.reached, WINDOW_ACCOUNTS).await?;
            if window.is_empty() {
                break;
            }
            self.follow_window(&window, stop).await?;
            self.save().await?;
        }
        self.save().await?;
        self.tell_lag().await
    }

    async fn load(&mut self) -> Result<(), Error> {
        if self.progress.is_loaded {
            return Ok(());
        }
        let checkpoint = self.feed.checkpoint(self.settings.name, &[]).await?;
        self.progress.saved = checkpoint.position;
        self.progress.reached = checkpoint.position;
        self.progress.is_loaded = true;
        self.tell_lag().await
    }

    /// Tries those accounts again whose time has come.
    async fn follow_aside(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        let now = Instant::now();
        let mut due = Vec::new();
        for (account, aside) in &self.progress.aside {
            if aside.due <= now {
                due.push((*account, aside.position));
            }
        }
        let seen = self.seen(due.iter().map(|(account, _)| *account)).await?;
        for (account, position) in due {
            let since = seen.get(&account).copied().unwrap_or_default();
            if self.follow_account(account, position, since, stop).await? == Walked::Stopped {
                break;
            }
        }
        Ok(())
    }

    /// Follows accounts in the order of their last commits, as far as there is room for those that fail.
    async fn follow_window(
        &mut self,
        window: &[Touched],
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        let seen = self.seen(window.iter().map(|touched| touched.account)).await?;
        for Touched { position, account, revision } in window.iter().copied() {
            if self.progress.aside.len() >= ASIDE_MAX {
                break;
            }
            let since = seen.get(&account).copied().unwrap_or_default();
            let is_at_its_end = since >= revision;
            let waits = self.progress.aside.contains_key(&account);
            if !is_at_its_end && !waits {
                let walked = self.follow_account(account, position, since, stop).await?;
                if walked == Walked::Stopped {
                    break;
                }
            }
            self.progress.reached = position;
        }
        Ok(())
    }

    /// What of these accounts was handed on, saved or not.
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

    /// Follows an account to its end, or sets it aside. What is wrong with the store as a whole is an error.
    async fn follow_account(
        &mut self,
        account: AccountId,
        position: Position,
        since: Revision,
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<Walked, Error> {
        let trouble = match self.walk(account, since, stop).await {
            Ok(Walked::Stopped) => return Ok(Walked::Stopped),
            Ok(Walked::On) => {
                self.progress.aside.remove(&account);
                self.progress.began.remove(&account);
                return Ok(Walked::On);
            }
            Err(Trouble::Save(error)) => return Err(error),
            Err(Trouble::Read(error)) if error.is_transient() => return Err(error),
            Err(trouble) => trouble,
        };
        self.set_aside(account, position, &trouble);
        Ok(Walked::On)
    }

    /// Hands on page by page what happened in an account since a revision.
    async fn walk(
        &mut self,
        account: AccountId,
        mut since: Revision,
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<Walked, Trouble> {
        if stop.is_told().await {
            return Ok(Walked::Stopped);
        }
        let mut began = self.progress.began.get(&account).copied().unwrap_or_default();
        if since == Revision(0) {
            began = self.reset(account).await?;
        }
        loop {
            if stop.is_told().await {
                return Ok(Walked::Stopped);
            }
            let limit = self.settings.batch - self.progress.unsaved_changes; // what reaches the batch is saved at once
            let onward = Onward { since, began, limit };
            let page = match self.feed.follow(account, &onward).await {
                Ok(page) => page,
                Err(error) if error.kind() == ErrorKind::NotFound && since > Revision(0) => {
                    (since, began) = (Revision(0), self.reset(account).await?);
                    continue;
                }
                Err(error) => return Err(Trouble::Read(error)),
            };
            if page.has_more && page.revision <= since {
                let what = format!("the changes of account {} since {} don't go on", account.0, since.0);
                return Err(Trouble::Read(Error::new(ErrorKind::Internal, what)));
            }
            self.hand_on(account, &page).await?;
            since = page.revision;
            if !page.has_more {
                return Ok(Walked::On);
            }
        }
    }

    /// Lets the handler drop an account, and answers the revision at which it had nothing.
    async fn reset(&mut self, account: AccountId) -> Result<Revision, Trouble> {
        in_time(self.settings.handler_timeout, self.handler.reset(account)).await?;
        let states = self.records.states(account).await.map_err(Trouble::Read)?;
        self.counts.resets.inc();
        debug!(
            follower = self.settings.name,
            account = account.0,
            "the follower begins an account from zero"
        );
        self.progress.unsaved.insert(account, Revision(0));
        if self.progress.began.len() >= 2 * ASIDE_MAX {
            self.progress.began.clear(); // at the worst those accounts are begun once more
        }
        self.progress.began.insert(account, states.revision);
        Ok(states.revision)
    }

    async fn hand_on(&mut self, account: AccountId, page: &Changes) -> Result<(), Trouble> {
        let changes = page.created.len() + page.updated.len() + page.destroyed.len();
        let is_too_much = self.progress.unsaved_changes + changes > self.settings.batch; // a revision that is not cut in two
        if is_too_much && self.progress.unsaved_changes > 0 {
            self.save().await.map_err(Trouble::Save)?;
        }
        if changes > 0 {
            in_time(self.settings.handler_timeout, self.handler.handle(account, page)).await?;
        }
        self.counts.changes.inc_by(changes as u64);
        self.progress.unsaved.insert(account, page.revision);
        self.progress.unsaved_changes += changes;
        if self.progress.unsaved_changes >= self.settings.batch {
            self.save().await.map_err(Trouble::Save)?;
        }
        Ok(())
    }

    fn set_aside(&mut self, account: AccountId, position: Position, trouble: &Trouble) {
        let is_handlers = matches!(trouble, Trouble::Handle(_));
        let errors = if is_handlers { &self.counts.handler_errors } else { &self.counts.records_errors };
        errors.inc();
        let now = Instant::now();
        let aside = self.progress.aside.entry(account).or_insert(Aside { position, attempts: 0, due: now });
        aside.attempts += 1;
        aside.due = now + retry_delay(aside.attempts);
        let (follower, attempts) = (self.settings.name, aside.attempts);
        warn!(follower, account = account.0, attempts, %trouble, "an account can't be followed and waits");
    }

    /// Saves what was handed on.
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
        self.tell_lag().await
    }

    async fn tell_lag(&self) -> Result<(), Error> {
        let lag = self.feed.position().await?.0.saturating_sub(self.progress.saved.0);
        self.counts.lag.set(i64::try_from(lag).unwrap_or(i64::MAX));
        Ok(())
    }

    /// Returns when there may be something to do.
    async fn wait_for_work(&self, watch: &mut Option<Watch>, stop: &mut Stop<impl Future<Output = ()>>) {
        let mut next_look = Instant::now() + self.settings.poll;
        for aside in self.progress.aside.values() {
            next_look = next_look.min(aside.due);
        }
        tokio::select! {
            () = stop.told() => {}
            () = announced(watch) => {}
            () = sleep_until(next_look) => {}
        }
    }
}

/// What a handler answers, or that it took too long.
async fn in_time(
    limit: Duration,
    call: impl Future<Output = Result<(), HandlerError>>,
) -> Result<(), Trouble> {
    let answer = timeout(limit, call).await;
    let answer = answer.unwrap_or_else(|_| Err(HandlerError::new(format!("no answer within {limit:?}"))));
    answer.map_err(Trouble::Handle)
}

/// Returns after a commit was announced, or announcements were left out.
async fn announced(watch: &mut Option<Watch>) {
    let Some(open) = watch else { return pending().await };
    if open.next().await.is_none() {
        *watch = None; // the store is gone: nothing will be announced any more
        return;
    }
    // One look finds all that was committed until now, so all that is announced until now is answered by it.
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
