use bytes::Bytes;
use restante_blobs::Source;
use restante_core::{ErrorKind, ManualClock};
use restante_records::{AccountId, Body, Change, ChangesSince, Commit, Kind, Properties, Revision};
use tokio::sync::watch;

use super::*;
use crate::records;

const THREAD: Kind = restante_mail::thread::KIND;
const ACCOUNT: AccountId = AccountId(1);
const START: Timestamp = Timestamp::from_seconds(1_700_000_000);
const HOUR: u64 = 3_600;

/// Records and blobs in memory, on a clock that stands still.
struct Place {
    clock: Arc<ManualClock>,
    kept: Kept,
    metrics: TidyMetrics,
}

impl Place {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let url = restante_records::EngineUrl::Memory;
        let records = restante_records::Config {
            clock: clock.clone(),
            ..restante_records::Config::new(url, records::schema())
        };
        let url = restante_blobs::EngineUrl::Memory;
        let blobs = restante_blobs::Config { clock: clock.clone(), ..restante_blobs::Config::new(url) };
        let kept = Kept {
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(blobs).await.unwrap(),
            removing: Removing::default(),
        };
        Self { clock, kept, metrics: TidyMetrics::default() }
    }

    fn tidying(&self) -> Tidying {
        let mut config = Config::default();
        config.records.keep_destroyed_seconds = HOUR.try_into().unwrap();
        config.records.clean_interval_seconds = 60.try_into().unwrap();
        config.blobs.sweep_grace_seconds = HOUR.try_into().unwrap();
        config.blobs.sweep_interval_seconds = 120.try_into().unwrap();
        let tidying = Tidying::new(&config, &self.kept, self.metrics.clone());
        Tidying { clock: self.clock.clone(), ..tidying }
    }

    fn pass(&self, seconds: i64) {
        self.clock.set(self.clock.now().plus_seconds(seconds));
    }

    async fn commit(&self, changes: Vec<Change>) -> Vec<restante_records::Id> {
        self.kept.records.records.commit(ACCOUNT, Commit::of(changes)).await.unwrap().created
    }

    async fn put(&self, text: &'static str) -> BlobId {
        let mut bytes = Bytes::from_static(text.as_bytes());
        self.kept.blobs.blobs.put(&mut bytes as &mut dyn Source).await.unwrap().id
    }

    async fn has(&self, id: BlobId) -> bool {
        self.kept.blobs.blobs.size(id).await.unwrap().is_some()
    }

    async fn tombstones(&self) -> u64 {
        self.kept.records.upkeep.stats().await.unwrap().kinds.iter().map(|kind| kind.tombstones).sum()
    }
}

fn create(blobs: Vec<BlobId>) -> Change {
    let body = Body { bytes: Bytes::new(), blobs };
    Change::Create { kind: THREAD, body, properties: Properties::default() }
}

