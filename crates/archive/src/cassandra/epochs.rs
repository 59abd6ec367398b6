//! The list of epochs: which ranges of time have a table, and how the list is written.

use restante_core::NANOS_PER_SECOND;

use super::schema::{EpochId, SPAN_WINDOWS, ServerId, VERSION};

/// The stage of an epoch's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A server is creating the table, or checking whether it is still empty. Appends wait until it is open or gone.
    Making,
    /// It accepts messages.
    Open,
    /// Retention is dropping it; it is neither read nor written.
    Dropping,
}

/// A range of time with a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub(super) id: EpochId,
    /// The first timestamp.
    pub(super) first_ns: i64,
    /// The first timestamp after it; if this is `i64::MAX`, that timestamp belongs to it.
    pub(super) end_ns: i64,
    /// The length of its windows.
    pub(super) window_ns: i64,
    pub(super) stage: Stage,
    /// The server that began the stage, and when (nanoseconds since 1970).
    pub(super) server: ServerId,
    pub(super) since_ns: i64,
}

impl Epoch {
    /// Whether a server has to finish the stage: because it began it, or because the server that did seems to have ended.
    pub(super) fn is_to_be_finished_by(&self, server: ServerId, now_ns: i64) -> bool {
        self.server == server || now_ns.saturating_sub(self.since_ns) > STAGE_MAX_NS
    }

    pub(super) fn contains(&self, timestamp: i64) -> bool {
        self.first_ns <= timestamp && (timestamp < self.end_ns || self.end_ns == i64::MAX)
    }

    pub(super) fn window(&self, timestamp: i64) -> i64 {
        timestamp.div_euclid(self.window_ns.max(1))
    }

    /// The span of a window.
    pub(super) fn span(window: i64) -> i64 {
        window.div_euclid(SPAN_WINDOWS)
    }
}

/// All epochs, in the order of time. They never overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EpochList {
    pub(super) next_id: EpochId,
    pub(super) epochs: Vec<Epoch>,
}

/// The length of epochs and windows, and how many epochs there are at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) epoch_ns: i64,
    pub(super) window_ns: i64,
    pub(super) epochs_max: usize,
}

/// Creating or dropping a table takes seconds: a server that has not finished after this long has ended.
const STAGE_MAX_NS: i64 = 60 * NANOS_PER_SECOND;
const ENTRY_BYTES: usize = 4 + 8 + 8 + 8 + 1 + 16 + 8;

impl EpochList {
    /// The epoch of a timestamp that is open or being created.
    pub(super) fn find(&self, timestamp: i64) -> Option<&Epoch> {
        self.epochs.iter().find(|epoch| epoch.stage != Stage::Dropping && epoch.contains(timestamp))
    }

    pub(super) fn get(&self, id: EpochId) -> Option<&Epoch> {
        self.epochs.iter().find(|epoch| epoch.id == id)
    }

    pub(super) fn open(&self) -> impl DoubleEndedIterator<Item = &Epoch> {
        self.epochs.iter().filter(|epoch| epoch.stage == Stage::Open)
    }

    /// The list with an epoch for a timestamp that has none: a new epoch, or a longer one if there are `epochs_max`.
    pub(super) fn with_place_for(&self, timestamp: i64, cut: Cut, server: ServerId, now_ns: i64) -> Self {
        let mut list = self.clone();
        let first = timestamp.div_euclid(cut.epoch_ns.max(1)).saturating_mul(cut.epoch_ns);
        let mut first_ns = first.min(timestamp);
        let mut end_ns = first.saturating_add(cut.epoch_ns).max(timestamp.saturating_add(1));
        for epoch in list.epochs.iter().filter(|epoch| epoch.stage != Stage::Dropping) {
            if epoch.first_ns > timestamp {
                end_ns = end_ns.min(epoch.first_ns);
            } else {
                first_ns = first_ns.max(epoch.end_ns);
            }
        }
        let live = |epoch: &&mut Epoch| epoch.stage != Stage::Dropping;
        if list.open().count() >= cut.epochs_max.max(1) {
            // Otherwise the epoch before is extended, or the one after.
            let before = list.epochs.iter_mut().filter(live).filter(|epoch| epoch.first_ns <= timestamp);
            if let Some(before) = before.max_by_key(|epoch| epoch.first_ns) {
                before.end_ns = end_ns;
                return list;
            }
            if let Some(behind) = list.epochs.iter_mut().filter(live).min_by_key(|epoch| epoch.first_ns) {
                behind.first_ns = first_ns;
                return list;
            }
        }
        list.next_id += 1;
        let epoch = Epoch {
            id: list.next_id,
            first_ns,
            end_ns,
            window_ns: cut.window_ns,
            stage: Stage::Making,
            server,
            since_ns: now_ns,
        };
        list.epochs.push(epoch);
        list.epochs.sort_by_key(|epoch| (epoch.first_ns, epoch.id));
        list
    }

    /// The list with an epoch in another stage.
    pub(super) fn with_stage(&self, id: EpochId, stage: Stage, server: ServerId, now_ns: i64) -> Self {
        let mut list = self.clone();
        for epoch in list.epochs.iter_mut().filter(|epoch| epoch.id == id) {
            *epoch = Epoch { stage, server, since_ns: now_ns, ..*epoch };
        }
        list
    }

