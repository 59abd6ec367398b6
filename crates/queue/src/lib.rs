//! The queue: work distributed among servers, and announcements of commits. It is never the only place where
//! something is stored.
//!
//! [`Work`] passes each item to one of the servers that share a queue, [`Announcements`] pass each announcement to all of them, and
//! [`Upkeep`] is the interface for operators. [`open_work`] and [`open_announcements`] choose an engine by URL. Each promise is a
//! named test that runs on every engine: see `tests/conformance`.
//!
//! What is published may be lost, as when a broker is wiped, and may arrive twice. So an item only hints at something to do that is
//! stored elsewhere: a server that receives an item claims the work where it is stored, and a sweep there finds the work whose item
//! was lost. An announcement only says that something is worth reading now.
//!
//! ```
//! # async fn example() -> Result<(), restante_queue::Error> {
//! use bytes::Bytes;
//! use restante_queue::{Config, EngineUrl, open_work};
//!
//! let opened = open_work(Config::new(EngineUrl::Local)).await?;
//! opened.work.publish(&[Bytes::from_static(b"look at 17")]).await?;
//! let received = opened.work.next().await;
//! assert_eq!(received.item.as_ref(), b"look at 17");
//! received.ticket.done();
//! # Ok(())
//! # }
//! ```

mod announcements;
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
mod backoff;
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
mod bus;
mod local;
mod metrics;
mod open;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
mod work;

use async_trait::async_trait;
use bytes::Bytes;

pub use announcements::{Announcement, Listener, Missed};
pub use local::{local_announcements, local_work};
pub use metrics::Metrics;
pub use open::{
    Config, EngineUrl, OpenedAnnouncements, OpenedWork, QueueConfig, open_announcements, open_work,
};
pub use restante_core::Error;
pub use work::{Received, Ticket};

/// The most items that one [`Work::publish`] takes.
pub const PUBLISH_ITEMS_MAX: usize = 256;

/// The longest item.
pub const ITEM_BYTES_MAX: usize = 1_024;

/// The most items that wait in a queue.
pub const WAITING_MAX: usize = 100_000;

/// The most dead items that are kept; the oldest are dropped.
pub const DEAD_MAX: usize = 10_000;

/// The number of times that an item may be returned; after that it is dead.
pub const RETURNS_MAX: u32 = 20;

/// Which server distributes the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealer {
    /// The engine can't be used now: every server looks for its own work.
    Unknown,
    /// This server does. The number changes each time that the engine is reached anew: what was published before may be lost.
    ThisServer(u64),
    /// Another server does.
    AnotherServer,
}

/// Items of work, each for one of the servers that share the queue.
///
/// **Order** is not promised. **Loss**: items survive servers, and restarts of the engine; items that an operator deletes are lost,
/// and so is everything when the engine loses its data.
#[async_trait]
pub trait Work: Send + Sync + 'static {
    /// Adds items, and returns when the engine has them.
    ///
    /// - *Kept*: an item that was added is received by a server, unless the engine loses it.
    /// - *In time*: an engine that does not answer fails within its time-out.
    ///
    /// # Errors
    /// - `Invalid`: more than [`PUBLISH_ITEMS_MAX`] items, or one that is longer than [`ITEM_BYTES_MAX`].
    /// - `Full`: [`WAITING_MAX`] items wait. `Unavailable`: the engine can't be used now.
    ///
    /// After `Full` and `Unavailable` some of the items may have been added.
    async fn publish(&self, items: &[Bytes]) -> Result<(), Error>;

    /// Waits for the next item. While the engine can't be used, and after [`Upkeep::close`], it doesn't return. It is safe to
    /// cancel.
    ///
    /// - *One server*: an item is received by one server, and by another one only after it was returned.
    /// - *Bounded*: a server holds at most [`QueueConfig::prefetch`] items whose tickets are not used yet.
    /// - *Returned*: an item is delivered again, to any server, when its ticket is dropped, when its server ends, and when the
    ///   connection to the engine is lost. One that is returned more often than [`RETURNS_MAX`] times is dead.
    /// - *Rejected*: an item whose ticket is rejected is dead at once.
    async fn next(&self) -> Received;

    /// Whether this server distributes the work. One of the servers that reach the engine does; when it ends, or loses its connection,
    /// another one takes over after some seconds. For a moment both may consider themselves the dealer, as when a network is divided.
    fn dealer(&self) -> Dealer;
}

/// Announcements of commits to all other servers.
pub trait Announcements: Send + Sync + 'static {
    /// Announces a commit to all other servers. It does not wait: an announcement is lost, and counted, while the engine can't be used or more
    /// than a thousand wait.
    fn announce(&self, announcement: Announcement);

    /// Receives what other servers announce from now on.
    ///
    /// - *Others*: a server does not receive its own announcements.
    /// - *Ordered*: announcements of one server arrive in its order; each at most once.
    /// - *Gaps are shown*: a listener gets [`Missed`] when it was slow, and when the connection to the engine was lost.
    fn listen(&self) -> Listener;
}

/// The interface of a queue of work for operators.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Whether the engine can be used; this reads memory only.
    ///
    /// # Errors
    /// `Unavailable`, with the reason.
    fn health(&self) -> Result<(), Error>;

    /// The number of items, without those that servers hold.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stats(&self) -> Result<Stats, Error>;

    /// At most `limit` dead items; they stay in the queue.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn dead(&self, limit: usize) -> Result<Vec<DeadItem>, Error>;

    /// Adds the dead items to the queue again; returns how many.
    ///
    /// # Errors
    /// `Unavailable`, `Full`; those that were added before the error are no longer dead.
    async fn requeue_dead(&self) -> Result<u64, Error>;

    /// Removes the dead items; returns how many.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn drop_dead(&self) -> Result<u64, Error>;

    /// Leaves the queue. The items that this server holds are delivered to others.
    async fn close(&self);
}

/// The number of items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items that wait for a server.
    pub waiting: u64,
    /// Dead items.
    pub dead: u64,
}

/// An item that no server could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadItem {
    /// The item.
    pub item: Bytes,
    /// Why it is dead: `rejected`, or `delivery_limit` when it was returned too often.
    pub reason: String,
}

fn check_items(items: &[Bytes]) -> Result<(), Error> {
    if items.len() > PUBLISH_ITEMS_MAX {
        return Err(Error::invalid(format!("{} items at once, {PUBLISH_ITEMS_MAX} at most", items.len())));
    }
    match items.iter().find(|item| item.len() > ITEM_BYTES_MAX) {
        Some(item) => {
            Err(Error::invalid(format!("an item of {} bytes, {ITEM_BYTES_MAX} at most", item.len())))
        }
        None => Ok(()),
    }
}

fn closed() -> Error {
    Error::unavailable("the queue is closed")
}
