//! Checks periodically that the server has all published messages, long before retention may remove them.

use std::{sync::Arc, time::Duration};

use restante_core::{Clock, MessageHash, SystemClock, Timestamp};

use super::traffic::{Book, CONTENT_TOPIC};
use crate::peers::history::History;

/// Shares of the retention time: the interval of checks, and the age below which a message is left for the next check.
const EVERY: f64 = 0.25;
const SETTLED: f64 = 0.125;

/// The result of the checks.
#[derive(Clone, Debug, Default)]
pub(super) struct Audited {
    pub(super) looked_for: u64,
    pub(super) lost: u64,
    pub(super) audits: u64,
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
}

/// Checks until publishing has ended and everything was checked.
pub(super) async fn audit(history: Arc<History>, book: Arc<Book>, keep: Duration) -> Audited {
    let mut audited = Audited::default();
    loop {
        tokio::time::sleep(keep.mul_f64(EVERY)).await;
        let settled = SystemClock.now().nanos() - keep.mul_f64(SETTLED).as_nanos() as i64;
        let published = book.take_before(Timestamp(settled));
        look_for(&history, &published, &mut audited).await;
        if book.is_finished() {
            return audited;
        }
    }
}

async fn look_for(history: &History, published: &[(Timestamp, MessageHash)], audited: &mut Audited) {
    let times = || published.iter().map(|(timestamp, _)| *timestamp);
    let Some((first, last)) = times().min().zip(times().max()) else { return };
    audited.audits += 1;
    audited.looked_for += published.len() as u64;
    match history.hashes(CONTENT_TOPIC, first, Some(Timestamp(last.nanos() + 1))).await {
        Ok(kept) => {
            let is_lost = |hash: &MessageHash| !kept.contains(hash);
            audited.lost += published.iter().filter(|(_, hash)| is_lost(hash)).count() as u64;
        }
        Err(error) => {
            audited.failed += 1;
            audited.first_error.get_or_insert_with(|| format!("{error:#}"));
        }
    }
}
