//! Delivers messages to subscribers as they arrive.

use std::sync::Arc;

pub use restante_sessions::hub::Event;
use restante_sessions::{
    Config, Error, Live,
    hub::{Hub, HubConfig},
};

/// The state of a message when listeners are notified of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A client has published it, and it is being archived: [`Stage::Accepted`] or [`Stage::Refused`] follows.
    Published,
    /// It was announced as published and is durable now, or it is ephemeral.
    Accepted,
    /// It was announced as published, and the archive did not accept it.
    Refused,
    /// It arrived by relay. It is announced once.
    Relayed,
}

/// A receiver of messages as they arrive.
pub trait Listener: Send + Sync + 'static {
    /// Handles a message. Relay calls this: it must put the message into bounded queues of subscribers and never wait.
    /// An implementation that stores the event for long must store [`Event::to_unmetered`].
    fn on_message(&self, event: &Arc<Event>, stage: Stage);

    /// Whether a subscriber would get the message. A listener that only observes returns false.
    fn has_subscriber(&self, _event: &Event) -> bool {
        false
    }
}

/// The hub delivers a message to the subscribed sessions, on this node and on others.
///
/// Sessions of this node get a published message at once, because a sync may take long while the disk is busy. Other nodes
/// get it when it is durable: this server knows which of its own messages are still being archived
/// ([`Intake::settled`](crate::intake::Intake::settled)), but not which of another server's.
impl Listener for Hub {
    fn on_message(&self, event: &Arc<Event>, stage: Stage) {
        match stage {
            Stage::Published => {
                self.publish_here(event);
            }
            Stage::Accepted => self.broadcast(event),
            Stage::Refused => self.forget(event),
            Stage::Relayed => {
                self.publish(event);
            }
        }
    }

    fn has_subscriber(&self, event: &Event) -> bool {
        Self::has_subscribers(self, &event.channel, &event.topic)
    }
}

/// A session table in memory and a hub with the defaults, for a server that shares no table.
///
/// # Errors
/// None in practice: those of [`Live::open`].
pub async fn standalone() -> Result<Live, Error> {
    Live::open(Config::new(restante_sessions::EngineUrl::Memory), HubConfig::default()).await
}
