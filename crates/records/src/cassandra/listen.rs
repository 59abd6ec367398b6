//! Polls the feed every second for commits of other servers. The same task announces to others that this server has the records
//! open, and settles positions whose commits were never applied.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior};
use tracing::debug;

use super::Shared;
use crate::{Error, Position, TOUCHED_MAX};

/// How often the feed is polled.
const POLL: Duration = Duration::from_secs(1);
/// This server renews its announcement to others once in this many polls.
const PRESENT_POLLS: u32 = 5;
/// How long a position may stay open, in addition to the longest time that a commit takes.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// An open position: its commit may still be applied.
#[derive(Clone, Copy, Debug)]
struct Open {
    first: Position,
    /// The last position that was taken when the first one was seen.
    last: Position,
    since: Instant,
}

/// Polls the feed until the store is closed.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut after = shared.announcements.seen();
    let mut open = None;
    for poll in 0_u32.. {
        ticks.tick().await;
        if let Err(error) = poll_once(&shared, &mut after, &mut open).await {
            debug!(%error, "commits of other servers can't be read yet");
        }
        if poll % PRESENT_POLLS == 0
            && let Err(error) = shared.be_present().await
        {
            debug!(%error, "can't announce this server to others");
        }
    }
}

async fn poll_once(shared: &Shared, after: &mut Position, open: &mut Option<Open>) -> Result<(), Error> {
    let state = shared.read_state().await?;
    shared.restores.store(state.restores, Ordering::Release);
    shared.check_epoch(state.epoch)?;
    loop {
        let page = shared.read_touched(*after, TOUCHED_MAX).await?;
        for one in &page.touched {
            shared.announcements.heard(one.account, one.revision, one.position);
        }
        *after = page.seen;
        if let Some(position) = page.open {
            return look_at_open(shared, position, open).await;
        }
        if page.touched.len() < TOUCHED_MAX {
            *open = None;
            return Ok(());
        }
    }
}

/// Settles positions that have been open for longer than a commit takes.
async fn look_at_open(shared: &Shared, first: Position, open: &mut Option<Open>) -> Result<(), Error> {
    let patience = shared.database.patience() + OPEN_MAX;
    match open {
        Some(known) if first <= known.last => {
            known.first = first;
            if known.since.elapsed() >= patience {
                shared.settle(known.first, known.last).await?;
                *open = None;
            }
        }
        _ => {
            let last = shared.last_counter(shared.restores()).await?;
            let last = last.map_or(first, |counter| counter.last()).max(first);
            *open = Some(Open { first, last, since: Instant::now() });
        }
    }
    Ok(())
}
