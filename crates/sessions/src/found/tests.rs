use proptest::{collection::vec, prelude::*};
use restante_core::ErrorKind;

use super::*;
use crate::{InfoBuf, InfoKey, InfoValue};

/// An owned session.
#[derive(Clone, Debug)]
struct Owned {
    id: SessionId,
    resource: String,
    priority: Option<i8>,
    info: InfoBuf,
}

impl Owned {
    fn borrow<'a>(&'a self, user: &'a str) -> Session<'a> {
        let session = Session::new(self.id, user, &self.resource, self.info.as_info());
        Session { priority: self.priority, ..session }
    }
}

fn ids() -> impl Strategy<Value = SessionId> {
    let node = prop_oneof![0..4_u32, any::<u32>()];
    (any::<u64>(), node, any::<u32>()).prop_map(|(opened_us, node, user_hash)| SessionId {
        opened_us,
        node: NodeId(node),
        user_hash,
    })
}

fn infos() -> impl Strategy<Value = InfoBuf> {
    let entry = (any::<u16>(), any::<i64>(), "\\PC{0,40}", any::<bool>());
    vec(entry, 0..20).prop_map(|entries| {
        let mut info = InfoBuf::new();
        for (key, number, text, is_text) in &entries {
            let value = if *is_text { InfoValue::Text(text) } else { InfoValue::Number(*number) };
            info.merge(&[(InfoKey(*key), Some(value))]).unwrap();
        }
        info
    })
}

fn sessions() -> impl Strategy<Value = Owned> {
    (ids(), "\\PC{1,80}", any::<Option<i8>>(), infos()).prop_map(|(id, resource, priority, info)| Owned {
        id,
        resource,
        priority,
        info,
    })
}

/// Sessions of one user, with distinct ids.
fn users() -> impl Strategy<Value = (String, Vec<Owned>)> {
    ("\\PC{1,60}", vec(sessions(), 0..12)).prop_map(|(user, mut sessions)| {
        sessions.sort_by_key(|session| session.id);
        sessions.dedup_by_key(|session| session.id);
        (user, sessions)
    })
}

fn found_in(record: RecordBytes) -> Found {
    Found::of(record, Origin::NONE)
}

fn record(user: &str, sessions: &[Owned]) -> RecordBytes {
    let mut borrowed: Vec<Session<'_>> = sessions.iter().map(|session| session.borrow(user)).collect();
    record_of(user, &mut borrowed, Origin::NONE)
}

/// The bytes of one session.
fn bytes_of(session: &Session<'_>) -> Vec<u8> {
    let mut bytes = RecordBytes::new();
    put_session(session, Origin::NONE, &mut bytes);
    bytes.to_vec()
}

/// Bytes that are accepted are those that would have been written.
fn assert_holds(user: &str, bytes: &[u8]) {
    if let Ok(session) = check_session(user, bytes) {
        assert_eq!(session.user(), user);
        assert_eq!(bytes_of(&session), bytes);
    }
}

