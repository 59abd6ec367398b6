use restante_archive::Message;
use tokio::sync::mpsc;

use crate::{
    Error, Findings, Owner,
    convert::{Converted, Refusal},
};

/// The most messages of a batch: enough to make the sync of each batch cheap per message.
const BATCH_MESSAGES_MAX: usize = 4_000;
/// A batch ends with the message that brings its bodies to this many bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// A batch ends after this many rows, including refused ones, so that progress is visible.
const BATCH_ROWS_MAX: u64 = 20_000;
/// Batches that are read ahead.
const BATCHES_AHEAD: usize = 2;

/// An open archive of another server. Its own thread or task reads ahead and ends when this is dropped.
#[derive(Debug)]
pub struct Source {
    /// The server that wrote it.
    pub owner: Owner,
    /// Its size.
    pub extent: Option<Extent>,
    batches: mpsc::Receiver<Read>,
}

/// The size of an archive, in the unit of [`Batch::done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Rows, exactly or approximately.
    Rows(u64),
    /// Bytes.
    Bytes(u64),
}

/// A part of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The messages.
    pub messages: Vec<Message>,
    /// Rows that can't be imported.
    pub refused: Findings,
    /// Messages with another stored hash; see [`crate::Options::rehash`].
    pub renamed: Findings,
    /// The position after this part, if known.
    pub after: Option<String>,
    /// How much of [`Source::extent`] was read so far.
    pub done: u64,
}

/// A part that was read; `None` at the end.
pub(crate) type Read = Result<Option<Batch>, Error>;

impl Source {
    /// A source, and the sender for its reader.
    pub(crate) fn new(owner: Owner, extent: Option<Extent>) -> (Self, mpsc::Sender<Read>) {
        let (put, batches) = mpsc::channel(BATCHES_AHEAD);
        (Self { owner, extent, batches }, put)
    }

    /// The next part; `None` at the end.
    ///
    /// # Errors
    /// When reading fails. The parts before remain valid.
    pub async fn next(&mut self) -> Result<Option<Batch>, Error> {
        match self.batches.recv().await {
            Some(read) => read,
            None => Err(Error::internal("the reader ended before the archive did")),
        }
    }
}

/// Collects rows into batches.
#[derive(Default)]
pub(crate) struct Gather {
    batch: Batch,
    bytes: usize,
    rows: u64,
}

impl Gather {
    /// Adds the result of a row, which `row` names in messages.
    pub(crate) fn add(&mut self, converted: Result<Converted, Refusal>, row: impl FnOnce() -> String) {
        self.rows += 1;
        let message = match converted {
            Ok(Converted::SameHash(message)) => message,
            Ok(Converted::Rehashed(message, why)) => {
                self.batch.renamed.add(|| format!("{}: {why}", row()));
                message
            }
            Err(refusal) => return self.batch.refused.add(|| format!("{}: {refusal}", row())),
        };
        self.bytes += message.body.len();
        self.batch.messages.push(message);
    }

    /// Adds damage that concerns no single row.
    pub(crate) fn add_damage(&mut self, damage: Findings) {
        self.batch.refused.extend(damage);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.batch.messages.len() >= BATCH_MESSAGES_MAX
            || self.bytes >= BATCH_BYTES_MAX
            || self.rows >= BATCH_ROWS_MAX
    }

    /// Returns the batch and begins the next one.
    pub(crate) fn take(&mut self, after: Option<String>, done: u64) -> Batch {
        let Self { batch, .. } = std::mem::take(self);
        Batch { after, done, ..batch }
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_disappears_is_an_error() {
        let (mut source, put) = Source::new(Owner::Nwaku, None);
        put.send(Ok(None)).await.unwrap();
        drop(put);
        assert_eq!(source.next().await.unwrap(), None);
        assert_eq!(source.next().await.unwrap_err().kind(), ErrorKind::Internal);
    }
}
