//! Notes what was dropped from the queue.

use restante_blobs::Blobs;
use restante_mail::queue::QueuedRecipient;

use crate::{NotedOutcome, OutcomeLog, RecipientOutcome, prepare};

/// Notes for operators that a recipient was dropped from the queue, and by whom. The Message-ID is read from the message; the note
/// lacks it if that is not possible now.
pub async fn note_dropped(outcomes: &dyn OutcomeLog, blobs: &dyn Blobs, dropped: &QueuedRecipient, by: &str) {
    let message = &dropped.message;
    let message_id = prepare::message_id(blobs, &message.source, message.blob, &message.sender).await;
    outcomes.note(NotedOutcome {
        message,
        message_id: message_id.as_deref(),
        recipient: &dropped.recipient.address,
        is_local: false,
        outcome: RecipientOutcome::Dropped { by },
    });
}
