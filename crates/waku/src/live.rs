//! Hands messages to those who are here, as they arrive.

use std::sync::Arc;

pub use restante_sessions::hub::Event;
use restante_sessions::{
    Config, Error, Live,
    hub::{Hub, HubConfig},
};

/// Where on its way a message is when listeners are told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A client has published it, and it is on its way to the archive: [`Stage::Accepted`] follows, or [`Stage::Refused`].
    Published,
    /// It was told as published, and is durable now, or it is ephemeral.
    Accepted,
    /// It was told as published, and the archive has not taken it.
    Refused,
    /// Relay has brought it. It is told once.
    Relayed,
}

/// Somebody who wants messages as they arrive.
pub trait Listener: Send + Sync + 'static {
    /// Takes a message, or leaves it. It is called on the relay's way: it looks up who wants the message, puts it into
    /// bounded queues, and never waits. Who keeps it for long keeps [`Event::to_kept`].
    fn hear(&self, event: &Arc<Event>, stage: Stage);

    /// Whether somebody would get the message who has asked for it. Who only watches says no.
    fn is_wanted(&self, _event: &Event) -> bool {
        false
    }
}

/// The hub hands a message to the sessions that want it, here and on other nodes.
///
/// Sessions of this node get what a client publishes at once, because a sync may take as long as others keep the disk busy. Other
/// nodes are told when it is durable: of what is told here this server knows whether it is on its way to the archive
/// ([`Intake::settled`](crate::intake::Intake::settled)), and of what others tell it does not.
impl Listener for Hub {
    fn hear(&self, event: &Arc<Event>, stage: Stage) {
        match stage {
            Stage::Published => {
                self.publish_here(event);
            }
            Stage::Accepted => self.tell_others(event),
            Stage::Refused => self.forget(event),
            Stage::Relayed => {
                self.publish(event);
            }
        }
    }

    fn is_wanted(&self, event: &Event) -> bool {
        Self::is_wanted(self, &event.channel, &event.topic)
    }
}

/// A table in memory and a hub with the defaults, for a door that runs alone.
///
/// # Errors
/// None in practice: those of [`Live::open`].
pub async fn alone() -> Result<Live, Error> {
    Live::open(Config::new(restante_sessions::EngineUrl::Memory), HubConfig::default()).await
}
