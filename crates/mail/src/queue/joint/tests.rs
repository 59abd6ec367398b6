use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use restante_core::ErrorKind;
use restante_records::{
    Body, Change, Commit,
    testing::{Hook, Hooked},
};
use tokio::time::sleep;

use super::*;
use crate::{
    queue::{
        Claimed, Ending, Outcome, Queue, QueuedId, SourceKind,
        tests::{Store, message, postponed},
    },
    schema::queued,
};

const COMMIT: Duration = Duration::from_millis(10);

/// Commits take some time, and are counted.
#[derive(Default)]
struct SlowCommits(AtomicUsize);

#[async_trait]
impl Hook for SlowCommits {
    async fn before_commit(&self, _: &Commit) -> Result<(), Error> {
        self.0.fetch_add(1, SeqCst);
        sleep(COMMIT).await;
        Ok(())
    }
}

async fn queued_to(recipients: usize) -> (Store, Arc<Hooked<SlowCommits>>, Queue, Vec<QueuedId>) {
    let store = Store::new().await;
    let addresses: Vec<String> = (0..recipients).map(|n| format!("a@d{n}.example")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let ids = store.queue.add(message(1, SourceKind::Smtp, &addresses)).await.unwrap();
    let records = Arc::new(Hooked { inner: store.opened.records.clone(), hook: SlowCommits::default() });
    let queue = Queue::new(records.clone(), store.clock.clone());
    (store, records, queue, ids)
}

async fn claim_each(queue: &Queue, ids: &[QueuedId]) -> Vec<Claimed> {
    let lease_until = queue.now() + 300;
    let mut claims = tokio::task::JoinSet::new();
    for id in ids.iter().copied() {
        let queue = queue.clone();
        claims.spawn(async move { queue.claim(&[id], lease_until).await.unwrap() });
    }
    claims.join_all().await.into_iter().flatten().collect()
}

fn outcome(claimed: &Claimed, ending: Ending) -> Outcome {
    Outcome { endings: vec![(claimed.lease, ending)], notice: None }
}

#[tokio::test(start_paused = true)]
async fn qu3_claims_and_outcomes_that_wait_for_an_account_share_a_commit() {
    let (store, records, queue, ids) = queued_to(40).await;
    let claimed = claim_each(&queue, &ids).await;
    assert_eq!(claimed.len(), 40);
    assert_eq!(records.hook.0.swap(0, SeqCst), 2, "the first one, and all that waited for it");
    let mut ends = tokio::task::JoinSet::new();
    for claimed in claimed {
        let queue = queue.clone();
        ends.spawn(async move { queue.end(&[outcome(&claimed, Ending::Delivered)]).await.unwrap() });
    }
    assert_eq!(ends.join_all().await, [1; 40]);
    assert_eq!(records.hook.0.load(SeqCst), 2);
    assert_eq!(store.queue.totals().await.unwrap().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn qu3_what_is_claimed_twice_at_once_is_claimed_once() {
    let (_store, _records, queue, ids) = queued_to(3).await;
    let twice: Vec<QueuedId> = ids.iter().chain(&ids).copied().collect();
    let mut claimed: Vec<QueuedId> =
        claim_each(&queue, &twice).await.into_iter().map(|it| it.lease.id).collect();
    claimed.sort();
    assert_eq!(claimed, ids);
}

#[tokio::test(start_paused = true)]
async fn qu3_many_requests_are_several_commits() {
    let (_store, records, queue, ids) = queued_to(2 * RECORDS_MAX).await;
    let lease_until = queue.now() + 300;
    let claim = |from: usize, to: usize| queue.claim(&ids[from..to], lease_until);
    let page = RECORDS_MAX - 1;
    let (first, second, third) =
        tokio::join!(claim(0, page), claim(page, 2 * page), claim(2 * page, ids.len()));
    assert_eq!(first.unwrap().len() + second.unwrap().len() + third.unwrap().len(), ids.len());
    assert_eq!(records.hook.0.load(SeqCst), 3, "the last two don't fit into one");
}

/// A record whose attempt can't be noted, as it can't be read any more.
#[tokio::test(start_paused = true)]
async fn qu8_an_outcome_that_can_not_be_noted_harms_no_other() {
    let (store, _records, queue, ids) = queued_to(4).await;
    let claimed = claim_each(&queue, &ids).await;
    let change = Change::Update {
        kind: queued::KIND,
        id: claimed[2].lease.id.record,
        body: Some(Body::new("{")),
        properties: None,
    };
    store.opened.records.commit(ids[0].account, Commit::of([change])).await.unwrap();
    let due = queue.now() + 60;
    let mut ends = Vec::new();
    for claimed in &claimed {
        let (queue, outcome) = (queue.clone(), outcome(claimed, postponed(due)));
        ends.push(tokio::spawn(async move { queue.end(&[outcome]).await }));
    }
    let mut noted = Vec::new();
    for end in ends {
        noted.push(end.await.unwrap().map_err(|error| error.kind()));
    }
    assert_eq!(noted, [Ok(1), Ok(1), Err(ErrorKind::Corrupt), Ok(1)]);
}

/// The task that does the requests of others is ended while it commits, as a worker is when the server stops.
#[tokio::test(start_paused = true)]
async fn qu3_a_request_is_done_when_the_task_that_did_it_is_ended() {
    let (_store, records, queue, ids) = queued_to(3).await;
    let lease_until = queue.now() + 300;
    let claim = |number: usize| {
        let (queue, id) = (queue.clone(), ids[number]);
        tokio::spawn(async move { queue.claim(&[id], lease_until).await.unwrap().len() })
    };
    let first = claim(0);
    sleep(COMMIT / 2).await;
    let (second, third) = (claim(1), claim(2));
    sleep(COMMIT).await;
    assert!(first.is_finished() && records.hook.0.load(SeqCst) == 2, "the second one has both in hand");
    second.abort();
    assert_eq!(third.await.unwrap(), 1);
    assert_eq!(
        queue.claim(&ids[1..2], lease_until).await.unwrap().len(),
        1,
        "nothing of the second was done"
    );
}
