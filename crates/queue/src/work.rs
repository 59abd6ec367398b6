//! Items as servers receive them.

use bytes::Bytes;

/// An item that this server received.
#[derive(Debug)]
pub struct Received {
    /// The item.
    pub item: Bytes,
    /// Its ticket, to be used when the work is done. When it is dropped, the item is returned.
    pub ticket: Ticket,
}

/// What happens to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Done,
    Returned,
    Rejected,
}

type Settle = Box<dyn FnOnce(Settlement) + Send + Sync>;

/// Reports the outcome of an item. Dropping it returns the item.
pub struct Ticket(Option<Settle>);

impl Ticket {
    /// `settle` is called once, and must not block.
    pub(crate) fn new(settle: impl FnOnce(Settlement) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(settle)))
    }

    /// The item is done, and is not delivered again.
    pub fn done(mut self) {
        self.settle(Settlement::Done);
    }

    /// No server can use the item: it is dead.
    pub fn reject(mut self) {
        self.settle(Settlement::Rejected);
    }

    fn settle(&mut self, settlement: Settlement) {
        if let Some(settle) = self.0.take() {
            settle(settlement);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.settle(Settlement::Returned);
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket")
    }
}
