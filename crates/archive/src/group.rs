//! Group commit: a bounded queue of appends, from which a writer takes all waiting appends, so that batches grow with the load.

use tokio::sync::mpsc;

use crate::{
    Message,
    message::check_batch,
    waiting::{Answer, Append, MemoryBudget, batch_bytes, closed},
};

/// The most appends that wait; their bytes are bounded too.
const APPENDS_WAITING_MAX: usize = 4_096;
/// An entry of the queue.
enum Item {
    Append(Append),
    Close,
}

/// The sending end of the queue.
pub(crate) struct Queue {
    sender: mpsc::Sender<Item>,
    budget: MemoryBudget,
}

/// The receiving end of the queue, for a writer.
pub(crate) struct Waiting {
    receiver: mpsc::Receiver<Item>,
    /// The append that did not fit into the last group.
    next: Option<Append>,
    is_closed: bool,
}

/// The limits of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupLimit {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

/// A queue that holds at most this many bytes of messages.
pub(crate) fn queue(bytes_max: usize) -> (Queue, Waiting) {
    let (sender, receiver) = mpsc::channel(APPENDS_WAITING_MAX);
    let queue = Queue { sender, budget: MemoryBudget::new(bytes_max) };
    (queue, Waiting { receiver, next: None, is_closed: false })
}

impl Queue {
    /// Waits for space, queues a batch and waits for its result.
    pub(crate) async fn append(&self, messages: Vec<Message>) -> Answer {
        check_batch(&messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let (append, answered) = self.budget.admit(messages).await?;
        self.sender.send(Item::Append(append)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    /// Accepts no more appends, and ends the writers once they have stored those that are queued.
    pub(crate) async fn close(&self) {
        self.budget.close();
        let _ = self.sender.send(Item::Close).await; // a writer that has ended needs no request
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.budget.is_closed()
    }
}

impl Waiting {
    /// Waits for an append and takes those queued after it too, up to the limit; `None` when the queue was closed.
    #[cfg(any(feature = "postgres", feature = "cassandra"))]
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

    /// What is available without waiting: the append that did not fit into the last group, or the end.
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

/// Answers each append of a group with its part of the answers, or with the common error.
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
