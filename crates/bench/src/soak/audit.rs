//! Looks, again and again, whether the server has what was published, long before it may remove it.

use std::{sync::Arc, time::Duration};

use restante_core::{Clock, MessageHash, SystemClock, Timestamp};

use super::traffic::{Book, CONTENT_TOPIC};
use crate::peers::history::History;

/// Shares of the time that messages are kept: how often is looked, and how young a message may be to be left for the next
/// time.
const EVERY: f64 = 0.25;
const SETTLED: f64 = 0.125;

/// What was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Audited {
    pub(super) looked_for: u64,
    pub(super) lost: u64,
    pub(super) audits: u64,
    pub(super) failed: u64,
    pub(super) complaint: Option<String>,
}

/// Looks until nothing more is published and everything was looked for.
pub(super) async fn audit(history: Arc<History>, book: Arc<Book>, keep: Duration) -> Audited {
    let mut audited = Audited::default();
    loop {
        tokio::time::sleep(keep.mul_f64(EVERY)).await;
        let settled = SystemClock.now().nanos() - keep.mul_f64(SETTLED).as_nanos() as i64;
        let wanted = book.take_before(Timestamp(settled));
        look_for(&history, &wanted, &mut audited).await;
        if book.is_finished() {
            return audited;
        }
    }
}

async fn look_for(history: &History, wanted: &[(Timestamp, MessageHash)], audited: &mut Audited) {
    let times = || wanted.iter().map(|(timestamp, _)| *timestamp);
    let Some((first, last)) = times().min().zip(times().max()) else { return };
    audited.audits += 1;
    audited.looked_for += wanted.len() as u64;
    match history.hashes(CONTENT_TOPIC, first, Some(Timestamp(last.nanos() + 1))).await {
        Ok(kept) => {
            let is_lost = |hash: &MessageHash| !kept.contains(hash);
            audited.lost += wanted.iter().filter(|(_, hash)| is_lost(hash)).count() as u64;
        }
        Err(error) => {
            audited.failed += 1;
            audited.complaint.get_or_insert_with(|| format!("{error:#}"));
        }
    }
}
