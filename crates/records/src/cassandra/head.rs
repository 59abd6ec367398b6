//! The head of an account: the row that each commit is conditional on.

use restante_lmdb::key::{Pack, take_byte, take_bytes, take_number};

use crate::{Position, rows::AccountRow};

/// The version of the row.
const HEAD_FORMAT: u8 = 1;
/// How many marks of the last changes are kept: a change whose outcome is unknown is looked up among them.
pub(super) const MARKS: usize = 16;

/// Identifies a change of a head: four bytes of the server, four random ones.
pub(super) type Mark = [u8; 8];

/// The head of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Counts the changes of the account's partition.
    pub(super) version: u64,
    /// Up to this position of the feed the outcome of the account's commits is decided.
    pub(super) settled: Position,
    /// When the last commit was made, in milliseconds since 1970.
    pub(super) committed_ms: u64,
    /// Which indexes the account has; compared with `epoch` in `meta`.
    pub(super) epoch: u64,
    /// The marks of the last changes, the newest first.
    pub(super) marks: Vec<Mark>,
    /// The same as in the table `account` of LMDB.
    pub(super) row: AccountRow,
}

impl Head {
    /// The head of an account without any commit.
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            version: 0,
            settled: Position(0),
            committed_ms: 0,
            epoch,
            marks: Vec::new(),
            row: AccountRow::default(),
        }
    }

    /// The head after one more change.
    pub(super) fn changed(&self, mark: Mark) -> Self {
        let mut changed = self.clone();
        changed.version += 1;
        changed.marks.insert(0, mark);
        changed.marks.truncate(MARKS);
        changed
    }

    /// Whether the change that made `version` has this mark; `None` when the head no longer has the marks of that version.
    pub(super) fn has(&self, version: u64, mark: &Mark) -> Option<bool> {
        let Some(age) = self.version.checked_sub(version) else { return Some(false) };
        let found = self.marks.get(usize::try_from(age).unwrap_or(MARKS))?;
        Some(found == mark)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut value = vec![HEAD_FORMAT];
        value.put_number(self.version);
        value.put_number(self.settled.0);
        value.put_number(self.committed_ms);
        value.put_number(self.epoch);
        value.push(self.marks.len() as u8); // MARKS at most
        for mark in &self.marks {
            value.put_bytes(mark);
        }
        value.put_bytes(&self.row.encode());
        value
    }

    /// Decodes a head; `None` when the bytes are damaged.
    pub(super) fn decode(mut value: &[u8]) -> Option<Self> {
        if take_byte(&mut value)? != HEAD_FORMAT {
            return None;
        }
        let version = take_number(&mut value)?;
        let settled = Position(take_number(&mut value)?);
        let committed_ms = take_number(&mut value)?;
        let epoch = take_number(&mut value)?;
        let count = usize::from(take_byte(&mut value)?);
        if count > MARKS {
            return None;
        }
        let mut marks = Vec::with_capacity(count);
        for _ in 0..count {
            marks.push(take_bytes(&mut value, 8)?.try_into().ok()?);
        }
        let row = AccountRow::decode(value)?;
        Some(Self { version, settled, committed_ms, epoch, marks, row })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_read_back() {
        let mut head = Head::new(3);
        for n in 0..20 {
            head = head.changed([n; 8]);
            head.settled = Position(u64::from(n) << 40);
            assert_eq!(Head::decode(&head.encode()), Some(head.clone()));
        }
        assert_eq!(Head::decode(b"\x02"), None);
        assert_eq!(Head::decode(b""), None);
    }

    #[test]
    fn a_change_is_found_as_long_as_its_mark_is_kept() {
        let mut head = Head::new(1);
        for n in 1..=20 {
            head = head.changed([n; 8]);
        }
        assert_eq!(head.has(20, &[20; 8]), Some(true));
        assert_eq!(head.has(5, &[5; 8]), Some(true));
        assert_eq!(head.has(5, &[6; 8]), Some(false));
        assert_eq!(head.has(4, &[4; 8]), None, "it is forgotten");
        assert_eq!(head.has(21, &[21; 8]), Some(false), "it was not made");
    }
}
