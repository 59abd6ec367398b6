//! Appends that wait for a writer, in bounded room.

use std::sync::Arc;

use restante_core::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{Appended, Error, Message};

/// What a message counts for beside its body and names: what it takes in memory and in a record.
const MESSAGE_EXTRA_BYTES: usize = 128;

/// What an append is answered.
pub(crate) type Answer = Result<Vec<Appended>, Error>;

/// A batch and whoever waits for the answer.
pub(crate) struct Append {
    pub(crate) messages: Vec<Message>,
    answer: oneshot::Sender<Answer>,
    /// Given back when the batch is answered.
    _room: OwnedSemaphorePermit,
}

impl Append {
    /// A batch that was given room, and where its answer comes out.
    pub(crate) fn new(
        messages: Vec<Message>,
        room: OwnedSemaphorePermit,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        (Self { messages, answer, _room: room }, answered)
    }

    /// Answers with an error that others get as well.
    pub(crate) fn fail(self, error: &Error) {
        self.answer(Err(Error::new(error.kind(), error.to_string())));
    }

    pub(crate) fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer); // who asked may have gone away
    }
}

/// Room for so many bytes of messages.
pub(crate) struct Room {
    permits: Arc<Semaphore>,
    bytes_max: usize,
}

impl Room {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.clamp(1 << 20, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self { permits: Arc::new(Semaphore::new(bytes_max)), bytes_max }
    }

    /// Waits for room for a batch.
    pub(crate) async fn admit(
        &self,
        messages: Vec<Message>,
    ) -> Result<(Append, oneshot::Receiver<Answer>), Error> {
        // A batch larger than the whole room waits until the room is empty.
        let bytes = batch_bytes(&messages).min(self.bytes_max);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = self.permits.clone().acquire_many_owned(permits).await.map_err(|_| closed())?;
        Ok(Append::new(messages, room))
    }

    /// Admits nobody any more.
    pub(crate) fn close(&self) {
        self.permits.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.permits.is_closed()
    }
}

/// What a batch counts for.
pub(crate) fn batch_bytes(messages: &[Message]) -> usize {
    let names = |message: &Message| message.topic.len() + message.channel.len();
    messages.iter().map(|message| message.body.len() + names(message) + MESSAGE_EXTRA_BYTES).sum()
}

/// What an archive that takes no appends answers.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the archive takes no messages: it is closed or read-only")
}
