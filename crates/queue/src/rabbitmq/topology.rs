//! The queues and the exchange, as they are declared at the broker.

use lapin::{
    Channel,
    options::{QueueDeclareOptions, QueuePurgeOptions},
    types::{AMQPValue, FieldTable},
};

use super::address::unavailable;
use crate::{DEAD_MAX, Error, RETURNS_MAX, WAITING_MAX};

/// The most messages to the dealer that wait when nobody receives them.
const TOKENS_MAX: usize = 10;

/// The names of the queues of one prefix.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Items that wait.
    pub(super) work: String,
    /// Dead items.
    pub(super) dead: String,
    /// A queue whose messages are all delivered to one server as long as that one receives: this server distributes the work.
    pub(super) dealer: String,
    /// The exchange that passes announcements to all servers.
    pub(super) announcements: String,
}

impl Names {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            work: format!("{prefix}-work"),
            dead: format!("{prefix}-work-dead"),
            dealer: format!("{prefix}-dealer"),
            announcements: format!("{prefix}-announcements"),
        }
    }

    /// Declares the queues.
    ///
    /// # Errors
    /// `Unavailable`, also when there are queues of these names with other arguments.
    pub(super) async fn declare(&self, channel: &Channel) -> Result<(), Error> {
        let mut dead = quorum();
        dead.insert("x-max-length".into(), number(DEAD_MAX));
        let mut work = quorum();
        work.insert("x-max-length".into(), number(WAITING_MAX));
        work.insert("x-delivery-limit".into(), number(RETURNS_MAX as usize));
        work.insert("x-dead-letter-exchange".into(), text(""));
        work.insert("x-dead-letter-routing-key".into(), text(&self.dead));
        // An item leaves the queue only when the queue of dead items has it. The broker requires the overflow setting with it.
        work.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        work.insert("x-overflow".into(), text("reject-publish"));
        let mut dealer = quorum();
        dealer.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
        dealer.insert("x-max-length".into(), number(TOKENS_MAX));
        for (name, arguments) in [(&self.dead, dead), (&self.work, work), (&self.dealer, dealer)] {
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let declared = channel.queue_declare(name.as_str().into(), options, arguments).await;
            declared.map_err(|error| unavailable(&format!("can't declare the queue {name}"), error))?;
        }
        Ok(())
    }
}

/// The messages that wait in a queue, and its consumers.
///
/// # Errors
/// `Unavailable`, also when the queue doesn't exist. The channel is closed then.
pub(super) async fn size(channel: &Channel, name: &str) -> Result<(u64, u64), Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = channel.queue_declare(name.into(), options, FieldTable::default()).await;
    let found = found.map_err(|error| unavailable(&format!("can't look at the queue {name}"), error))?;
    Ok((found.message_count().into(), found.consumer_count().into()))
}

/// Removes the messages that wait in a queue; returns how many.
///
/// # Errors
/// `Unavailable`.
pub(super) async fn purge(channel: &Channel, name: &str) -> Result<u64, Error> {
    let purged = channel.queue_purge(name.into(), QueuePurgeOptions::default()).await;
    purged.map(u64::from).map_err(|error| unavailable(&format!("can't clear the queue {name}"), error))
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), text("quorum"));
    arguments
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn number(number: usize) -> AMQPValue {
    AMQPValue::LongInt(i32::try_from(number).unwrap_or(i32::MAX))
}
