//! Appends that wait for a writer, in bounded memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{Appended, Error, Message};

/// Bytes of a message in memory and in a record apart from its body and names.
const MESSAGE_EXTRA_BYTES: usize = 128;

/// The result of an append.
pub(crate) type Answer = Result<Vec<Appended>, Error>;

/// A batch and the sender of its answer.
pub(crate) struct Append {
    pub(crate) messages: Vec<Message>,
    answer: oneshot::Sender<Answer>,
    /// Released when the batch is answered.
    _permit: OwnedSemaphorePermit,
}

impl Append {
    /// A batch with its permit, and the receiver of its answer.
    pub(crate) fn new(
        messages: Vec<Message>,
        permit: OwnedSemaphorePermit,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        (Self { messages, answer, _permit: permit }, answered)
    }

    /// Answers with an error that is common to several batches.
    pub(crate) fn fail(self, error: &Error) {
        self.answer(Err(Error::new(error.kind(), error.to_string())));
    }

    pub(crate) fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer); // the caller may be gone
    }
}

/// A budget for the bytes of messages in memory.
pub(crate) struct MemoryBudget {
    permits: Arc<Semaphore>,
    bytes_max: usize,
}

impl MemoryBudget {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.clamp(1 << 20, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { permits: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    /// Waits until a batch fits into the budget.
    pub(crate) async fn admit(
        &self,
        messages: Vec<Message>,
    ) -> Result<(Append, oneshot::Receiver<Answer>), Error> {
        // A batch larger than the whole budget waits until nothing else uses it.
        let bytes = batch_bytes(&messages).min(self.bytes_max);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let permit = self.permits.clone().acquire_many_owned(permits).await.map_err(|_| closed())?;
        Ok(Append::new(messages, permit))
    }

    /// Refuses further batches.
    pub(crate) fn close(&self) {
        self.permits.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.permits.is_closed()
    }
}

/// Bytes of a batch in the budget.
pub(crate) fn batch_bytes(messages: &[Message]) -> usize {
    let names = |message: &Message| message.topic.len() + message.channel.len();
    messages.iter().map(|message| message.body.len() + names(message) + MESSAGE_EXTRA_BYTES).sum()
}

/// The error of an archive that accepts no appends.
pub(crate) fn closed() -> Error {
    Error::unavailable("the archive takes no messages: it is closed or read-only")
}
