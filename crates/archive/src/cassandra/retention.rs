//! Retention: drops the tables of whole epochs. No row is deleted, so reads never scan tombstones.

use restante_core::Timestamp;
use tracing::info;

use super::{
    Shared,
    connect::Applied,
    epochs::{Epoch, Stage},
    marks::{self, Count},
    schema::{self, STATE, Statement},
};
use crate::{
    Error, Pruned, Retention,
    retention::{LeftByPrune, PartWords},
};

/// Attempts to change the list of epochs while other servers change it.
const ATTEMPTS: usize = 20;
/// How long ago an epoch without messages must have ended, and been opened, to be removed: late messages may still arrive. Half
/// of it is how far the clocks of servers may differ (see `may_be_closed` in `append.rs`).
pub(super) const EMPTY_SECONDS: i64 = 86_400;

/// An epoch and its counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) epoch: Epoch,
    pub(super) count: Count,
}

/// Removes what `policy` doesn't keep.
pub(super) async fn prune(shared: &Shared, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
    shared.sync().await?;
    for epoch in &shared.catalog.list().epochs {
        // Left behind by an interrupted prune.
        if epoch.is_to_be_finished_by(shared.server, shared.now().0) {
            match epoch.stage {
                Stage::Making => shared.make_table(epoch.id).await?,
                Stage::Open => {}
                Stage::Dropping => drop_epoch(shared, epoch).await?,
            }
        }
    }
    shared.sync().await?;
    let mut left = held(shared).await?;
    let mut pruned = Pruned::default();
    for held in choose(&left, policy, now) {
        let epoch = &held.epoch;
        let windows = shared.catalog.contents(epoch.id).windows.clone();
        let is_taken_out = match held.count.messages {
            0 => take_out_if_empty(shared, epoch).await?,
            _ => take_out(shared, epoch).await?,
        };
        if !is_taken_out {
            continue; // another server drops it, or it is not empty any more
        }
        left.retain(|other| other.epoch.id != epoch.id);
        // Counted now, when no new append stores into it.
        let count = marks::sum(shared.count(epoch, &windows, false).await?.values());
        drop_epoch(shared, epoch).await?;
        info!(table = schema::table(epoch.id), messages = count.messages, "epoch removed");
        shared.metrics.pruned_messages.inc_by(count.messages);
        pruned.messages += count.messages;
        pruned.disk_bytes += count.disk_bytes();
        pruned.parts += 1;
    }
    *shared.left_by_prune.lock() = Left { held: left };
    Ok(pruned)
}

const EPOCH: PartWords =
    PartWords { one: "an epoch", many: "epochs", settings: "archive.cassandra.epoch_seconds" };

/// What the last prune has left.
#[derive(Debug, Default)]
pub(super) struct Left {
    held: Vec<Held>,
}

impl Left {
    /// Describes which epoch stays although the policy may remove some of its messages, and why; `None` when there is none.
    pub(super) fn not_removed(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        let oldest = self.held.iter().find(|held| held.count.messages > 0)?;
        let messages: u64 = self.held.iter().map(|held| held.count.messages).sum();
        let bytes: u64 = self.held.iter().map(|held| held.count.disk_bytes()).sum();
        let left = LeftByPrune {
            name: schema::table(oldest.epoch.id),
            first: Timestamp(oldest.count.oldest.unwrap_or(oldest.epoch.first_ns)),
            messages: oldest.count.messages,
            disk_bytes: oldest.count.disk_bytes(),
            all_messages: messages,
            all_disk_bytes: bytes,
        };
        left.not_removed(policy, now, &EPOCH)
    }
}

/// All open epochs with what they have, in the order of time.
pub(super) async fn held(shared: &Shared) -> Result<Vec<Held>, Error> {
    let mut held = Vec::new();
    for epoch in shared.catalog.list().open() {
        let windows = &shared.catalog.contents(epoch.id).windows;
        match shared.count(epoch, windows, !shared.is_read_only).await {
            Ok(counts) => held.push(Held { epoch: *epoch, count: marks::sum(counts.values()) }),
            Err(error) if shared.is_open(epoch.id).await? => return Err(error),
            Err(_) => {} // another server drops it
        }
    }
    Ok(held)
}

