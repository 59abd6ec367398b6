//! Operations that are run at random. A reference to a record, revision or cursor is a number; what it refers to depends on what is
//! there when the operation is run.

use std::ops::Bound;

use bytes::Bytes;
use proptest::prelude::*;
use restante_records::{Body, Index, Kind, Properties, Property, Value};

use crate::common::{
    BY_ALL, BY_HASH, BY_HASH_AND_MAILBOX, BY_KEYWORD, BY_MAILBOX, BY_NAME, EMAIL, HASH, IN, KEYWORD, MAILBOX,
    NAME, NO_INDEX, NO_KIND, NO_PROPERTY, RECEIVED, SIZE, THREAD, blob, none,
};

/// A number that stands for one of the existing things.
pub(crate) type Pick = u16;

/// Accounts that are used.
pub(crate) const ACCOUNTS: u32 = 3;

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Commit {
        account: u32,
        expect: Vec<(Kind, Expected)>,
        changes: Vec<Wanted>,
    },
    Get {
        account: u32,
        kind: Kind,
        picks: Vec<Pick>,
        with_body: bool,
    },
    Query(Box<Asked>),
    Changes {
        account: u32,
        kind: Option<Kind>,
        since: Pick,
        limit: usize,
    },
    Follow {
        account: u32,
        since: Pick,
        began: Pick,
        limit: usize,
    },
    KeepUp {
        account: u32,
        limit: usize,
    },
    Touched {
        after: Pick,
        limit: usize,
    },
    Save {
        follower: usize,
        position: Pick,
        accounts: Vec<(u32, Pick)>,
    },
    Forget {
        follower: usize,
    },
    Clean {
        seconds_ago: i64,
        limit: usize,
    },
    Erase {
        account: u32,
        limit: usize,
    },
    Wait {
        seconds: i64,
    },
    Dump {
        after: Pick,
        limit: usize,
    },
    Reopen {
        is_closed_before: bool,
        has_all_indexes: bool,
    },
    Backup,
    /// To another engine and back, each way interrupted after some writes.
    Move {
        interruptions: Vec<usize>,
    },
    Check,
}

/// The state in which a kind is expected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    AsItIs,
    Other(u64),
}

/// A change of one of the existing records.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Create { kind: Kind, body: Body, properties: Properties },
    Update { pick: Pick, body: Option<Body>, properties: Option<Properties> },
    Destroy { pick: Pick },
    DestroyMissing { kind: Kind, id: u64 },
}

/// A query, whose cursor is one of those that were returned.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) account: u32,
    pub(crate) kind: Kind,
    pub(crate) index: Index,
    pub(crate) equals: Vec<Value>,
    pub(crate) range: (Bound<Value>, Bound<Value>),
    pub(crate) is_descending: bool,
    pub(crate) skip: u64,
    pub(crate) limit: usize,
    pub(crate) after: Option<Pick>,
    /// Whether all pages are read.
    pub(crate) is_walked: bool,
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![6 => Just(EMAIL), 3 => Just(MAILBOX), 2 => Just(THREAD)]
}

/// Few values, so that equal ones are common, and values at which their order could break.
fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (0..5_u64).prop_map(Value::Number),
        1 => prop::sample::select(vec![255, 256, 65_535, 65_536, u64::MAX - 1, u64::MAX]).prop_map(Value::Number),
        3 => prop::sample::select(vec!["", "a", "ab", "a\0", "a\0b", "\0", "b", "\u{ff}"]).prop_map(Value::from),
        1 => prop::collection::vec(any::<u8>(), 0..4).prop_map(|text| Value::Text(Bytes::from(text))),
    ]
}

fn values_in_commits() -> impl Strategy<Value = Value> {
    prop_oneof![20 => values(), 1 => (0..4_u16).prop_map(Value::Created), 1 => Just(Value::Revision)]
}

fn properties(of: &'static [Property]) -> impl Strategy<Value = Properties> {
    let pairs = prop::collection::vec((prop::sample::select(of), values_in_commits()), 0..7);
    let usual = pairs.prop_map(|pairs| pairs.into_iter().collect());
    prop_oneof![60 => usual, 1 => Just(none().with(NO_PROPERTY, 1))]
}

fn properties_of(kind: Kind) -> BoxedStrategy<Properties> {
    match kind {
        EMAIL => properties(&[IN, RECEIVED, KEYWORD, HASH, SIZE]).boxed(),
        MAILBOX => properties(&[NAME]).boxed(),
        _ => Just(none()).boxed(),
    }
}

fn bodies() -> impl Strategy<Value = Body> {
    let bytes = prop_oneof![
        6 => "[a-z ]{0,40}".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..200),
        1 => (any::<u8>(), 0..20_000_usize).prop_map(|(byte, len)| vec![byte; len]),
    ];
    let blobs = prop::collection::vec((0..20_u64).prop_map(blob), 0..3);
    (bytes, blobs).prop_map(|(bytes, blobs)| Body { bytes: bytes.into(), blobs })
}

fn changes() -> impl Strategy<Value = Wanted> {
    let create = kinds().prop_flat_map(|kind| {
        (bodies(), properties_of(kind)).prop_map(move |(body, properties)| Wanted::Create {
            kind,
            body,
            properties,
        })
    });
    let update = (any::<Pick>(), prop::option::of(bodies()), prop::option::of(properties_of(EMAIL)))
        .prop_map(|(pick, body, properties)| Wanted::Update { pick, body, properties });
    prop_oneof![
        12 => create,
        10 => update,
        6 => any::<Pick>().prop_map(|pick| Wanted::Destroy { pick }),
        1 => (prop_oneof![kinds(), Just(NO_KIND)], 0..200_u64)
            .prop_map(|(kind, id)| Wanted::DestroyMissing { kind, id }),
    ]
}