    pub(super) fn without(&self, id: EpochId) -> Self {
        let mut list = self.clone();
        list.epochs.retain(|epoch| epoch.id != id);
        list
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.next_id.to_be_bytes());
        for epoch in &self.epochs {
            bytes.extend_from_slice(&epoch.id.to_be_bytes());
            bytes.extend_from_slice(&epoch.first_ns.to_be_bytes());
            bytes.extend_from_slice(&epoch.end_ns.to_be_bytes());
            bytes.extend_from_slice(&epoch.window_ns.to_be_bytes());
            bytes.push(match epoch.stage {
                Stage::Making => 0,
                Stage::Open => 1,
                Stage::Dropping => 2,
            });
            bytes.extend_from_slice(&epoch.server);
            bytes.extend_from_slice(&epoch.since_ns.to_be_bytes());
        }
        bytes
    }

    /// Reads a list.
    ///
    /// # Errors
    /// The version of the list, when it is another one; `None` when the list is damaged.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Option<u8>> {
        let (version, rest) = bytes.split_first().ok_or(None)?;
        if *version != VERSION {
            return Err(Some(*version));
        }
        let (next_id, rest) = rest.split_first_chunk::<4>().ok_or(None)?;
        if rest.len() % ENTRY_BYTES != 0 {
            return Err(None);
        }
        let epochs = rest.chunks_exact(ENTRY_BYTES).map(decode_epoch).collect::<Option<_>>().ok_or(None)?;
        Ok(Self { next_id: EpochId::from_be_bytes(*next_id), epochs })
    }
}

fn decode_epoch(bytes: &[u8]) -> Option<Epoch> {
    let (id, rest) = bytes.split_first_chunk::<4>()?;
    let (first, rest) = rest.split_first_chunk::<8>()?;
    let (end, rest) = rest.split_first_chunk::<8>()?;
    let (window, rest) = rest.split_first_chunk::<8>()?;
    let (stage, rest) = rest.split_first()?;
    let (server, rest) = rest.split_first_chunk::<16>()?;
    let stage = match stage {
        0 => Stage::Making,
        1 => Stage::Open,
        2 => Stage::Dropping,
        _ => return None,
    };
    Some(Epoch {
        id: EpochId::from_be_bytes(*id),
        first_ns: i64::from_be_bytes(*first),
        end_ns: i64::from_be_bytes(*end),
        window_ns: i64::from_be_bytes(*window),
        stage,
        server: *server,
        since_ns: i64::from_be_bytes(*rest.first_chunk::<8>()?),
    })
}

/// The length of an epoch: an eighth of what a retention rule by time keeps, so that at most that much more is kept.
pub(super) fn epoch_ns(setting_seconds: u64, retention: &crate::Retention) -> i64 {
    const DAY: u64 = 86_400;
    let automatic = match retention.time_seconds {
        Some(seconds) => (seconds / 8).max(DAY),
        None if retention.is_none() => 30 * DAY,
        None => 7 * DAY,
    };
    let seconds = if setting_seconds == 0 { automatic } else { setting_seconds };
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUT: Cut = Cut { epoch_ns: 100, window_ns: 10, epochs_max: 3 };

    fn with(list: &EpochList, timestamp: i64) -> EpochList {
        let list = list.with_place_for(timestamp, CUT, [1; 16], 5);
        let made = list.epochs.iter().find(|epoch| epoch.stage == Stage::Making).map(|epoch| epoch.id);
        made.map_or(list.clone(), |id| list.with_stage(id, Stage::Open, [1; 16], 6))
    }

    fn ranges(list: &EpochList) -> Vec<(i64, i64)> {
        list.epochs.iter().map(|epoch| (epoch.first_ns, epoch.end_ns)).collect()
    }

    #[test]
    fn epochs_are_aligned_and_never_overlap() {
        let mut list = EpochList::default();
        for timestamp in [250, -1, 950] {
            list = with(&list, timestamp);
        }
        assert_eq!(ranges(&list), [(-100, 0), (200, 300), (900, 1_000)]);
        // The limit is reached: the epoch before is extended or, if there is none, the one after.
        list = with(&list, 410);
        assert_eq!(ranges(&list), [(-100, 0), (200, 500), (900, 1_000)]);
        list = with(&list, -350);
        assert_eq!(ranges(&list), [(-400, 0), (200, 500), (900, 1_000)]);
        list = with(&list, 850);
        assert_eq!(ranges(&list), [(-400, 0), (200, 900), (900, 1_000)]);
        for timestamp in [-350, 250, 850, 950] {
            assert!(list.find(timestamp).is_some(), "{timestamp}");
        }
        assert_eq!(list.find(100), None);
    }

    #[test]
    fn the_ends_of_time_have_a_place() {
        let mut list = EpochList::default();
        for timestamp in [i64::MIN, i64::MAX, i64::MAX - 1, i64::MIN + 1] {
            if list.find(timestamp).is_none() {
                list = with(&list, timestamp);
            }
            assert!(list.find(timestamp).is_some(), "{timestamp} {list:?}");
        }
    }

    #[test]
    fn lists_read_back() {
        let list = with(&with(&EpochList::default(), 5), -500);
        assert_eq!(EpochList::decode(&list.encode()), Ok(list.clone()));
        assert_eq!(EpochList::decode(&[VERSION + 1, 0]), Err(Some(VERSION + 1)));
        assert_eq!(EpochList::decode(&list.encode()[..20]), Err(None));
    }

    #[test]
    fn an_epoch_is_an_eighth_of_what_is_kept() {
        let seconds = |policy: &str| epoch_ns(0, &policy.parse().unwrap()) / NANOS_PER_SECOND;
        assert_eq!((seconds("time:60"), seconds("time:6912000")), (86_400, 864_000));
        assert_eq!((seconds("none"), seconds("capacity:5")), (30 * 86_400, 7 * 86_400));
        assert_eq!(epoch_ns(7, &crate::Retention::default()), 7 * NANOS_PER_SECOND);
    }
}
