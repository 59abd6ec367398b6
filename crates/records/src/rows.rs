//! Keys and rows as bytes, which the engines on disk share. `docs/formats/records.md` describes them byte by byte; names in
//! capitals are those of its tables.

use restante_core::Timestamp;
use restante_lmdb::key::{KeyBuf, Pack, take_byte, take_bytes, take_number, take_text};
use smallvec::SmallVec;

use crate::{
    AccountHead, AccountId, Index, IndexOrder, IndexSchema, Kind, KindHead, Position, RESTORE_JUMP, RecordId,
    Revision, RevisionGap, Touched,
};

/// A generation of a scattered index covers 2 to the power of this many ids. A look-up costs one probe per generation; a write
/// touches only the pages of the newest generation, some hundred of them.
pub(super) const GENERATION_BITS: u32 = 15;

/// The byte in keys of `HISTORY` before the rows of existing records.
const LIVE: u8 = 0;
/// The byte in keys of `HISTORY` before the rows of destroyed records.
const TOMBSTONE: u8 = 1;

/// Counters stay below this: a larger number is damage. So adding to a decoded one can't overflow.
const COUNT_MAX: u64 = 1 << 62;

const NANOS_PER_MILLI: i64 = 1_000_000;

/// The number of a body. 0 is the empty body that refers to no blob: it has no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BodyNumber(pub(super) u64);

impl BodyNumber {
    /// The empty body, which has no row.
    pub(super) const EMPTY: Self = Self(0);
}

/// The generation that an id belongs to.
pub(super) fn generation(id: RecordId) -> u64 {
    id.0 >> GENERATION_BITS
}

/// The second in which a record is destroyed; times before 1970 count as 1970.
pub(super) fn second(now: Timestamp) -> u64 {
    u64::try_from(now.seconds()).unwrap_or(0)
}

/// The key of a body.
pub(super) fn body_key(body: BodyNumber) -> KeyBuf {
    let mut key = KeyBuf::new();
    key.put_number(body.0);
    key
}

/// The prefix of the keys of an account's records of one kind, in `STATE`.
pub(super) fn kind_prefix(account: AccountId, kind: Kind) -> KeyBuf {
    let mut key = account_key(account);
    key.push(kind.0);
    key
}

/// The key of a record in `STATE`.
pub(super) fn state_key(account: AccountId, kind: Kind, id: RecordId) -> KeyBuf {
    let mut key = kind_prefix(account, kind);
    key.put_number(id.0);
    key
}

/// The prefix of the keys of an account's existing records of one kind, in `HISTORY`.
pub(super) fn live_prefix(account: AccountId, kind: Kind) -> KeyBuf {
    let mut key = kind_prefix(account, kind);
    key.push(LIVE);
    key
}

/// The key in `HISTORY` of a commit that created or changed a record.
pub(super) fn live_key(account: AccountId, kind: Kind, revision: Revision, id: RecordId) -> KeyBuf {
    let mut key = live_prefix(account, kind);
    key.put_number(revision.0);
    key.put_number(id.0);
    key
}

/// The prefix of the keys of an account's tombstones of one kind, in `HISTORY`.
pub(super) fn tombstone_prefix(account: AccountId, kind: Kind) -> KeyBuf {
    let mut key = kind_prefix(account, kind);
    key.push(TOMBSTONE);
    key
}

/// The key in `HISTORY` of a commit that destroyed a record.
pub(super) fn tombstone_key(account: AccountId, kind: Kind, revision: Revision, id: RecordId) -> KeyBuf {
    let mut key = tombstone_prefix(account, kind);
    key.put_number(revision.0);
    key.put_number(id.0);
    key
}

/// The prefix of the keys of an index of an account.
pub(super) fn index_prefix(account: AccountId, kind: Kind, index: Index) -> KeyBuf {
    let mut key = kind_prefix(account, kind);
    key.push(index.0);
    key
}