proptest! {
    #[test]
    fn records_give_their_sessions_newest_first((user, owned) in users()) {
        let record = record(&user, &owned);
        prop_assert_eq!(user_of(&record), Some(user.as_bytes()));
        let newest_first: Vec<_> = owned.iter().rev().map(|session| session.borrow(&user)).collect();
        let found = found_in(record.clone());
        prop_assert_eq!(found.iter().collect::<Vec<_>>(), newest_first.clone());
        prop_assert_eq!((found.len(), found.is_empty()), (owned.len(), owned.is_empty()));
        prop_assert_eq!(found.first(), newest_first.first().copied());
        for session in &newest_first {
            prop_assert_eq!(found.by_id(session.id), Some(*session));
            session.info.check().unwrap();
            prop_assert_eq!(session.user(), &*user);
            prop_assert!(session.has_resource(session.resource()));
            // Ids that differ in one part, which the list may happen to contain.
            let (SessionId { opened_us, node, user_hash }, id) = (session.id, session.id);
            let others = [
                SessionId { opened_us: !opened_us, ..id },
                SessionId { node: NodeId(!node.0), ..id },
                SessionId { user_hash: !user_hash, ..id },
            ];
            for other in others {
                let expected = newest_first.iter().find(|session| session.id == other);
                prop_assert_eq!(found.by_id(other), expected.copied());
            }
        }
        let backwards: Vec<_> = owned.iter().rev().cloned().collect();
        prop_assert_eq!(self::record(&user, &backwards), record, "the order in which they come does not show");
    }

    #[test]
    fn the_bytes_of_a_record_are_those_of_its_sessions((user, owned) in users()) {
        let record = record(&user, &owned);
        let mut iter = FoundIter::new(&record, Origin::NONE);
        let mut joined = RecordBytes::new();
        put_user(&user, &mut joined);
        while let Some((session, bytes)) = iter.next_with_bytes() {
            prop_assert_eq!(check_session(&user, bytes).unwrap(), session);
            prop_assert_eq!(bytes, bytes_of(&session));
            joined.extend_from_slice(bytes);
        }
        prop_assert_eq!(joined, record);
    }

    #[test]
    fn zeros_behind_a_record_are_no_sessions((user, owned) in users(), zeros in 0..40_usize) {
        let record = record(&user, &owned);
        let mut longer = record.clone();
        longer.resize(record.len() + zeros, 0);
        prop_assert_eq!(found_in(longer), found_in(record));
    }

    #[test]
    fn damaged_sessions_are_read_without_panic(
        owned in sessions(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let whole = bytes_of(&owned.borrow("ann"));
        let mut damaged = whole.clone();
        damaged[at.index(whole.len())] = byte;
        assert_holds("ann", &damaged);
        prop_assert!(check_session("ann", &whole[..at.index(whole.len())]).is_err(), "it was cut");
        let mut longer = whole;
        longer.push(byte);
        prop_assert!(check_session("ann", &longer).is_err(), "something follows it");
    }

    /// Nothing is read beyond the end of arbitrary bytes.
    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..300)) {
        let mut sessions = FoundIter::new(&bytes, Origin::NONE);
        let mut read = user_of(&bytes).map_or(0, <[u8]>::len);
        while let Some((session, own_bytes)) = sessions.next_with_bytes() {
            read += own_bytes.len();
            prop_assert!(session.resource().len() + session.info.as_bytes().len() < own_bytes.len());
            prop_assert!(session.info.iter().count() <= session.info.len());
        }
        prop_assert!(read <= bytes.len(), "no byte is read twice");
        assert_holds("ann", &bytes);
        // Bytes that begin with their own length get further.
        let mut session = RecordBytes::new();
        put(bytes.len() as u32, &mut session);
        session.extend_from_slice(&bytes);
        assert_holds("ann", &session);
    }
}

#[test]
fn nothing_is_found_in_nothing() {
    let found = Found::none();
    assert_eq!((found.len(), found.is_empty(), found.is_complete()), (0, true, true));
    assert_eq!(found.first(), None);
    assert_eq!(found, found_in(RecordBytes::from_slice(&[3, b'a', b'n', b'n'])), "a user without sessions");
    assert_ne!(found, Found::none().incomplete());
    assert!(!Found::none().incomplete().is_complete());
    assert_eq!(user_of(&[]), None);
    assert_eq!(user_of(&[4, b'a', b'n', b'n']), None);
}

