//! Commits of other servers: a separate connection listens to notifications, and reads the feed when some were missed.
//!
//! This connection also holds the lock that shows that this server has the records open.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior},
};
use tracing::{debug, warn};

use super::{
    Shared,
    connect::{BACK_OFF_MIN, Connection, Database, Messages, drive, has_ended, jittered},
    error::AttemptError,
    feed::read_touched,
    open::{open_lock, read_state},
};
use crate::{AccountId, Error, Position, PostgresUrl, Revision, TOUCHED_MAX};

/// How often the feed is read without a notification: one may have been lost with a connection.
const POLL: Duration = Duration::from_secs(10);
/// How long a statement of this connection may take.
const STATEMENT: Duration = Duration::from_secs(30);
/// The longest list of accounts in a notification. PostgreSQL's NOTIFY allows up to 7,999 bytes; longer lists are left out, and
/// listeners read the feed.
const PAYLOAD_BYTES_MAX: usize = 7_900;
/// Space for the numbers before the list of accounts.
const PAYLOAD_HEAD_BYTES: usize = 64;
/// The most notifications that wait to be handled. Further ones are dropped, and their commits are read from the feed.
pub(super) const HEARD_MAX: usize = 1_024;

/// The connection.
pub(super) struct Listener {
    pub(super) connection: Arc<Connection>,
    messages: Messages,
    heard: mpsc::Receiver<String>,
    ticks: Interval,
}

/// The next event on the connection.
enum Event {
    Heard(String),
    Poll,
    Lost,
}

impl Listener {
    /// Connects, without listening yet.
    pub(super) async fn connect(database: &Database) -> Result<Self, Error> {
        let (sender, heard) = mpsc::channel(HEARD_MAX);
        let (client, messages) = Box::pin(database.connector.connect_alone(Some(sender))).await?;
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { connection: Connection::new(client), messages, heard, ticks })
    }

    /// Runs some work on the connection, with a time limit.
    pub(super) async fn run<T>(
        &mut self,
        limit: Duration,
        work: impl Future<Output = Result<T, AttemptError>>,
    ) -> Result<T, AttemptError> {
        let done = tokio::time::timeout(limit, drive(&mut self.messages, work)).await;
        done.unwrap_or_else(|_| Err(Error::unavailable("postgres took too long to answer").into()))
    }

    /// Starts listening, and takes the lock that shows that this server has the records open.
    pub(super) async fn listen(&mut self, url: &PostgresUrl, channel: &str) -> Result<(), AttemptError> {
        let lock = open_lock(url);
        let sql = format!("LISTEN \"{channel}\"; SELECT pg_advisory_lock_shared({lock})");
        let connection = self.connection.clone();
        self.run(STATEMENT, connection.run("listen to commits", &sql)).await
    }

    async fn next(&mut self) -> Event {
        poll_fn(|context| {
            if has_ended(&mut self.messages, context) {
                return Poll::Ready(Event::Lost);
            }
            if let Poll::Ready(Some(payload)) = self.heard.poll_recv(context) {
                return Poll::Ready(Event::Heard(payload));
            }
            self.ticks.poll_tick(context).map(|_| Event::Poll)
        })
        .await
    }

    /// Handles notifications until the connection is lost.
    async fn follow(&mut self, shared: &Shared) -> Result<(), AttemptError> {
        loop {
            let is_behind = match self.next().await {
                Event::Lost => return Ok(()),
                Event::Poll => true,
                Event::Heard(payload) => !shared.hear(&payload),
            };
            if is_behind {
                self.read_feed(shared).await?;
            }
        }
    }

    /// Announces the rows of the feed that were not announced yet.
    async fn read_feed(&mut self, shared: &Shared) -> Result<(), AttemptError> {
        let connection = self.connection.clone();
        loop {
            let after = shared.announcements.seen();
            let touched = self.run(STATEMENT, read_touched(&connection, after, TOUCHED_MAX)).await?;
            for one in &touched {
                shared.announcements.heard(one.account, one.revision, one.position);
            }
            if touched.len() < TOUCHED_MAX {
                return Ok(());
            }
        }
    }

    /// After a reconnect: listens again, checks that the indexes are those of this server, and reads what was missed.
    async fn resume(&mut self, shared: &Shared) -> Result<(), AttemptError> {
        shared.settle_if_moved().await?;
        self.listen(&shared.url, &shared.channel).await?;
        let connection = self.connection.clone();
        let state = self.run(STATEMENT, read_state(&connection)).await?;
        shared.restores.store(state.restores, Ordering::Release);
        shared.check_epoch(state.epoch)?;
        self.read_feed(shared).await
    }
}

