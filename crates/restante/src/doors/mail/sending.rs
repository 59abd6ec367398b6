//! Outgoing mail in the server: the queue, its sender, and the followers that add to it.

use std::sync::Arc;

use restante_core::Clock;
use restante_mail::queue::Queue;

/// The queue in these records. A store that was restored sends nothing until an operator releases it.
pub(super) fn queue(records: &restante_records::Opened, clock: Arc<dyn Clock>) -> Queue {
    Queue::new(records.records.clone(), clock).restored(records.upkeep.restores())
}