#[test]
fn the_longest_of_everything_is_kept() {
    let user = "u".repeat(USER_BYTES_MAX);
    let mut info = InfoBuf::new();
    info.merge(&[(InfoKey(1), Some(InfoValue::Text(&"x".repeat(16_000))))]).unwrap();
    let id = |opened_us| SessionId { opened_us, node: NodeId(u32::MAX), user_hash: u32::MAX };
    let session = |opened_us, priority| Owned {
        id: id(opened_us),
        resource: "r".repeat(RESOURCE_BYTES_MAX),
        priority: Some(priority),
        info: info.clone(),
    };
    let owned = [session(0, i8::MIN), session(1, -1), session(2, 0), session(u64::MAX, i8::MAX)];
    let record = record(&user, &owned);
    let found = found_in(record);
    let expected: Vec<_> = owned.iter().rev().map(|session| session.borrow(&user)).collect();
    assert_eq!(found.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn what_nobody_writes_is_refused() {
    let owned = Owned {
        id: SessionId { opened_us: 1, node: NodeId(2), user_hash: 3 },
        resource: "phone".to_owned(),
        priority: Some(1),
        info: InfoBuf::new(),
    };
    let whole = bytes_of(&owned.borrow("ann"));
    assert!(check_session("ann", &whole).is_ok());
    // Length 1, head 1, id 16, priority 1, resource 5, info 1.
    let resource = 1 + 1 + 16 + 1;
    let damage = [
        ("a length that is too long", 0, whole[0] + 1),
        ("a length that is too short", 0, whole[0] - 1),
        ("a resource that is longer than the rest", 1, 0x7f),
        ("a resource that is no text", resource, 0xff),
        ("an info without its entry", whole.len() - 1, 1),
    ];
    for (what, at, byte) in damage {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        assert_holds("ann", &damaged);
        let refused = check_session("ann", &damaged).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::Corrupt), "{what}");
    }
    assert!(check_session("ann", &[]).is_err() && check_session("ann", &[0]).is_err());
    let without_info = &whole[1..whole.len() - 1];
    let mut bytes = vec![without_info.len() as u8];
    bytes.extend_from_slice(without_info);
    assert!(check_session("ann", &bytes).is_err(), "an info is never left away");
}

/// A session whose id has the node and user hash of its record has seven bytes of id.
#[test]
fn a_session_of_the_table_is_short() {
    let origin = Origin { node: NodeId(7), user_hash: 9 };
    let id = SessionId { opened_us: 0x0001_0203_0405_0607, node: NodeId(7), user_hash: 9 };
    let session = Session::new(id, "ann", "é", Info::EMPTY);
    let record = record_of("ann", &mut [session], origin);
    assert_eq!(record.to_vec(), [3, b'a', b'n', b'n', 11, 2 << 2, 7, 6, 5, 4, 3, 2, 1, 0xc3, 0xa9, 0]);
    assert_eq!(Found::of(record, origin).first(), Some(session));
}

/// The bytes are those of the documented format.
#[test]
fn a_session_is_written_as_the_format_says() {
    let mut info = InfoBuf::new();
    let changes =
        [(InfoKey::DOOR, Some(InfoValue::Text("x"))), (InfoKey::TOPICS, Some(InfoValue::Number(-3)))];
    info.merge(&changes).unwrap();
    let owned = Owned {
        id: SessionId { opened_us: 0x0102, node: NodeId(300), user_hash: 0x0a0b_0c0d },
        resource: "é".to_owned(),
        priority: Some(-1),
        info,
    };
    let session = [
        &[27][..],                       // the length of the rest
        &[2 << 2 | 2 | 1],               // two bytes of resource, a whole id, a priority
        &[0, 0, 0, 0, 0, 0, 0x01, 0x02], // opened at
        &[0, 0, 0x01, 0x2c],             // node
        &[0x0a, 0x0b, 0x0c, 0x0d],       // user hash
        &[0xff],                         // priority
        &[0xc3, 0xa9],                   // resource
        &[2, 1, 0x21, b'x', 4, 0x01, 5], // info: a text of one byte, a number of one byte
    ]
    .concat();
    assert_eq!(bytes_of(&owned.borrow("ann")), session);
    assert_eq!(record("ann", &[owned]).to_vec(), [&[3, b'a', b'n', b'n'][..], &session].concat());
}
