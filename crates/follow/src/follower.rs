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
/// Pages of an account that are handed on before it is others' turn: mostly as many batches. An account that has more, because much
/// was committed or because more is committed than the handler takes, goes on in its next turn.
const TURN_PAGES: usize = 16;
/// Accounts that wait for their next turn. When there are so many, accounts that are met first go on only as far as one turn
/// leads; the first of them that leads further waits with all behind it until one of these is done.
const BEHIND_MAX: usize = 64;
/// Accounts for which it is noted where they were begun from zero: all that are not at their end, and some that went away since.
const BEGAN_MAX: usize = 2 * (ASIDE_MAX + BEHIND_MAX);
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
    /// Every account whose last commit is at or before this is followed to its end, or waits in `aside` or `behind`.
    reached: Position,
    /// What was handed on and is not saved yet.
    unsaved: BTreeMap<AccountId, Revision>,
    /// How many changes that were.
    unsaved_changes: usize,
    /// Accounts that could not be followed.
    aside: BTreeMap<AccountId, Aside>,
    /// Accounts that have more than one turn hands on.
    behind: BTreeMap<AccountId, Behind>,
    /// For accounts that were begun from zero and are not at their end, [`Onward::began`].
    began: BTreeMap<AccountId, Revision>,
}

/// An account that has more than one turn hands on.
#[derive(Debug)]
struct Behind {
    /// Where it stood when it was met last. The position that is saved stays before it.
    touched: Touched,
    /// Up to where it is handed on.
    handed_on: Revision,
}

/// An account that could not be followed, and waits.
#[derive(Debug)]
struct Aside {
    /// Where it stood then. The position that is saved stays before it.
    touched: Touched,
    attempts: u32,
    due: Instant,
}

impl Progress {
    /// The position that may be saved: a follower that starts from it misses nothing.
    fn position(&self) -> Position {
        let aside = self.aside.values().map(|aside| aside.touched);
        let waiting = aside.chain(self.behind.values().map(|behind| behind.touched));
        let before = waiting.map(|touched| Position(touched.position.0.saturating_sub(1))).min();
        before.map_or(self.reached, |before| before.min(self.reached))
    }

