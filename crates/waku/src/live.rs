//! Hands messages to those who are here, as they arrive.

use std::sync::Arc;

pub use restante_sessions::hub::Event;
use restante_sessions::{
    Config, Error, Live,
    hub::{Hub, HubConfig},
};

/// Somebody who wants messages as they arrive.
pub trait Listener: Send + Sync + 'static {
    /// Takes a message, or leaves it. It is called on the relay's way: it looks up who wants the message, puts it into
    /// bounded queues, and never waits. Who keeps it for long keeps [`Event::to_kept`].
    fn hear(&self, event: &Arc<Event>);

    /// Whether somebody would get the message who has asked for it. Who only watches says no.
    fn is_wanted(&self, _event: &Event) -> bool {
        false
    }
}

/// The hub hands a message to the sessions that want it, here and on other nodes.
impl Listener for Hub {
    fn hear(&self, event: &Arc<Event>) {
        self.publish(event);
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
