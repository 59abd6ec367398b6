use rand::SeedableRng;
use restante_waku_wire::enr::{Capabilities, Contents, RelayShards};

use super::*;

fn secret(n: u32) -> [u8; 32] {
    let mut secret = [1; 32];
    secret[..4].copy_from_slice(&n.to_be_bytes());
    secret
}

fn contents(cluster: u16) -> Contents {
    Contents {
        ip: Some([192, 0, 2, 7].into()),
        tcp: Some(60_000),
        capabilities: Some(Capabilities::RELAY),
        relay_shards: Some(RelayShards { cluster, shards: vec![0] }),
        ..Contents::default()
    }
}

fn record(n: u32, seq: u64) -> Enr {
    Enr::sign(seq, &contents(42), &secret(n)).unwrap()
}

fn peer(n: u32) -> PeerId {
    record::peer_of(&record(n, 1)).unwrap()
}

fn book(cluster_id: Option<u16>) -> Book {
    Book::new(cluster_id, StdRng::seed_from_u64(7))
}

/// Takes a record that its own peer told.
fn take(book: &Book, record: Enr, now: Instant) -> Heard {
    book.take(record, |_| true, now)
}

fn later(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn the_newest_record_of_a_peer_wins() {
    let book = book(None);
    let now = later(0);
    let results: Vec<Heard> = [1, 1, 3, 2].into_iter().map(|seq| take(&book, record(1, seq), now)).collect();
    assert_eq!(results, [Heard::New, Heard::Known, Heard::Newer, Heard::Known]);
    assert_eq!(book.pick(9, peer(2), now), [record(1, 3)]);
}

#[test]
fn nobody_is_told_of_itself_and_ours_comes_only_when_there_is_room() {
    let book = book(None);
    let now = later(0);
    book.set_own(record(0, 1));
    assert_eq!(take(&book, record(0, 2), now), Heard::Useless, "our own");
    for n in 1..=3 {
        take(&book, record(n, 1), now);
    }
    let picked = |count, asker| -> Vec<PeerId> {
        let mut peers: Vec<PeerId> =
            book.pick(count, asker, now).iter().filter_map(record::peer_of).collect();
        peers.sort_by_key(|peer| (0..4).position(|n| self::peer(n) == *peer));
        peers
    };
    assert_eq!(picked(9, peer(2)), [peer(0), peer(1), peer(3)]);
    assert_eq!(picked(3, PeerId::random()), [peer(1), peer(2), peer(3)]);
    assert!(picked(0, PeerId::random()).is_empty());
}

#[test]
fn chance_names_everybody_in_time() {
    let book = book(None);
    let now = later(0);
    for n in 0..10 {
        take(&book, record(n, 1), now);
    }
    let mut named: HashMap<PeerId, u32> = HashMap::new();
    for _ in 0..200 {
        let picked = book.pick(3, PeerId::random(), now);
        assert_eq!(picked.len(), 3);
        for record in picked {
            *named.entry(record::peer_of(&record).unwrap()).or_default() += 1;
        }
    }
    assert_eq!(named.len(), 10);
    assert!(named.values().all(|times| (30..=90).contains(times)), "{named:?}");
}

#[test]
fn records_of_no_use_are_left() {
    let signed = |contents: &Contents| Enr::sign(1, contents, &secret(1)).unwrap();
    let book_of_42 = book(Some(42));
    let now = later(0);
    let useless = [
        contents(43),
        Contents { relay_shards: None, ..contents(42) },
        Contents { capabilities: None, ..contents(42) },
        Contents { tcp: None, ..contents(42) },
    ];
    for contents in useless {
        assert_eq!(take(&book_of_42, signed(&contents), now), Heard::Useless, "{contents:?}");
    }
    assert_eq!(book_of_42.len(), 0);
    assert_eq!(take(&book_of_42, signed(&contents(42)), now), Heard::New);
    let of_any = Contents { relay_shards: None, ..contents(42) };
    assert_eq!(take(&book(None), signed(&of_any), now), Heard::New);
}

#[test]
fn hearsay_is_not_handed_on_until_its_peer_was_seen() {
    let book = book(None);
    let asker = PeerId::random();
    let start = Instant::now();
    assert_eq!(book.take(record(1, 1), |_| false, start), Heard::New);
    assert!(book.pick(9, asker, start).is_empty());
    assert_eq!(book.strangers(9, |_| false, start), [(peer(1), record(1, 1))]);

    book.see([peer(1), peer(2)], start);
    assert_eq!(book.pick(9, asker, start).len(), 1);
    let almost = start + AGE_MAX - Duration::from_secs(1);
    assert_eq!(book.take(record(1, 1), |_| false, almost), Heard::Known);
    assert_eq!(book.pick(9, asker, almost).len(), 1, "hearsay does not make it unseen");
    assert!(book.pick(9, asker, start + AGE_MAX).is_empty(), "nor does it keep it alive");
    assert_eq!(book.len(), 1);
}

#[test]
fn what_is_not_heard_again_is_forgotten_in_an_hour() {
    let book = book(None);
    let start = Instant::now();
    take(&book, record(1, 1), start);
    take(&book, record(2, 1), start);
    let later = start + AGE_MAX / 2;
    take(&book, record(1, 1), later);
    let end = start + AGE_MAX;
    assert_eq!(book.pick(9, PeerId::random(), end), [record(1, 1)]);
    assert_eq!(book.len(), 1);
    book.pick(9, PeerId::random(), later + AGE_MAX);
    assert_eq!(book.len(), 0);
}

#[test]
fn a_full_book_forgets_what_was_heard_longest_ago_but_no_settings() {
    let book = book(None);
    let now = later(0);
    book.pin(record(0, 1));
    let many = u32::try_from(RECORDS_MAX).unwrap() + 50;
    for n in 1..=many {
        take(&book, record(n, 1), now);
        if n > 1 {
            assert_eq!(take(&book, record(1, 1), now), Heard::Known, "{n}");
        }
    }
    assert_eq!(book.len(), RECORDS_MAX);
    let pages = book.pages.lock();
    assert_eq!(pages.by_turn.len(), RECORDS_MAX - 1);
    let is_known = |n| pages.by_peer.contains_key(&peer(n));
    assert!(is_known(0) && is_known(1) && is_known(many) && !is_known(2) && !is_known(51));
}

#[test]
fn records_of_the_settings_stay_and_can_be_renewed() {
    let book = book(Some(42));
    let start = Instant::now();
    book.pin(record(1, 1));
    book.forget(peer(1));
    assert_eq!(book.take(record(1, 2), |_| false, start), Heard::Newer);
    assert_eq!(book.pick(9, PeerId::random(), start + 3 * AGE_MAX), [record(1, 2)]);
}

#[test]
fn an_unreachable_peer_is_forgotten_and_can_come_back() {
    let book = book(None);
    let now = later(0);
    take(&book, record(1, 1), now);
    book.forget(peer(1));
    assert_eq!(book.len(), 0);
    assert!(book.pages.lock().by_turn.is_empty());
    assert_eq!(take(&book, record(1, 1), now), Heard::New);
}
