//! Distributes work between servers: one of them reads what is due and publishes hints, and each server receives some of them.
//! While the queue between the servers is unavailable, each server reads for itself.

use std::{collections::HashMap, sync::Arc};

use restante_core::{Error, ErrorKind};
use restante_mail::queue::{DueItem, QueuedId};
use restante_queue::{Dealer, PUBLISH_ITEMS_MAX, Received, Work};

use super::hints;

/// The most hints that are remembered, so that a hint is not published again each time its recipient is read.
const DEALT_MAX: usize = 200_000;

/// Which servers get the work that this server reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Only this server: each server looks for its own work.
    Own,
    /// All servers: this one reads what is due.
    Deals,
    /// Another server reads what is due. This one only looks for what is overdue.
    Receives,
}

pub(super) struct Dealing {
    work: Option<Arc<dyn Work>>,
    seen: Option<Dealer>,
    /// When hints were published, in seconds since 1970.
    dealt: HashMap<QueuedId, u64>,
}

impl Dealing {
    pub(super) fn new(work: Option<Arc<dyn Work>>) -> Self {
        Self { work, seen: None, dealt: HashMap::new() }
    }

    /// The current mode, and whether everything must be read again because the distributing server has changed.
    pub(super) fn look(&mut self) -> (Mode, bool) {
        let Some(work) = &self.work else { return (Mode::Own, false) };
        let dealer = work.dealer();
        let is_other = self.seen.replace(dealer) != Some(dealer);
        if is_other {
            self.dealt.clear();
        }
        let mode = match dealer {
            Dealer::Unknown => Mode::Own,
            Dealer::ThisServer(_) => Mode::Deals,
            Dealer::AnotherServer => Mode::Receives,
        };
        (mode, is_other)
    }

    /// Publishes hints about recipients. Recipients with a hint that was published since `known` (seconds since 1970) are left out;
    /// returns how many these are.
    ///
    /// # Errors
    /// Those of the queue. Recipients without a published hint must be read again.
    pub(super) async fn deal(&mut self, items: &[DueItem], known: u64, now: u64) -> Result<usize, Error> {
        let Some(work) = &self.work else { return Ok(0) };
        let is_known = |item: &&DueItem| self.dealt.get(&item.id).is_some_and(|dealt| *dealt >= known);
        let (left_out, new): (Vec<&DueItem>, Vec<&DueItem>) = items.iter().partition(is_known);
        for chunk in new.chunks(PUBLISH_ITEMS_MAX) {
            let encoded: Vec<_> = chunk.iter().map(|item| hints::encode(item)).collect();
            work.publish(&encoded).await?;
            if self.dealt.len() >= DEALT_MAX {
                self.dealt.clear(); // some are published twice
            }
            self.dealt.extend(chunk.iter().map(|item| (item.id, now)));
        }
        Ok(left_out.len())
    }

    /// Forgets hints that were published before a time.
    pub(super) fn forget(&mut self, before: u64) {
        self.dealt.retain(|_, dealt| *dealt >= before);
    }
}

/// Whether a queue is only full, and accepts more once servers have taken some.
pub(super) fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::Full
}

/// Waits for a hint.
pub(super) async fn next(work: Option<&Arc<dyn Work>>) -> Received {
    match work {
        Some(work) => work.next().await,
        None => std::future::pending().await,
    }
}