#[tokio::test]
async fn what_was_destroyed_long_ago_is_forgotten() {
    let place = Place::new().await;
    // More than one step takes.
    let count = CLEAN_STEP + 10;
    let mut ids = Vec::new();
    for _ in 0..count.div_ceil(1_000) {
        ids.extend(place.commit(vec![create(Vec::new()); 1_000]).await);
    }
    let (old, young) = ids.split_at(count);
    for ids in [old, young] {
        for ids in ids.chunks(1_000) {
            place.commit(ids.iter().map(|id| Change::Destroy { kind: THREAD, id: *id }).collect()).await;
        }
        place.pass(HOUR as i64 / 2 + 60);
    }
    place.tidying().clean_and_tell().await;
    assert_eq!(place.tombstones().await, young.len() as u64);
    assert_eq!(place.metrics.turns(), [1, 0, 0, 0]);
    let since = ChangesSince { kind: None, since: Revision(1), limit: 100 };
    let error = place.kept.records.records.changes(ACCOUNT, &since).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn blobs_that_nobody_refers_to_are_removed_after_the_grace_time() {
    let place = Place::new().await;
    let (kept, refuse) = (place.put("kept").await, place.put("refuse").await);
    place.commit(vec![create(vec![kept])]).await;
    place.pass(HOUR as i64 - 1);
    place.tidying().sweep_and_tell().await;
    assert!(place.has(refuse).await, "its hour is not over");

    place.pass(2);
    let young = place.put("young").await;
    place.tidying().sweep_and_tell().await;
    assert_eq!([place.has(kept).await, place.has(refuse).await, place.has(young).await], [true, false, true]);
    assert_eq!(place.metrics.turns(), [0, 0, 2, 0]);
}

/// Records at another place than the blobs', or lost ones: everything would look like refuse. That somebody has written into
/// them does not make them the right ones.
#[tokio::test]
async fn nothing_is_swept_while_records_refer_to_nothing_that_is_there() {
    let empty = Place::new().await;
    empty.tidying().sweep_and_tell().await;
    assert_eq!(empty.metrics.turns(), [0, 0, 1, 0], "without blobs nothing is wrong");

    let place = Place::new().await;
    let blob = place.put("somebody's").await;
    place.pass(HOUR as i64 * 2);
    for other in [Vec::new(), vec![BlobId([1; 32])]] {
        let swept = sweep(&place.kept.records.upkeep, &place.kept.blobs, place.clock.now()).await;
        let error = swept.unwrap_err();
        assert!(matches!(error, SweepError::WrongRecords), "{error}");
        assert!(error.to_string().contains("`restante blobs sweep --adopt`"), "{error}");
        place.commit(vec![create(other)]).await;
    }
    place.tidying().sweep_and_tell().await;
    assert!(place.has(blob).await);
    assert_eq!(place.metrics.turns(), [0, 0, 0, 1]);

    let known = place.put("known").await;
    place.commit(vec![create(vec![known])]).await;
    place.pass(HOUR as i64 * 2);
    place.tidying().sweep_and_tell().await;
    assert_eq!([place.has(blob).await, place.has(known).await], [false, true]);
}

#[test]
fn blobs_that_outlast_the_records_are_not_swept() {
    let check = |records: &str, blobs: &str| {
        let mut config = Config::default();
        config.records.url = (!records.is_empty()).then(|| records.parse().unwrap());
        config.blobs.url = (!blobs.is_empty()).then(|| blobs.parse().unwrap());
        check_records_last(&config)
    };
    for (records, blobs) in [("", ""), ("lmdb:x", "memory:"), ("memory:", "memory:")] {
        check(records, blobs).unwrap();
    }
    let error = check("memory:", "").unwrap_err();
    assert!(error.to_string().contains("set blobs.url to memory:"), "{error}");
}

/// That others write into such records does not make them the right ones.
#[tokio::test]
async fn blobs_are_swept_with_their_own_records_alone() {
    let (ours, theirs) = (Place::new().await, Place::new().await);
    settle_owner(&*ours.kept.records.upkeep, &ours.kept.blobs).await.unwrap();
    let blob = ours.put("ours").await;
    theirs.commit(vec![create(Vec::new())]).await;
    ours.pass(HOUR as i64 * 2);
    let now = ours.clock.now();
    let error = sweep(&theirs.kept.records.upkeep, &ours.kept.blobs, now).await.unwrap_err();
    assert!(matches!(error, SweepError::OtherRecords { .. }), "{error}");
    assert!(error.to_string().contains("--adopt"), "{error}");
    assert!(ours.has(blob).await);

    // Nothing was ever committed here, and that is known to be so.
    let swept = sweep(&ours.kept.records.upkeep, &ours.kept.blobs, now).await.unwrap();
    assert_eq!(swept.removed, 1);
}

#[tokio::test(start_paused = true)]
async fn turns_come_at_their_time_and_end_with_the_server() {
    let place = Place::new().await;
    let (tell, stop) = watch::channel(false);
    let running = tokio::spawn(place.tidying().run(Stop::of(stop)));
    for (seconds, turns) in [(59, [0, 0, 0, 0]), (2, [1, 0, 0, 0]), (60, [2, 0, 1, 0])] {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(place.metrics.turns(), turns, "{seconds} s later");
    }
    tell.send(true).unwrap();
    running.await.unwrap();
    assert_eq!(place.metrics.turns(), [2, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_first_turn_waits_for_ten_minutes_at_most() {
    let (_tell, stop) = watch::channel(false);
    let turns = std::sync::atomic::AtomicU64::new(0);
    let turn = || async {
        turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let day = Duration::from_secs(86_400);
    let limit = Duration::from_secs(601);
    let _ = tokio::time::timeout(limit, repeat(day, Stop::of(stop), turn)).await;
    assert_eq!(turns.into_inner(), 1);
}