    /// What is known to be left of accounts that have more: the position may be far ahead of it, since each account stands in
    /// the feed with its last commit alone.
    fn left_behind(&self) -> u64 {
        let left = |behind: &Behind| behind.touched.revision.0.saturating_sub(behind.handed_on.0);
        self.behind.values().map(left).sum()
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
    /// Its turn is over: it is handed on up to a revision, and there is more.
    Further(Revision),
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

    /// Follows all that there is now, or, when more is committed than the handler takes, on and on.
    async fn catch_up(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        self.load().await?;
        self.save().await?; // what an attempt before could not save
        loop {
            // Each time: with steady commits there is always a next window.
            self.follow_aside(stop).await?;
            self.follow_behind(stop).await?;
            if self.progress.aside.len() >= ASIDE_MAX || stop.is_told().await {
                break;
            }
            let window = self.feed.touched(self.progress.reached, WINDOW_ACCOUNTS).await?;
            if window.is_empty() && self.progress.behind.is_empty() {
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
        let due = self.progress.aside.values().filter(|aside| aside.due <= now);
        let due: Vec<Touched> = due.map(|aside| aside.touched).collect();
        let seen = self.seen(due.iter().map(|touched| touched.account)).await?;
        for touched in due {
            let since = seen.get(&touched.account).copied().unwrap_or_default();
            match self.follow_account(touched, since, stop).await? {
                Walked::On => {}
                Walked::Further(handed_on) => self.go_on(touched, handed_on),
                Walked::Stopped => break,
            }
        }
        Ok(())
    }

    /// What kept an account aside is over, and it has more. While as many are behind as may be, it has its turns from where it is.
    fn go_on(&mut self, touched: Touched, handed_on: Revision) {
        if self.progress.behind.len() < BEHIND_MAX {
            self.progress.aside.remove(&touched.account);
            self.progress.behind.insert(touched.account, Behind { touched, handed_on });
        } else if let Some(aside) = self.progress.aside.get_mut(&touched.account) {
            (aside.attempts, aside.due) = (0, Instant::now());
        }
    }

    /// Gives a turn to each account that has more, unless so many fail that it is not the accounts.
    async fn follow_behind(&mut self, stop: &mut Stop<impl Future<Output = ()>>) -> Result<(), Error> {
        let waiting: Vec<Touched> = self.progress.behind.values().map(|behind| behind.touched).collect();
        let seen = self.seen(waiting.iter().map(|touched| touched.account)).await?;
        for touched in waiting {
            if self.progress.aside.len() >= ASIDE_MAX {
                break; // a handler that hangs would hang as often as accounts are behind
            }
            let since = seen.get(&touched.account).copied().unwrap_or_default();
            match self.follow_account(touched, since, stop).await? {
                Walked::On => drop(self.progress.behind.remove(&touched.account)),
                Walked::Further(handed_on) => {
                    self.progress.behind.insert(touched.account, Behind { touched, handed_on });
                }
                Walked::Stopped => break,
            }
        }
        Ok(())
    }

    /// Follows accounts in the order of their last commits, as far as there is room for those that fail or have more.
    async fn follow_window(
        &mut self,
        window: &[Touched],
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        let seen = self.seen(window.iter().map(|touched| touched.account)).await?;
        for touched in window.iter().copied() {
            let account = touched.account;
            if self.progress.aside.len() >= ASIDE_MAX {
                break;
            }
            if let Some(behind) = self.progress.behind.get_mut(&account) {
                behind.touched = touched; // it was committed to again, and has its turns without this
            } else if !self.progress.aside.contains_key(&account) {
                let since = seen.get(&account).copied().unwrap_or_default();
                let is_at_its_end = since >= touched.revision;
                let walked = match is_at_its_end {
                    true => Walked::On,
                    false => self.follow_account(touched, since, stop).await?,
                };
                let has_room = self.progress.behind.len() < BEHIND_MAX;
                match walked {
                    Walked::On => {}
                    Walked::Further(handed_on) if has_room => {
                        self.progress.behind.insert(account, Behind { touched, handed_on });
                    }
                    Walked::Further(_) | Walked::Stopped => break,
                }
            }
            self.progress.reached = touched.position;
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

    /// Follows an account for a turn, or sets it aside. What is wrong with the store as a whole is an error.
    async fn follow_account(
        &mut self,
        touched: Touched,
        since: Revision,
        stop: &mut Stop<impl Future<Output = ()>>,
    ) -> Result<Walked, Error> {
        let account = touched.account;
        let trouble = match self.walk(account, since, stop).await {
            Ok(walked @ (Walked::Stopped | Walked::Further(_))) => return Ok(walked),
            Ok(Walked::On) => {
                self.progress.aside.remove(&account);
                self.progress.began.remove(&account);
                return Ok(Walked::On);
            }
            Err(Trouble::Save(error)) => return Err(error),
            Err(Trouble::Read(error)) if error.is_transient() => return Err(error),
            Err(trouble) => trouble,
        };
        self.progress.behind.remove(&account);
        self.set_aside(touched, &trouble);
        Ok(Walked::On)
    }

    /// Hands on page by page what happened in an account since a revision, as many pages as are a turn.
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
        for _ in 0..TURN_PAGES {
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
        Ok(Walked::Further(since))
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
        if self.progress.began.len() >= BEGAN_MAX {
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

    fn set_aside(&mut self, touched: Touched, trouble: &Trouble) {
        let is_handlers = matches!(trouble, Trouble::Handle(_));
        let errors = if is_handlers { &self.counts.handler_errors } else { &self.counts.records_errors };
        errors.inc();
        let now = Instant::now();
        let aside = Aside { touched, attempts: 0, due: now };
        let aside = self.progress.aside.entry(touched.account).or_insert(aside);
        aside.attempts += 1;
        aside.due = now + retry_delay(aside.attempts);
        let (follower, attempts) = (self.settings.name, aside.attempts);
        warn!(follower, account = touched.account.0, attempts, %trouble, "an account can't be followed and waits");
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

    /// Shows how far it is, and how many accounts wait.
    async fn tell_lag(&self) -> Result<(), Error> {
        self.counts.aside.set(self.progress.aside.len() as i64);
        self.counts.behind.set(self.progress.behind.len() as i64);
        let lag = self.feed.position().await?.0.saturating_sub(self.progress.saved.0);
        let lag = lag.max(self.progress.left_behind());
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