/// The key of an entry of an index. `values` are the concatenated packed values of its parts.
pub(super) fn index_key(
    account: AccountId,
    kind: Kind,
    index: &IndexSchema,
    values: &[u8],
    id: RecordId,
) -> KeyBuf {
    let mut key = index_prefix(account, kind, index.index);
    if index.order == IndexOrder::Scattered {
        key.put_number(generation(id));
    }
    key.put_bytes(values);
    key.put_number(id.0);
    key
}

/// The key of an account in `ACCOUNT`, which is also the prefix of its keys in other tables.
pub(super) fn account_key(account: AccountId) -> KeyBuf {
    let mut key = KeyBuf::new();
    key.put_number(u64::from(account.0));
    key
}

/// The key of a commit in `FEED`.
pub(super) fn feed_key(position: Position) -> KeyBuf {
    let mut key = KeyBuf::new();
    key.put_number(position.0);
    key
}

/// The key of a follower's position, which is also the prefix of the keys of its accounts.
pub(super) fn follower_key(follower: &str) -> KeyBuf {
    let mut key = KeyBuf::new();
    key.put_text(follower.as_bytes());
    key
}

/// The key of a follower's progress in one account.
pub(super) fn follower_account_key(follower: &str, account: AccountId) -> KeyBuf {
    let mut key = follower_key(follower);
    key.put_number(u64::from(account.0));
    key
}

/// A row of `STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateRow<'v> {
    /// The revision that last changed the record.
    pub(super) revision: Revision,
    /// The revision that created it.
    pub(super) created: Revision,
    /// Its body.
    pub(super) body: BodyNumber,
    /// Its packed properties.
    pub(super) properties: &'v [u8],
}

impl<'v> StateRow<'v> {
    /// Encodes the row.
    pub(super) fn encode(&self) -> KeyBuf {
        let mut value = KeyBuf::new();
        value.put_number(self.revision.0);
        value.put_number(self.created.0);
        value.put_number(self.body.0);
        value.put_bytes(self.properties);
        value
    }

    /// Decodes a row; `None` when it is malformed. The properties are not looked at.
    pub(super) fn decode(mut value: &'v [u8]) -> Option<Self> {
        let revision = Revision(take_count(&mut value)?);
        let created = Revision(take_count(&mut value)?);
        let body = BodyNumber(take_count(&mut value)?);
        Some(Self { revision, created, body, properties: value })
    }
}

/// A row of `HISTORY` for an existing record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LiveRow {
    /// The revision created the record.
    Creation,
    /// The revision is the last that changed the record, and did not create it.
    Change {
        /// The revision that created the record.
        created: Revision,
    },
}

impl LiveRow {
    /// Encodes the row.
    pub(super) fn encode(self) -> KeyBuf {
        let mut value = KeyBuf::new();
        if let Self::Change { created } = self {
            value.put_number(created.0);
        }
        value
    }

    /// Decodes a row; `None` when it is malformed.
    pub(super) fn decode(mut value: &[u8]) -> Option<Self> {
        if value.is_empty() {
            return Some(Self::Creation);
        }
        let created = Revision(take_count(&mut value)?);
        value.is_empty().then_some(Self::Change { created })
    }
}

/// A row of `HISTORY` for a destroyed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TombstoneRow {
    /// The revision that created the record.
    pub(super) created: Revision,
    /// When it was destroyed, in seconds since 1970.
    pub(super) second: u64,
}

impl TombstoneRow {
    /// Encodes the row.
    pub(super) fn encode(self) -> KeyBuf {
        let mut value = KeyBuf::new();
        value.put_number(self.created.0);
        value.put_number(self.second);
        value
    }

    /// Decodes a row; `None` when it is malformed.
    pub(super) fn decode(mut value: &[u8]) -> Option<Self> {
        let created = Revision(take_count(&mut value)?);
        let second = take_count(&mut value)?;
        value.is_empty().then_some(Self { created, second })
    }
}