/// Listens until the store is closed, and reconnects whenever the connection is lost.
pub(super) async fn run(shared: Arc<Shared>, mut listener: Listener) {
    loop {
        match listener.follow(&shared).await {
            Ok(()) => warn!("the connection that listens to commits of records was lost"),
            Err(error) => warn!(error = %Error::from(error), "commits of records can't be listened to"),
        }
        listener = reconnect(&shared).await;
    }
}

/// Keeps the lock of records that are being moved. When it is lost along with its connection, nothing is written any more: a
/// server may have the records open.
pub(super) async fn hold(shared: Arc<Shared>, mut listener: Listener) {
    while !matches!(listener.next().await, Event::Lost) {}
    warn!("the connection that keeps the records for this process alone was lost");
    shared.is_closed.store(true, Ordering::Release);
}

async fn reconnect(shared: &Shared) -> Listener {
    loop {
        tokio::time::sleep(jittered(BACK_OFF_MIN * 5)).await;
        let resumed = async {
            let mut listener = Listener::connect(&shared.database).await?;
            listener.resume(shared).await.map_err(Error::from)?;
            Ok::<_, Error>(listener)
        };
        match resumed.await {
            Ok(listener) => return listener,
            Err(error) => debug!(%error, "commits of records can't be listened to yet"),
        }
    }
}

impl Shared {
    /// The part of a notification after the position: the number of accounts, then each account with its revision. If that would
    /// be too long, the accounts are left out.
    pub(super) fn payload(&self, touched: &[(AccountId, Revision)]) -> String {
        let head = format!(" {}", touched.len());
        let mut payload = head.clone();
        for (account, revision) in touched {
            payload.push_str(&format!(" {}:{}", account.0, revision.0));
            if payload.len() > PAYLOAD_BYTES_MAX - PAYLOAD_HEAD_BYTES {
                return head;
            }
        }
        payload
    }

    /// Announces the commits in a notification; returns whether none are missing before it or in it.
    fn hear(&self, payload: &str) -> bool {
        let Some(heard) = Heard::of(payload) else { return false };
        let seen = self.announcements.seen().0;
        if heard.base + heard.count <= seen {
            return true; // already read from the feed
        }
        if heard.base != seen || heard.touched.len() as u64 != heard.count {
            return false;
        }
        for (position, (account, revision)) in (heard.base + 1..).zip(heard.touched) {
            self.announcements.heard(account, revision, Position(position));
        }
        true
    }
}

/// A notification.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    /// The position before the group of commits.
    base: u64,
    /// How many positions the group took.
    count: u64,
    touched: Vec<(AccountId, Revision)>,
}

impl Heard {
    /// Parses a payload; `None` when it is not one of ours.
    fn of(payload: &str) -> Option<Self> {
        let mut words = payload.split(' ');
        let base = words.next()?.parse().ok().filter(|base| *base < u64::MAX >> 1)?;
        let count = words.next()?.parse().ok().filter(|count| *count <= u64::from(u32::MAX))?;
        let mut touched = Vec::new();
        for word in words {
            let (account, revision) = word.split_once(':')?;
            touched.push((AccountId(account.parse().ok()?), Revision(revision.parse().ok()?)));
        }
        Some(Self { base, count, touched })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_read_back_and_others_are_none() {
        let touched = vec![(AccountId(7), Revision(9)), (AccountId(u32::MAX), Revision(1))];
        assert_eq!(Heard::of("12 2 7:9 4294967295:1"), Some(Heard { base: 12, count: 2, touched }));
        assert_eq!(Heard::of("12 300"), Some(Heard { base: 12, count: 300, touched: vec![] }));
        for payload in ["", "x", "12", "12 1 7", "12 1 x:1", "-1 1 7:1", "18446744073709551615 1 7:1"] {
            assert_eq!(Heard::of(payload), None, "{payload}");
        }
    }
}
