//! Group commit: a bounded queue of appends, from which a writer takes whatever waits, so that load makes batches by itself.

use std::sync::Arc;

use restante_core::ErrorKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{Appended, Error, Message, message::check_batch};

/// Appends that wait at most, beside the bound of their bytes.
const APPENDS_WAITING_MAX: usize = 4_096;
/// What a message counts for in the queue beside its body.
const MESSAGE_EXTRA_BYTES: usize = 128;

/// What an append is answered.
pub(crate) type Answer = Result<Vec<Appended>, Error>;

/// A batch and whoever waits for the answer.
pub(crate) struct Append {
    pub(crate) messages: Vec<Message>,
    answer: oneshot::Sender<Answer>,
    /// Room in the queue, given back when the batch is answered.
    _room: OwnedSemaphorePermit,
}

impl Append {
    /// Answers with an error that others get as well.
    pub(crate) fn fail(self, error: &Error) {
        self.answer(Err(Error::new(error.kind(), error.to_string())));
    }

    pub(crate) fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer); // who asked may have gone away
    }
}

/// What stands in the queue.
enum Item {
    Append(Append),
    Close,
}

/// Where appends come in.
pub(crate) struct Queue {
    sender: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
    bytes_max: usize,
}

/// Where a writer takes them out.
pub(crate) struct Waiting {
    receiver: mpsc::Receiver<Item>,
    /// What did not fit into the last group.
    next: Option<Append>,
    is_closed: bool,
}

/// How large a group gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLimit {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// A queue that holds at most so many bytes of messages.
pub(crate) fn queue(bytes_max: usize) -> (Queue, Waiting) {
    let (sender, receiver) = mpsc::channel(APPENDS_WAITING_MAX);
    let bytes_max = bytes_max.clamp(1 << 20, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
    let queue = Queue { sender, room: Arc::new(Semaphore::new(bytes_max)), bytes_max };
    (queue, Waiting { receiver, next: None, is_closed: false })
}

impl Queue {
    /// Waits for room, has a batch stored and gives its answer.
    pub(crate) async fn append(&self, messages: Vec<Message>) -> Answer {
        check_batch(&messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        // A batch larger than the whole queue waits until the queue is empty.
        let bytes = batch_bytes(&messages).min(self.bytes_max);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = self.room.clone().acquire_many_owned(permits).await.map_err(|_| closed())?;
        let (answer, answered) = oneshot::channel();
        let append = Append { messages, answer, _room: room };
        self.sender.send(Item::Append(append)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Takes no more appends and has the writers end once they have stored what was taken.
    pub(crate) async fn close(&self) {
        self.room.close();
        let _ = self.sender.send(Item::Close).await; // a writer that has ended needs no telling
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.room.is_closed()
    }
}

impl Waiting {
    /// Waits for an append and takes those behind it too, up to the limit; `None` when the queue was closed.
    #[cfg(feature = "postgres")]
    pub(crate) async fn group(&mut self, limit: GroupLimit) -> Option<Vec<Append>> {
        let item = match self.at_hand() {
            Some(item) => item,
            None => self.receiver.recv().await.unwrap_or(Item::Close),
        };
        self.begin_with(item, limit)
    }

    /// The same for a thread that may block.
    #[cfg(feature = "sqlite")]
    pub(crate) fn group_blocking(&mut self, limit: GroupLimit) -> Option<Vec<Append>> {
        let item = match self.at_hand() {
            Some(item) => item,
            None => self.receiver.blocking_recv().unwrap_or(Item::Close),
        };
        self.begin_with(item, limit)
    }

    /// What need not be waited for: what did not fit into the last group, or the end.
    fn at_hand(&mut self) -> Option<Item> {
        let next = self.next.take().map(Item::Append);
        next.or(self.is_closed.then_some(Item::Close))
    }

    fn begin_with(&mut self, item: Item, limit: GroupLimit) -> Option<Vec<Append>> {
        match item {
            Item::Append(first) => Some(self.fill(first, limit)),
            Item::Close => {
                self.is_closed = true;
                None
            }
        }
    }

    fn fill(&mut self, first: Append, limit: GroupLimit) -> Vec<Append> {
        let mut messages = first.messages.len();
        let mut bytes = batch_bytes(&first.messages);
        let mut group = vec![first];
        while messages < limit.messages && bytes < limit.bytes {
            match self.receiver.try_recv() {
                Ok(Item::Append(append)) => {
                    messages += append.messages.len();
                    bytes += batch_bytes(&append.messages);
                    if messages > limit.messages {
                        self.next = Some(append);
                        break;
                    }
                    group.push(append);
                }
                Ok(Item::Close) => {
                    self.is_closed = true;
                    break;
                }
                Err(_) => break,
            }
        }
        group
    }
}

/// Answers each append of a group with its part of the answers, or with the error of all.
pub(crate) fn answer_all(group: Vec<Append>, result: Answer) {
    match result {
        Ok(answers) => {
            let mut answers = answers.into_iter();
            for append in group {
                let own = answers.by_ref().take(append.messages.len()).collect();
                append.answer(Ok(own));
            }
        }
        Err(error) => group.into_iter().for_each(|append| append.fail(&error)),
    }
}

/// What a batch counts for in the queue.
pub(crate) fn batch_bytes(messages: &[Message]) -> usize {
    let names = |message: &Message| message.topic.len() + message.channel.len();
    messages.iter().map(|message| message.body.len() + names(message) + MESSAGE_EXTRA_BYTES).sum()
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the archive takes no messages: it is closed or read-only")
}