/// Decodes the revision and the id at the end of a key of `HISTORY`, after a prefix of this length.
pub(super) fn decode_history_key(key: &[u8], prefix_len: usize) -> Option<(Revision, RecordId)> {
    let mut rest = key.get(prefix_len..)?;
    let revision = Revision(take_count(&mut rest)?);
    let id = RecordId(take_count(&mut rest)?);
    rest.is_empty().then_some((revision, id))
}

/// The kind of a key of `HISTORY`.
pub(super) fn take_history_kind(mut key: &[u8]) -> Option<Kind> {
    take_account(&mut key)?;
    take_byte(&mut key).map(Kind)
}

/// The part of a row of `ACCOUNT` about one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KindRow {
    /// The kind.
    pub(super) kind: Kind,
    /// The revision that last touched it.
    pub(super) state: Revision,
    /// Tombstones up to this revision are forgotten.
    pub(super) floor: Revision,
    /// Records that exist.
    pub(super) records: u64,
    /// Destroyed records that are still in the history.
    pub(super) tombstones: u64,
}

/// Revisions that a restore has skipped: they may have been assigned after the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The last revision in the backup.
    pub(super) after: Revision,
    /// The account's revision right after the restore. It is a valid state, as opposed to the revisions between the two.
    pub(super) until: Revision,
}

/// The most gaps that an account keeps. When there are more, the two oldest are merged.
const GAPS_MAX: usize = 16;

/// A row of `ACCOUNT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountRow {
    /// The revision of the last commit.
    pub(super) revision: Revision,
    /// The id that the next record gets.
    pub(super) next_id: RecordId,
    /// The position of the last commit in `FEED`; 0 before the first.
    pub(super) position: Position,
    /// For how many restores of the store the numbers of this row have been raised.
    pub(super) restores: u64,
    /// Whether the account is being erased.
    pub(super) is_erasing: bool,
    /// What restores have skipped, ascending.
    pub(super) gaps: SmallVec<[Gap; 1]>,
    /// Each kind that was ever touched, ascending.
    pub(super) kinds: SmallVec<[KindRow; 4]>,
}

impl Default for AccountRow {
    /// The row of an account without any commit.
    fn default() -> Self {
        Self {
            revision: Revision(0),
            next_id: RecordId(1),
            position: Position(0),
            restores: 0,
            is_erasing: false,
            gaps: SmallVec::new(),
            kinds: SmallVec::new(),
        }
    }
}

impl AccountRow {
    /// The row after this many restores of the store. A restore is applied to an account only with its first commit after it, so
    /// the stored row may lag behind.
    pub(super) fn after_restores(mut self, restores: u64) -> Self {
        let jump = restores.saturating_sub(self.restores).saturating_mul(RESTORE_JUMP);
        if jump > 0 {
            let after = self.revision;
            self.revision.0 += jump;
            self.next_id.0 += jump;
            self.restores = restores;
            self.gaps.push(Gap { after, until: self.revision });
        }
        if self.gaps.len() > GAPS_MAX {
            let oldest = self.gaps.remove(0);
            if let Some(next) = self.gaps.first_mut() {
                next.after = oldest.after;
            }
        }
        self
    }

    /// Takes a new revision; changes since earlier ones can't be calculated.
    pub(super) fn cut_history(&mut self) {
        self.revision.0 += 1;
        for share in &mut self.kinds {
            (share.state, share.floor) = (self.revision, self.revision);
        }
    }

    /// The row of an account that is being moved.
    pub(super) fn of_head(head: &AccountHead) -> Self {
        let gap = |gap: &RevisionGap| Gap { after: gap.after, until: gap.until };
        let share = |kind: &KindHead| KindRow {
            kind: kind.kind,
            state: kind.state,
            floor: kind.floor,
            records: kind.records,
            tombstones: kind.tombstones,
        };
        Self {
            revision: head.revision,
            next_id: head.next_id,
            position: head.position,
            restores: head.restores,
            is_erasing: head.is_erasing,
            gaps: head.gaps.iter().map(gap).collect(),
            kinds: head.kinds.iter().map(share).collect(),
        }
    }