/// The epochs that `policy` removes, oldest first.
///
/// An epoch is removed only when the policy keeps none of its messages, so up to one epoch more than configured is kept; and the
/// epoch that has the newest messages stays, unless it is too old. Epochs that are over and have stayed empty are removed too.
fn choose(held: &[Held], policy: &Retention, now: Timestamp) -> Vec<Held> {
    let mut kept_bytes: u64 = held.iter().map(|held| held.count.disk_bytes()).sum();
    let mut kept_messages: u64 = held.iter().map(|held| held.count.messages).sum();
    let mut chosen = Vec::new();
    for held in held {
        let end_ns = held.epoch.end_ns;
        let ended_before = |kept: Timestamp| end_ns <= kept.0 && end_ns != i64::MAX;
        let behind = kept_messages - held.count.messages;
        let is_too_old = policy.oldest_kept(now).is_some_and(ended_before);
        let is_too_many = policy.capacity.is_some_and(|capacity| behind >= capacity);
        let is_too_big = policy.size_bytes.is_some_and(|size| kept_bytes > size) && behind > 0;
        let day_ago = now.plus_seconds(-EMPTY_SECONDS);
        let goes = match held.count.messages {
            0 => is_too_old || (ended_before(day_ago) && held.epoch.since_ns <= day_ago.0),
            _ => is_too_old || is_too_many || is_too_big,
        };
        if !goes && held.count.messages > 0 {
            break;
        }
        if goes {
            kept_bytes = kept_bytes.saturating_sub(held.count.disk_bytes());
            kept_messages = behind;
            chosen.push(*held);
        }
    }
    chosen
}

/// Changes the list so that the epoch is no longer read or written; returns whether this server has changed it.
async fn take_out(shared: &Shared, epoch: &Epoch) -> Result<bool, Error> {
    for _ in 0..ATTEMPTS {
        let list = shared.catalog.list();
        if list.get(epoch.id).is_none_or(|found| found.stage != Stage::Open || found.end_ns != epoch.end_ns) {
            return Ok(false);
        }
        let wanted = list.with_stage(epoch.id, Stage::Dropping, shared.server, shared.now().0);
        let applied = shared.replace_list(&list, &wanted).await?;
        shared.sync().await?;
        if applied == Applied::Yes {
            return Ok(true);
        }
    }
    Err(busy())
}

/// Takes out an epoch that was counted as empty, unless it has messages by now; returns whether this server took it out.
///
/// It is closed first. Appends that begin later wait, and one in progress reads the list of epochs after its writes, and succeeds
/// only if the epoch was still open. So every acknowledged message is there when the epoch is counted again.
async fn take_out_if_empty(shared: &Shared, epoch: &Epoch) -> Result<bool, Error> {
    let list = shared.catalog.list();
    if list.get(epoch.id) != Some(epoch) {
        return Ok(false);
    }
    let closed = list.with_stage(epoch.id, Stage::Making, shared.server, shared.now().0);
    let is_closed = shared.replace_list(&list, &closed).await? == Applied::Yes;
    if is_closed && is_empty(shared, epoch).await? {
        let wanted = closed.with_stage(epoch.id, Stage::Dropping, shared.server, shared.now().0);
        let applied = shared.replace_list(&closed, &wanted).await?;
        if applied == Applied::Yes {
            shared.sync().await?;
            return Ok(true);
        }
    }
    open_again(shared, epoch).await?;
    Ok(false)
}

/// Whether an epoch has no messages, by its rows: counts may have been made before it was closed.
async fn is_empty(shared: &Shared, epoch: &Epoch) -> Result<bool, Error> {
    for window in shared.windows_of(epoch.id).await? {
        if shared.count_window(epoch.id, window).await?.messages > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reopens an epoch that this server closed, perhaps with a change whose outcome is unknown.
async fn open_again(shared: &Shared, epoch: &Epoch) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        shared.sync().await?;
        let list = shared.catalog.list();
        let found = list.get(epoch.id);
        let is_closed =
            found.is_some_and(|found| found.stage == Stage::Making && found.server == shared.server);
        if !is_closed {
            return Ok(());
        }
        shared.make_table(epoch.id).await?;
    }
    Err(busy())
}

/// Drops the table of an epoch that was taken out, and its entries in the catalogue.
async fn drop_epoch(shared: &Shared, epoch: &Epoch) -> Result<(), Error> {
    let drop = format!("DROP TABLE IF EXISTS {}.{}", shared.database.keyspace(), schema::table(epoch.id));
    {
        let _one = shared.changing_schema.lock().await;
        shared.database.change_schema("drop the table of an epoch", &drop).await?;
    }
    let what = "forget an epoch";
    shared.database.write(what, Statement::DeleteCatalog, (epoch.id,)).await?;
    shared.database.write(what, Statement::DeleteWindows, (epoch.id,)).await?;
    shared.database.write(what, Statement::DeleteHeads, (STATE, epoch.id)).await?;
    shared.marks.forget(epoch.id);
    for _ in 0..ATTEMPTS {
        let list = shared.catalog.list();
        if list.get(epoch.id).is_none() {
            return Ok(());
        }
        shared.replace_list(&list, &list.without(epoch.id)).await?;
        shared.sync().await?;
    }
    Err(busy())
}

