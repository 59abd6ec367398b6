//! The oldest timestamp worth fetching: older messages would be removed by retention.

use parking_lot::Mutex;
use restante_archive::{Archive, Error, Query, Retention};
use restante_core::Timestamp;

/// Finds the time from which this node's archive retains messages.
///
/// For the time rule the clock determines it. For the capacity and size rules it does not: an archive whose oldest message is
/// young may be full, or new. So the floor watches for a message that was archived and is gone: then these rules have begun to
/// remove, and nothing older than the archive's oldest message is retained.
#[derive(Debug)]
pub(super) struct Floor {
    retention: Retention,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Timestamps of archived messages: the oldest one at the last check, and the oldest and newest of those that sync has
    /// archived since.
    oldest: Option<Timestamp>,
    archived: Option<(Timestamp, Timestamp)>,
    /// The capacity or size rule has removed older messages.
    removed_until: Option<Timestamp>,
}

impl Floor {
    pub(super) fn new(retention: Retention) -> Self {
        Self { retention, seen: Mutex::default() }
    }

    /// Finds the time before which messages would not be retained.
    ///
    /// # Errors
    /// When the archive does not answer.
    pub(super) async fn find(&self, archive: &dyn Archive, now: Timestamp) -> Result<Timestamp, Error> {
        let by_time = self.retention.oldest_kept(now).unwrap_or(Timestamp::MIN);
        if self.retention.capacity.is_none() && self.retention.size_bytes.is_none() {
            return Ok(by_time);
        }
        let page = archive.query(&Query { limit: 1, bodies: false, ..Query::default() }).await?;
        let oldest = page.rows().next().map(|row| row.timestamp);
        let mut seen = self.seen.lock();
        seen.update(oldest, by_time);
        // A wrong clock may have left messages from the future.
        let removed_until = seen.removed_until.filter(|until| *until <= now);
        Ok(by_time.max(removed_until.unwrap_or(Timestamp::MIN)))
    }

    /// Records the timestamp of a message that was archived.
    pub(super) fn note(&self, timestamp: Timestamp) {
        let mut seen = self.seen.lock();
        let (oldest, newest) = seen.archived.unwrap_or((timestamp, timestamp));
        seen.archived = Some((oldest.min(timestamp), newest.max(timestamp)));
    }
}

impl Seen {
    /// Compares the archive's oldest message with earlier ones. Messages before `by_time`, which the time rule may have removed,
    /// prove nothing about the other rules.
    fn update(&mut self, oldest: Option<Timestamp>, by_time: Timestamp) {
        let archived = [self.oldest, self.archived.map(|span| span.0), self.archived.map(|span| span.1)];
        *self = Self { oldest, archived: None, removed_until: self.removed_until };
        let Some(oldest) = oldest else { return }; // the archive was emptied by hand
        let is_gone = |timestamp: Timestamp| by_time <= timestamp && timestamp < oldest;
        if archived.into_iter().flatten().any(is_gone) {
            self.removed_until = self.removed_until.max(Some(oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Timestamp = Timestamp::MIN;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn after(looks: &[(Option<i64>, Timestamp)], archived: &[i64]) -> Option<Timestamp> {
        let floor = Floor::new(Retention::default());
        for (oldest, by_time) in looks {
            floor.seen.lock().update(oldest.map(at), *by_time);
            archived.iter().for_each(|seconds| floor.note(at(*seconds)));
        }
        floor.seen.into_inner().removed_until
    }

    #[test]
    fn a_young_archive_has_removed_nothing() {
        assert_eq!(after(&[(None, NONE), (Some(500), NONE), (Some(500), NONE)], &[]), None);
        assert_eq!(after(&[(Some(500), NONE), (Some(100), NONE)], &[100, 400]), None);
        assert_eq!(after(&[(Some(500), NONE), (None, NONE)], &[]), None, "emptied by hand");
    }

    #[test]
    fn missing_messages_were_removed() {
        assert_eq!(after(&[(Some(500), NONE), (Some(501), NONE)], &[]), Some(at(501)));
        assert_eq!(after(&[(Some(500), NONE), (Some(500), NONE)], &[100]), Some(at(500)));
        let later = [(Some(500), NONE), (Some(600), NONE), (Some(550), NONE), (Some(550), NONE)];
        assert_eq!(after(&later, &[]), Some(at(600)), "a late message does not lower the floor");
    }

    #[test]
    fn messages_removed_by_age_prove_nothing_about_other_rules() {
        assert_eq!(after(&[(Some(500), at(400)), (Some(900), at(700))], &[]), None);
        let of_both = [(Some(500), at(400)), (Some(900), at(700))];
        assert_eq!(after(&of_both, &[400, 800]), Some(at(900)), "800 was young enough");
    }
}