    /// The head of an account that is being moved, and whose last commit was at this time.
    pub(super) fn head(&self, account: AccountId, committed_at: Timestamp) -> AccountHead {
        let gap = |gap: &Gap| RevisionGap { after: gap.after, until: gap.until };
        let kind = |share: &KindRow| KindHead {
            kind: share.kind,
            state: share.state,
            floor: share.floor,
            records: share.records,
            tombstones: share.tombstones,
        };
        AccountHead {
            account,
            revision: self.revision,
            next_id: self.next_id,
            position: self.position,
            committed_at,
            restores: self.restores,
            is_erasing: self.is_erasing,
            gaps: self.gaps.iter().map(gap).collect(),
            kinds: self.kinds.iter().map(kind).collect(),
        }
    }

    /// The number of commits that were made.
    pub(super) fn commits(&self) -> u64 {
        let left_out: u64 = self.gaps.iter().map(|gap| gap.until.0.saturating_sub(gap.after.0)).sum();
        self.revision.0.saturating_sub(left_out)
    }

    /// The first revision from which changes of a kind, or of all kinds, can be calculated, when they can't from `since`.
    pub(super) fn floor_above(&self, kind: Option<Kind>, since: Revision) -> Option<Revision> {
        let gap = self.gaps.iter().find(|gap| gap.after < since && since < gap.until);
        let floor = match kind {
            Some(kind) => self.kind(kind).floor,
            None => self.kinds.iter().map(|share| share.floor).max().unwrap_or_default(),
        };
        let floor = gap.map_or(floor, |gap| gap.until.max(floor));
        (since < floor).then_some(floor)
    }

    /// The part about a kind; zeros when it was never touched.
    pub(super) fn kind(&self, kind: Kind) -> KindRow {
        let found = self.kinds.iter().find(|known| known.kind == kind);
        found.copied().unwrap_or(KindRow { kind, ..KindRow::default() })
    }

    /// The part about a kind, to be changed; it is created when the kind was never touched.
    pub(super) fn kind_mut(&mut self, kind: Kind) -> &mut KindRow {
        let place = self.kinds.partition_point(|known| known.kind < kind);
        let is_known = self.kinds.get(place).is_some_and(|known| known.kind == kind);
        if !is_known {
            self.kinds.insert(place, KindRow { kind, ..KindRow::default() });
        }
        self.kinds.get_mut(place).expect("it was there, or has just been inserted")
    }

    /// Encodes the row.
    pub(super) fn encode(&self) -> KeyBuf {
        let mut value = KeyBuf::new();
        value.put_number(self.revision.0);
        value.put_number(self.next_id.0);
        value.put_number(self.position.0);
        value.put_number(self.restores);
        value.push(u8::from(self.is_erasing));
        value.put_number(self.gaps.len() as u64);
        for gap in &self.gaps {
            value.put_number(gap.after.0);
            value.put_number(gap.until.0);
        }
        for share in &self.kinds {
            value.push(share.kind.0);
            value.put_number(share.state.0);
            value.put_number(share.floor.0);
            value.put_number(share.records);
            value.put_number(share.tombstones);
        }
        value
    }

    /// Decodes a row; `None` when it is malformed.
    pub(super) fn decode(mut value: &[u8]) -> Option<Self> {
        let revision = Revision(take_count(&mut value)?);
        let next_id = RecordId(take_count(&mut value)?);
        let position = Position(take_count(&mut value)?);
        let restores = take_count(&mut value)?;
        let is_erasing = take_flag(&mut value)?;
        let mut gaps = SmallVec::new();
        for _ in 0..take_count(&mut value).filter(|gaps| *gaps <= GAPS_MAX as u64)? {
            let after = Revision(take_count(&mut value)?);
            gaps.push(Gap { after, until: Revision(take_count(&mut value)?) });
        }
        let mut kinds: SmallVec<[KindRow; 4]> = SmallVec::new();
        while !value.is_empty() {
            let share = decode_kind(&mut value)?;
            if kinds.last().is_some_and(|last| last.kind >= share.kind) {
                return None;
            }
            kinds.push(share);
        }
        Some(Self { revision, next_id, position, restores, is_erasing, gaps, kinds })
    }
}

