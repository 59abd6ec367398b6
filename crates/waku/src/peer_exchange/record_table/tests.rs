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

fn table(cluster_id: Option<u16>) -> RecordTable {
    RecordTable::new(cluster_id, StdRng::seed_from_u64(7))
}

/// Adds a record that its own peer sent.
fn add(table: &RecordTable, record: Enr, now: Instant) -> RecordResult {
    table.add(record, |_| true, now)
}

fn later(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn the_newest_record_of_a_peer_wins() {
    let table = table(None);
    let now = later(0);
    let results: Vec<RecordResult> =
        [1, 1, 3, 2].into_iter().map(|seq| add(&table, record(1, seq), now)).collect();
    assert_eq!(results, [RecordResult::New, RecordResult::Known, RecordResult::Newer, RecordResult::Known]);
    assert_eq!(table.pick(9, peer(2), now), [record(1, 3)]);
}

#[test]
fn a_peer_does_not_get_its_own_record_and_ours_only_fills_up() {
    let table = table(None);
    let now = later(0);
    table.set_own(record(0, 1));
    assert_eq!(add(&table, record(0, 2), now), RecordResult::Useless, "our own");
    for n in 1..=3 {
        add(&table, record(n, 1), now);
    }
    let picked = |count, asker| -> Vec<PeerId> {
        let mut peers: Vec<PeerId> =
            table.pick(count, asker, now).iter().filter_map(record::peer_of).collect();
        peers.sort_by_key(|peer| (0..4).position(|n| self::peer(n) == *peer));
        peers
    };
    assert_eq!(picked(9, peer(2)), [peer(0), peer(1), peer(3)]);
    assert_eq!(picked(3, PeerId::random()), [peer(1), peer(2), peer(3)]);
    assert!(picked(0, PeerId::random()).is_empty());
}

#[test]
fn every_record_is_picked_at_some_time() {
    let table = table(None);
    let now = later(0);
    for n in 0..10 {
        add(&table, record(n, 1), now);
    }
    let mut named: HashMap<PeerId, u32> = HashMap::new();
    for _ in 0..200 {
        let picked = table.pick(3, PeerId::random(), now);
        assert_eq!(picked.len(), 3);
        for record in picked {
            *named.entry(record::peer_of(&record).unwrap()).or_default() += 1;
        }
    }
    assert_eq!(named.len(), 10);
    assert!(named.values().all(|times| (30..=90).contains(times)), "{named:?}");
}

#[test]
fn useless_records_are_ignored() {
    let signed = |contents: &Contents| Enr::sign(1, contents, &secret(1)).unwrap();
    let table_of_42 = table(Some(42));
    let now = later(0);
    let useless = [
        contents(43),
        Contents { relay_shards: None, ..contents(42) },
        Contents { capabilities: None, ..contents(42) },
        Contents { tcp: None, ..contents(42) },
    ];
    for contents in useless {
        assert_eq!(add(&table_of_42, signed(&contents), now), RecordResult::Useless, "{contents:?}");
    }
    assert_eq!(table_of_42.len(), 0);
    assert_eq!(add(&table_of_42, signed(&contents(42)), now), RecordResult::New);
    let of_any = Contents { relay_shards: None, ..contents(42) };
    assert_eq!(add(&table(None), signed(&of_any), now), RecordResult::New);
}

#[test]
fn a_record_from_another_peer_is_not_shared_until_its_peer_was_seen() {
    let table = table(None);
    let asker = PeerId::random();
    let start = Instant::now();
    assert_eq!(table.add(record(1, 1), |_| false, start), RecordResult::New);
    assert!(table.pick(9, asker, start).is_empty());
    assert_eq!(table.pick_to_dial(9, |_| false, start), [(peer(1), record(1, 1))]);

    table.mark_seen([peer(1), peer(2)], start);
    assert_eq!(table.pick(9, asker, start).len(), 1);
    let almost = start + AGE_MAX - Duration::from_secs(1);
    assert_eq!(table.add(record(1, 1), |_| false, almost), RecordResult::Known);
    assert_eq!(table.pick(9, asker, almost).len(), 1, "a record from another peer does not reset it");
    assert!(table.pick(9, asker, start + AGE_MAX).is_empty(), "and does not extend it");
    assert_eq!(table.len(), 1);
}

#[test]
fn records_that_are_not_received_again_expire_after_an_hour() {
    let table = table(None);
    let start = Instant::now();
    add(&table, record(1, 1), start);
    add(&table, record(2, 1), start);
    let later = start + AGE_MAX / 2;
    add(&table, record(1, 1), later);
    let end = start + AGE_MAX;
    assert_eq!(table.pick(9, PeerId::random(), end), [record(1, 1)]);
    assert_eq!(table.len(), 1);
    table.pick(9, PeerId::random(), later + AGE_MAX);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_full_table_removes_the_oldest_record_but_none_of_the_settings() {
    let table = table(None);
    let now = later(0);
    table.pin(record(0, 1));
    let many = u32::try_from(RECORDS_MAX).unwrap() + 50;
    for n in 1..=many {
        add(&table, record(n, 1), now);
        if n > 1 {
            assert_eq!(add(&table, record(1, 1), now), RecordResult::Known, "{n}");
        }
    }
    assert_eq!(table.len(), RECORDS_MAX);
    let inner = table.table.lock();
    assert_eq!(inner.by_number.len(), RECORDS_MAX - 1);
    let is_known = |n| inner.by_peer.contains_key(&peer(n));
    assert!(is_known(0) && is_known(1) && is_known(many) && !is_known(2) && !is_known(51));
}

#[test]
fn records_of_the_settings_stay_and_can_be_updated() {
    let table = table(Some(42));
    let start = Instant::now();
    table.pin(record(1, 1));
    table.remove(peer(1));
    assert_eq!(table.add(record(1, 2), |_| false, start), RecordResult::Newer);
    assert_eq!(table.pick(9, PeerId::random(), start + 3 * AGE_MAX), [record(1, 2)]);
}

#[test]
fn the_record_of_an_unreachable_peer_is_removed_and_can_be_added_again() {
    let table = table(None);
    let now = later(0);
    add(&table, record(1, 1), now);
    table.remove(peer(1));
    assert_eq!(table.len(), 0);
    assert!(table.table.lock().by_number.is_empty());
    assert_eq!(add(&table, record(1, 1), now), RecordResult::New);
}