fn busy() -> Error {
    Error::unavailable("other servers change the list of epochs all the time: try again later")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(days: i64) -> Vec<Held> {
        let epoch = |n: i64| Epoch {
            id: n as i32,
            first_ns: n * 100,
            end_ns: (n + 1) * 100,
            window_ns: 10,
            stage: Stage::Open,
            server: [0; 16],
            since_ns: 0,
        };
        let count = Count { messages: 10, body_bytes: 500, oldest: None, newest: None };
        (0..days).map(|n| Held { epoch: epoch(n), count }).collect()
    }

    fn chosen(held: &[Held], policy: &str, now: i64) -> Vec<i32> {
        choose(held, &policy.parse().unwrap(), Timestamp(now)).iter().map(|held| held.epoch.id).collect()
    }

    #[test]
    fn nothing_goes_that_the_policy_keeps() {
        assert_eq!(chosen(&days(5), "none", i64::MAX), [0_i32; 0]);
        assert_eq!(chosen(&days(5), "capacity:35", 0), [0]);
        assert_eq!(chosen(&days(5), "capacity:30", 0), [0, 1]);
        assert_eq!(chosen(&days(5), "time:1", 1_000_000_250), [0, 1]);
        assert_eq!(chosen(&days(5), "time:1;capacity:20", 1_000_000_250), [0, 1, 2]);
    }

    /// Regression test: the epoch was not reported.
    #[test]
    fn the_epoch_that_a_policy_lets_go_in_part_is_named() {
        let left = Left { held: days(3) };
        let not_removed = |policy: &str, now| left.not_removed(&policy.parse().unwrap(), Timestamp(now));
        for (policy, now, is_left) in [
            ("capacity:30", 0, false),
            ("capacity:29", 0, true),
            ("size:1MB", 0, false),
            ("time:1", 1_000_000_000, false),
            ("time:1", 1_000_000_001, true),
        ] {
            let said = not_removed(policy, now);
            assert_eq!(said.is_some(), is_left, "{policy}: {said:?}");
            let is_named =
                |said: &String| said.starts_with("messages_0 (10 messages, ") && said.contains(" stays ");
            assert!(said.iter().all(is_named), "{said:?}");
        }
        let mut with_empty = days(2);
        with_empty[0].count.messages = 0;
        let said = Left { held: with_empty }.not_removed(&"capacity:5".parse().unwrap(), Timestamp(0));
        assert!(
            said.is_some_and(|said| said.starts_with("messages_1 ")),
            "an empty one has nothing to let go"
        );
        assert_eq!(Left::default().not_removed(&"capacity:5".parse().unwrap(), Timestamp(0)), None);
    }

    #[test]
    fn the_epoch_with_the_newest_messages_stays_under_a_size() {
        let mut held = days(3);
        for day in &mut held {
            day.count.body_bytes = 5_000_000;
        }
        assert_eq!(chosen(&held, "size:1MB", 0), [0, 1]);
    }

    /// A late message may have created it a moment ago without being stored yet.
    #[test]
    fn an_empty_epoch_stays_for_a_day_after_it_was_opened() {
        let day_later = EMPTY_SECONDS * 1_000_000_000 + 500;
        let mut held = days(1);
        held[0].count.messages = 0;
        held[0].epoch.since_ns = 500;
        assert_eq!(chosen(&held, "capacity:20", day_later - 1), [0_i32; 0]);
        assert_eq!(chosen(&held, "capacity:20", day_later), [0]);
    }

    #[test]
    fn epochs_that_stayed_empty_go() {
        let mut held = days(4);
        for (place, day) in held.iter_mut().enumerate() {
            day.count.messages = if place == 2 { 10 } else { 0 };
        }
        let day_later = EMPTY_SECONDS * 1_000_000_000 + 200;
        assert_eq!(chosen(&held, "capacity:20", day_later), [0, 1]);
        assert_eq!(chosen(&held, "capacity:20", 350), [0_i32; 0]);
    }
}