fn decode_kind(value: &mut &[u8]) -> Option<KindRow> {
    Some(KindRow {
        kind: Kind(take_byte(value)?),
        state: Revision(take_count(value)?),
        floor: Revision(take_count(value)?),
        records: take_count(value)?,
        tombstones: take_count(value)?,
    })
}

/// Decodes a key of `ACCOUNT`.
pub(super) fn decode_account_key(mut key: &[u8]) -> Option<AccountId> {
    let account = take_account(&mut key)?;
    key.is_empty().then_some(account)
}

/// Takes an account from the front.
pub(super) fn take_account(bytes: &mut &[u8]) -> Option<AccountId> {
    u32::try_from(take_number(bytes)?).ok().map(AccountId)
}

/// Decodes a key of `STATE`: account, kind and id.
pub(super) fn decode_state_key(mut key: &[u8]) -> Option<(AccountId, Kind, RecordId)> {
    let account = take_account(&mut key)?;
    let kind = Kind(take_byte(&mut key)?);
    let id = RecordId(take_count(&mut key)?);
    key.is_empty().then_some((account, kind, id))
}

/// Decodes a key of `BODY`.
pub(super) fn decode_body_key(mut key: &[u8]) -> Option<BodyNumber> {
    let number = take_count(&mut key)?;
    key.is_empty().then_some(BodyNumber(number))
}

/// Decodes a key of `FEED`.
pub(super) fn decode_feed_key(mut key: &[u8]) -> Option<Position> {
    let position = take_count(&mut key)?;
    key.is_empty().then_some(Position(position))
}

/// Encodes a row of `FEED`.
pub(super) fn encode_feed(touched: &Touched) -> KeyBuf {
    let mut value = account_key(touched.account);
    value.put_number(touched.revision.0);
    value.put_number(u64::try_from(touched.committed_at.nanos() / NANOS_PER_MILLI).unwrap_or(0));
    value
}

/// Decodes a row of `FEED`; `None` when it is malformed.
pub(super) fn decode_feed(key: &[u8], mut value: &[u8]) -> Option<Touched> {
    let position = decode_feed_key(key)?;
    let account = take_account(&mut value)?;
    let revision = Revision(take_count(&mut value)?);
    let millis = i64::try_from(take_count(&mut value)?).ok()?;
    let committed_at = Timestamp(millis.checked_mul(NANOS_PER_MILLI)?);
    value.is_empty().then_some(Touched { position, account, revision, committed_at })
}

/// Decodes a key of `FOLLOWER`: the name, and the account if it is a row of one.
pub(super) fn decode_follower_key(mut key: &[u8]) -> Option<(String, Option<AccountId>)> {
    let name = String::from_utf8(take_text(&mut key)?).ok()?;
    if key.is_empty() {
        return Some((name, None));
    }
    let account = take_account(&mut key)?;
    key.is_empty().then_some((name, Some(account)))
}

/// Skips a value that [`crate::entries::pack_value`] appended, without decoding it; `None` when the bytes end within it.
pub(super) fn skip_value(bytes: &mut &[u8]) -> Option<()> {
    let first = take_byte(bytes)?;
    if first <= 8 {
        return take_bytes(bytes, usize::from(first)).map(|_| ()); // a number with this many bytes
    }
    loop {
        let is_end = take_byte(bytes)? == 0 && take_byte(bytes)? == 0;
        if is_end {
            return Some(());
        }
    }
}