fn commits() -> impl Strategy<Value = Operation> {
    let expected = prop_oneof![4 => Just(Expected::AsItIs), 1 => (0..30_u64).prop_map(Expected::Other)];
    let expect = prop_oneof![
        3 => Just(vec![]),
        1 => prop::collection::vec((kinds(), expected), 1..3),
    ];
    (0..ACCOUNTS, expect, prop::collection::vec(changes(), 0..8))
        .prop_map(|(account, expect, changes)| Operation::Commit { account, expect, changes })
}

fn bounds() -> impl Strategy<Value = Bound<Value>> {
    prop_oneof![
        2 => Just(Bound::Unbounded),
        1 => values().prop_map(Bound::Included),
        1 => values().prop_map(Bound::Excluded),
    ]
}

fn queries() -> impl Strategy<Value = Operation> {
    let indexes = prop_oneof![
        6 => prop::sample::select(vec![BY_MAILBOX, BY_KEYWORD, BY_ALL]).prop_map(|index| (EMAIL, index, None)),
        1 => Just((EMAIL, BY_HASH, Some(1))),
        1 => Just((EMAIL, BY_HASH_AND_MAILBOX, Some(2))),
        2 => Just((MAILBOX, BY_NAME, None)),
        1 => prop::sample::select(vec![(EMAIL, NO_INDEX, None), (NO_KIND, BY_NAME, None), (EMAIL, BY_HASH, None)]),
    ];
    let asked = indexes.prop_flat_map(|(kind, index, parts)| {
        let equals = match parts {
            Some(parts) => prop::collection::vec(values(), parts).boxed(),
            None => prop::collection::vec(values(), 0..3).boxed(),
        };
        let unbounded = Just((Bound::Unbounded, Bound::Unbounded));
        let range = if parts.is_some() {
            unbounded.boxed()
        } else {
            prop_oneof![unbounded, (bounds(), bounds())].boxed()
        };
        let after = prop::option::weighted(0.4, any::<Pick>());
        let limit = prop_oneof![1..6_usize, Just(1_000)];
        let skip = prop_oneof![3 => Just(0_u64), 2 => 1..9_u64, 1 => Just(u64::MAX)];
        (0..ACCOUNTS, equals, range, any::<bool>(), skip, limit, after, any::<bool>()).prop_map(
            move |(account, equals, range, is_descending, skip, limit, after, is_walked)| Asked {
                account,
                kind,
                index,
                equals,
                range,
                is_descending,
                skip,
                limit,
                after,
                is_walked,
            },
        )
    });
    asked.prop_map(|asked| Operation::Query(Box::new(asked)))
}

fn limits() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1..8_usize, 2 => Just(1_000), 1 => Just(0)]
}

fn changes_since() -> impl Strategy<Value = Operation> {
    let kind = prop_oneof![prop::option::of(kinds()), Just(None)];
    let changes = (0..ACCOUNTS, kind, any::<Pick>(), limits())
        .prop_map(|(account, kind, since, limit)| Operation::Changes { account, kind, since, limit });
    let follow = (0..ACCOUNTS, any::<Pick>(), any::<Pick>(), limits())
        .prop_map(|(account, since, began, limit)| Operation::Follow { account, since, began, limit });
    let keep_up = (0..ACCOUNTS, 1..9_usize).prop_map(|(account, limit)| Operation::KeepUp { account, limit });
    prop_oneof![4 => changes, 2 => follow, 2 => keep_up]
}

fn feed() -> impl Strategy<Value = Operation> {
    let touched = (any::<Pick>(), limits()).prop_map(|(after, limit)| Operation::Touched { after, limit });
    let accounts = prop::collection::vec((0..ACCOUNTS, any::<Pick>()), 0..3);
    let save = (0..4_usize, any::<Pick>(), accounts)
        .prop_map(|(follower, position, accounts)| Operation::Save { follower, position, accounts });
    let forget = (0..4_usize).prop_map(|follower| Operation::Forget { follower });
    prop_oneof![3 => touched, 3 => save, 1 => forget]
}

fn upkeep() -> impl Strategy<Value = Operation> {
    let clean = (0..12_i64, prop_oneof![3 => 0..5_usize, 1 => Just(1_000)])
        .prop_map(|(seconds_ago, limit)| Operation::Clean { seconds_ago, limit });
    let erase = (0..ACCOUNTS, prop_oneof![2 => 0..5_usize, 1 => Just(1_000)])
        .prop_map(|(account, limit)| Operation::Erase { account, limit });
    let dump = (any::<Pick>(), limits()).prop_map(|(after, limit)| Operation::Dump { after, limit });
    let reopen =
        (any::<bool>(), prop::bool::weighted(0.8)).prop_map(|(is_closed_before, has_all_indexes)| {
            Operation::Reopen { is_closed_before, has_all_indexes }
        });
    prop_oneof![
        3 => clean,
        1 => erase,
        4 => (1..4_i64).prop_map(|seconds| Operation::Wait { seconds }),
        2 => dump,
        2 => reopen,
        1 => Just(Operation::Backup),
        1 => prop::collection::vec(0..8_usize, 0..3).prop_map(|interruptions| Operation::Move { interruptions }),
        1 => Just(Operation::Check),
    ]
}

pub(crate) fn operations() -> impl Strategy<Value = Operation> {
    let get = (0..ACCOUNTS, kinds(), prop::collection::vec(any::<Pick>(), 0..4), any::<bool>())
        .prop_map(|(account, kind, picks, with_body)| Operation::Get { account, kind, picks, with_body });
    prop_oneof![
        12 => commits(),
        3 => get,
        8 => queries(),
        6 => changes_since(),
        2 => feed(),
        4 => upkeep(),
    ]
}
