//! How far back it is worth to look: what retention would remove again is not fetched.

use parking_lot::Mutex;
use restante_archive::{Archive, Error, Query, Retention};
use restante_core::Timestamp;

/// From when on the own archive keeps messages.
///
/// What the time rule keeps follows from the clock. What the rules of capacity and size keep does not: an archive whose
/// oldest message is young may be full, or new. So a message is looked for that was there and is gone: then those rules have
/// begun to remove, and nothing is kept that is older than the archive's oldest message at that time.
#[derive(Debug)]
pub(super) struct Floor {
    retention: Retention,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// When messages were sent that were in the archive: its oldest one at the last look, the oldest and the newest of those
    /// that sync has archived since.
    oldest: Option<Timestamp>,
    archived: Option<(Timestamp, Timestamp)>,
    /// Capacity or size have let go what was before this.
    removed_until: Option<Timestamp>,
}

impl Floor {
    pub(super) fn new(retention: Retention) -> Self {
        Self { retention, seen: Mutex::default() }
    }

    /// Older messages than this would not be kept.
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
        seen.look(oldest, by_time);
        // A clock that was wrong may have left messages of the future.
        let removed_until = seen.removed_until.filter(|until| *until <= now);
        Ok(by_time.max(removed_until.unwrap_or(Timestamp::MIN)))
    }

    /// Notes when a message was sent that is in the archive now.
    pub(super) fn note(&self, timestamp: Timestamp) {
        let mut seen = self.seen.lock();
        let (oldest, newest) = seen.archived.unwrap_or((timestamp, timestamp));
        seen.archived = Some((oldest.min(timestamp), newest.max(timestamp)));
    }
}

impl Seen {
    /// Compares the archive's oldest message with those that were there. What the time rule may have removed, which keeps
    /// messages from `by_time` on, says nothing about the other rules.
    fn look(&mut self, oldest: Option<Timestamp>, by_time: Timestamp) {
        let were_there = [self.oldest, self.archived.map(|span| span.0), self.archived.map(|span| span.1)];
        *self = Self { oldest, archived: None, removed_until: self.removed_until };
        let Some(oldest) = oldest else { return }; // an archive that was emptied by hand
        let is_gone = |timestamp: Timestamp| by_time <= timestamp && timestamp < oldest;
        if were_there.into_iter().flatten().any(is_gone) {
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
            floor.seen.lock().look(oldest.map(at), *by_time);
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
    fn what_was_there_and_is_gone_was_removed() {
        assert_eq!(after(&[(Some(500), NONE), (Some(501), NONE)], &[]), Some(at(501)));
        assert_eq!(after(&[(Some(500), NONE), (Some(500), NONE)], &[100]), Some(at(500)));
        let later = [(Some(500), NONE), (Some(600), NONE), (Some(550), NONE), (Some(550), NONE)];
        assert_eq!(after(&later, &[]), Some(at(600)), "what came late does not open the past again");
    }

    #[test]
    fn what_became_too_old_tells_nothing_of_the_other_rules() {
        assert_eq!(after(&[(Some(500), at(400)), (Some(900), at(700))], &[]), None);
        let of_both = [(Some(500), at(400)), (Some(900), at(700))];
        assert_eq!(after(&of_both, &[400, 800]), Some(at(900)), "800 was young enough");
    }
}