/// Takes a flag, a byte that is 0 or 1, from the front.
fn take_flag(bytes: &mut &[u8]) -> Option<bool> {
    match take_byte(bytes)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Takes a counter from the front.
fn take_count(bytes: &mut &[u8]) -> Option<u64> {
    take_number(bytes).filter(|count| *count < COUNT_MAX)
}

/// Encodes a value that consists of one packed number.
pub(super) fn encode_number(number: u64) -> KeyBuf {
    let mut value = KeyBuf::new();
    value.put_number(number);
    value
}

/// Decodes a value that consists of one packed number.
pub(super) fn decode_number(mut value: &[u8]) -> Option<u64> {
    let number = take_number(&mut value)?;
    value.is_empty().then_some(number)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use restante_lmdb::key::after_prefix;

    use super::*;
    use crate::{Properties, Property, Value, entries};

    fn count() -> impl Strategy<Value = u64> {
        (any::<u64>(), 2_u32..64).prop_map(|(number, shift)| number >> shift)
    }

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            count().prop_map(Value::Number),
            prop::collection::vec(prop_oneof![Just(0_u8), Just(255), any::<u8>()], 0..6)
                .prop_map(|text| Value::Text(Bytes::from(text))),
        ]
    }

    fn kind_row() -> impl Strategy<Value = KindRow> {
        (any::<u8>(), count(), count(), count(), count()).prop_map(
            |(kind, state, floor, records, tombstones)| KindRow {
                kind: Kind(kind),
                state: Revision(state),
                floor: Revision(floor),
                records,
                tombstones,
            },
        )
    }

    proptest! {
        #[test]
        fn rows_read_back(a in count(), b in count(), c in count(), rest in prop::collection::vec(any::<u8>(), 0..9)) {
            let state = StateRow { revision: Revision(a), created: Revision(b), body: BodyNumber(c), properties: &rest };
            let bytes = state.encode();
            prop_assert_eq!(StateRow::decode(&bytes), Some(state));
            for live in [LiveRow::Creation, LiveRow::Change { created: Revision(a) }] {
                prop_assert_eq!(LiveRow::decode(&live.encode()), Some(live));
            }
            let tombstone = TombstoneRow { created: Revision(a), second: b };
            prop_assert_eq!(TombstoneRow::decode(&tombstone.encode()), Some(tombstone));
            let committed_at = i64::from(c as u32) * NANOS_PER_MILLI;
            let touched = Touched {
                position: Position(c),
                account: AccountId(a as u32),
                revision: Revision(b),
                committed_at: Timestamp(committed_at),
            };
            prop_assert_eq!(decode_feed(&feed_key(touched.position), &encode_feed(&touched)), Some(touched));
        }

        #[test]
        fn the_row_of_an_account_reads_back(a in count(), b in count(), c in count(), shares in prop::collection::vec(kind_row(), 0..5)) {
            let gaps = (0..a % 17).map(|n| Gap { after: Revision(n), until: Revision(b) }).collect();
            let mut row = AccountRow { revision: Revision(a), next_id: RecordId(b), position: Position(c), restores: b, is_erasing: a % 2 == 1, gaps, kinds: SmallVec::new() };
            for share in shares {
                *row.kind_mut(share.kind) = share;
                prop_assert_eq!(row.kind(share.kind), share);
            }
            prop_assert_eq!(AccountRow::decode(&row.encode()), Some(row));
        }

        #[test]
        fn keys_read_back(account: u32, kind: u8, a in count(), b in count(), name in "[a-z\0]{1,5}") {
            let (account, kind) = (AccountId(account), Kind(kind));
            prop_assert_eq!(decode_account_key(&account_key(account)), Some(account));
            prop_assert_eq!(decode_state_key(&state_key(account, kind, RecordId(a))), Some((account, kind, RecordId(a))));
            prop_assert_eq!(decode_body_key(&body_key(BodyNumber(a))), Some(BodyNumber(a)));
            prop_assert_eq!(decode_feed_key(&feed_key(Position(a))), Some(Position(a)));
            let (live, prefix) = (live_key(account, kind, Revision(a), RecordId(b)), live_prefix(account, kind));
            prop_assert_eq!(decode_history_key(&live, prefix.len()), Some((Revision(a), RecordId(b))));
            prop_assert_eq!(decode_follower_key(&follower_key(&name)), Some((name.clone(), None)));
            let followed = follower_account_key(&name, account);
            prop_assert_eq!(decode_follower_key(&followed), Some((name, Some(account))));
        }

        #[test]
        fn the_history_of_a_kind_is_in_the_order_of_revisions_and_apart_from_others(
            account: u32, kind in 0_u8..255, a in (count(), count()), b in (count(), count()),
        ) {
            let (account, kind) = (AccountId(account), Kind(kind));
            let key = |(revision, id)| live_key(account, kind, Revision(revision), RecordId(id));
            prop_assert_eq!(key(a).cmp(&key(b)), a.cmp(&b));
            let end = after_prefix(&live_prefix(account, kind)).unwrap();
            let tombstone = tombstone_key(account, kind, Revision(b.0), RecordId(b.1));
            prop_assert!(key(a) < end && end <= tombstone);
            prop_assert!(tombstone < live_key(account, Kind(kind.0 + 1), Revision(0), RecordId(0)));
        }

        #[test]
        fn a_value_is_skipped_as_it_is_taken(value in value(), rest in prop::collection::vec(any::<u8>(), 0..4)) {
            let mut bytes = Vec::new();
            entries::pack_value(&mut bytes, &value);
            bytes.extend_from_slice(&rest);
            let (mut skipped, mut taken) = (&bytes[..], &bytes[..]);
            prop_assert_eq!(skip_value(&mut skipped), Some(()));
            prop_assert_eq!(entries::take_value(&mut taken), Some(value));
            prop_assert_eq!(skipped, taken);
        }

        #[test]
        fn bytes_that_nobody_wrote_never_panic(bytes in prop::collection::vec(0_u8..12, 0..24)) {
            let _ = StateRow::decode(&bytes);
            let _ = AccountRow::decode(&bytes);
            let _ = LiveRow::decode(&bytes);
            let _ = TombstoneRow::decode(&bytes);
            let _ = decode_history_key(&bytes, 3);
            let _ = decode_state_key(&bytes);
            let _ = decode_follower_key(&bytes);
            let _ = skip_value(&mut &bytes[..]);
        }
    }

    #[test]
    fn a_scattered_entry_stands_in_the_generation_of_its_record() {
        let (account, kind) = (AccountId(1), Kind(2));
        let index = IndexSchema::scattered(Index(3), "hash", &[]);
        let old = index_key(account, kind, &index, &[1, 200], RecordId((1 << GENERATION_BITS) - 1));
        let new = index_key(account, kind, &index, &[1, 100], RecordId(1 << GENERATION_BITS));
        assert_eq!(&old[..], [1, 1, 2, 3, 0, 1, 200, 2, 0x7f, 0xff]);
        assert_eq!(&new[..], [1, 1, 2, 3, 1, 1, 1, 100, 2, 0x80, 0x00]);
    }

    /// The example of docs/formats/records.md: these bytes never change.
    #[test]
    fn rows_are_what_the_format_says() {
        let (account, kind, id, revision) = (AccountId(7), Kind(1), RecordId(300), Revision(290));
        let properties = b"\x01\x01\x03\x01\x01\x05\x02\x04\x65\x53\xf1\x00";
        let said: Properties = [(1, 3), (1, 5), (2, 1_700_000_000)]
            .map(|(property, value)| (Property(property), Value::Number(value)))
            .into_iter()
            .collect();
        let mut packed = KeyBuf::new();
        entries::pack_properties(&mut packed, &said);
        assert_eq!(&packed[..], properties);
        assert_eq!(&body_key(BodyNumber(0x1234))[..], b"\x02\x12\x34");
        let state = StateRow { revision, created: revision, body: BodyNumber(0x1234), properties };
        assert_eq!(&state_key(account, kind, id)[..], b"\x01\x07\x01\x02\x01\x2c");
        let head = b"\x02\x01\x22\x02\x01\x22\x02\x12\x34";
        assert_eq!(&state.encode()[..], [&head[..], properties].concat());
        assert_eq!(&live_key(account, kind, revision, id)[..], b"\x01\x07\x01\x00\x02\x01\x22\x02\x01\x2c");
        assert_eq!(
            &tombstone_key(account, kind, revision, id)[..],
            b"\x01\x07\x01\x01\x02\x01\x22\x02\x01\x2c"
        );
        let index = IndexSchema::ordered(Index(1), "mailbox", &[]);
        let entry = index_key(account, kind, &index, b"\x01\x03\x04\x65\x53\xf1\x00", id);
        assert_eq!(&entry[..], b"\x01\x07\x01\x01\x01\x03\x04\x65\x53\xf1\x00\x02\x01\x2c");
        assert_eq!(&feed_key(Position(0xf00))[..], b"\x02\x0f\x00");
        let touched = Touched {
            position: Position(0xf00),
            account,
            revision,
            committed_at: Timestamp(0x018b_cfe5_6800 * NANOS_PER_MILLI),
        };
        assert_eq!(&encode_feed(&touched)[..], b"\x01\x07\x02\x01\x22\x06\x01\x8b\xcf\xe5\x68\x00");
        let share = KindRow { kind, state: revision, floor: Revision(0), records: 300, tombstones: 0 };
        let kinds = SmallVec::from_elem(share, 1);
        let row = AccountRow {
            revision,
            next_id: RecordId(301),
            position: Position(0xf00),
            kinds,
            ..AccountRow::default()
        };
        let expected =
            b"\x02\x01\x22\x02\x01\x2d\x02\x0f\x00\x00\x00\x00\x01\x02\x01\x22\x00\x02\x01\x2c\x00";
        assert_eq!(&row.encode()[..], expected);
        assert_eq!(&follower_account_key("ab", account)[..], b"ab\x00\x00\x01\x07");
    }

    #[test]
    fn an_account_jumps_once_for_each_restore_and_keeps_what_was_left_out() {
        let before = AccountRow { revision: Revision(5), next_id: RecordId(9), ..AccountRow::default() };
        assert_eq!(before.clone().after_restores(0), before);
        let mut row = before.after_restores(2);
        let jump = 2 * RESTORE_JUMP;
        assert_eq!((row.revision, row.next_id), (Revision(5 + jump), RecordId(9 + jump)));
        assert_eq!(row.clone().after_restores(2), row);
        let can_be_told = |row: &AccountRow, since: u64| row.floor_above(None, Revision(since)).is_none();
        assert!(can_be_told(&row, 0) && can_be_told(&row, 5) && can_be_told(&row, 5 + jump));
        assert!(!can_be_told(&row, 6) && !can_be_told(&row, 4 + jump));
        assert_eq!(row.commits(), 5);
        for restores in 3..40 {
            row.revision.0 += 1;
            row = row.after_restores(restores);
        }
        assert_eq!(row.gaps.len(), GAPS_MAX);
        assert!(can_be_told(&row, 5) && !can_be_told(&row, 6) && !can_be_told(&row, 6 + jump));
        assert_eq!(AccountRow::decode(&row.encode()), Some(row));
    }

    #[test]
    fn counters_that_no_store_reaches_are_damage() {
        let row = AccountRow { revision: Revision(u64::MAX), ..AccountRow::default() };
        assert_eq!(AccountRow::decode(&row.encode()), None);
        assert_eq!(decode_feed_key(&feed_key(Position(COUNT_MAX))), None);
    }

    #[test]
    fn the_second_of_a_time_before_1970_is_0() {
        assert_eq!(second(Timestamp(-5)), 0);
        assert_eq!(second(Timestamp(i64::MIN)), 0);
        assert_eq!(second(Timestamp(Timestamp::from_seconds(7).nanos() + 1)), 7);
    }
}
