use restante_archive::Message;
use restante_core::ErrorKind;
use tokio::sync::mpsc;

use crate::{
    Error, Noted, Owner,
    convert::{Taken, Unfit},
};

/// Messages in one batch: enough that a sync to disk costs little for each.
const BATCH_MESSAGES_MAX: usize = 4_000;
/// A batch ends with the message that brings its bodies to this many bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// A batch ends after so many rows, whatever became of them, so that somebody who waits sees something happen.
const BATCH_ROWS_MAX: u64 = 20_000;
/// Batches that wait to be taken.
const BATCHES_AHEAD: usize = 2;

/// An opened archive of another server. It is read ahead by a thread or task of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Source {
    /// Whose archive it is.
    pub owner: Owner,
    /// How much there is to read.
    pub extent: Option<Extent>,
    batches: mpsc::Receiver<Read>,
}

/// How much there is to read, in what [`Batch::done`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// So many rows, or about so many.
    Rows(u64),
    /// So many bytes.
    Bytes(u64),
}

/// A piece of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What can be stored.
    pub messages: Vec<Message>,
    /// What can't.
    pub refused: Noted,
    /// Messages whose stored hash was another one; see [`crate::Options::rehash`].
    pub renamed: Noted,
    /// Where to go on behind this piece; `None` when nothing in it says that.
    pub after: Option<String>,
    /// How much was read until here, of [`Source::extent`].
    pub done: u64,
}

/// What a reader hands over; `None` says that all was read.
pub(crate) type Read = Result<Option<Batch>, Error>;

impl Source {
    /// A source, and where its reader puts what it reads.
    pub(crate) fn new(owner: Owner, extent: Option<Extent>) -> (Self, mpsc::Sender<Read>) {
        let (put, batches) = mpsc::channel(BATCHES_AHEAD);
        (Self { owner, extent, batches }, put)
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// When the archive can't be read on. What was read until then is good.
    pub async fn next(&mut self) -> Result<Option<Batch>, Error> {
        match self.batches.recv().await {
            Some(read) => read,
            None => Err(Error::new(ErrorKind::Internal, "the reader ended before the archive did")),
        }
    }
}

/// Puts rows together to batches.
#[derive(Default)]
pub(crate) struct Gather {
    batch: Batch,
    bytes: usize,
    rows: u64,
}

impl Gather {
    /// Adds what became of a row. `row` names it, for people.
    pub(crate) fn add(&mut self, taken: Result<Taken, Unfit>, row: impl FnOnce() -> String) {
        self.rows += 1;
        let message = match taken {
            Ok(Taken::AsNamed(message)) => message,
            Ok(Taken::Renamed(message, why)) => {
                self.batch.renamed.add(|| format!("{}: {why}", row()));
                message
            }
            Err(unfit) => return self.batch.refused.add(|| format!("{}: {unfit}", row())),
        };
        self.bytes += message.body.len();
        self.batch.messages.push(message);
    }

    /// Adds damage that can't be told by row.
    pub(crate) fn add_damage(&mut self, damage: Noted) {
        self.batch.refused.extend(damage);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.batch.messages.len() >= BATCH_MESSAGES_MAX
            || self.bytes >= BATCH_BYTES_MAX
            || self.rows >= BATCH_ROWS_MAX
    }

    /// Takes the batch and begins the next one.
    pub(crate) fn take(&mut self, after: Option<String>, done: u64) -> Batch {
        let Self { batch, .. } = std::mem::take(self);
        Batch { after, done, ..batch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_vanishes_is_no_end() {
        let (mut source, put) = Source::new(Owner::Nwaku, None);
        put.send(Ok(None)).await.unwrap();
        drop(put);
        assert_eq!(source.next().await.unwrap(), None);
        assert_eq!(source.next().await.unwrap_err().kind(), ErrorKind::Internal);
    }
}
