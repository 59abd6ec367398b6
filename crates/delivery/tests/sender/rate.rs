//! How many domains a sender gets through while commits take their time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use restante_core::{Error, nonzero};
use restante_delivery::DeliveryConfig;
use restante_mail::queue::Queue;
use restante_records::{
    AccountId, Commit,
    testing::{Hook, Hooked},
};
use tokio::time::{Instant, sleep};

use crate::world::World;

/// As on a disk that syncs a hundred times a second.
const COMMIT: Duration = Duration::from_millis(10);

/// Commits take their time, and are counted, as reads are.
#[derive(Default)]
struct SlowCommits {
    commits: AtomicUsize,
    reads: AtomicUsize,
}

#[async_trait]
impl Hook for SlowCommits {
    async fn before_read(&self, _: AccountId) -> Result<(), Error> {
        self.reads.fetch_add(1, SeqCst);
        Ok(())
    }

    async fn before_commit(&self, _: &Commit) -> Result<(), Error> {
        self.commits.fetch_add(1, SeqCst);
        sleep(COMMIT).await;
        Ok(())
    }
}

/// A new domain costs a connection of 10 ms, a message of 10 ms, and two commits of 10 ms, which others of the same account wait for: they share them. The
/// connection is made while the recipient is claimed, and another domain has its place while the outcome is noted.
#[tokio::test(start_paused = true)]
async fn out2_new_domains_share_commits_and_have_places_only_while_they_are_connected() {
    const MESSAGES: u8 = 200;
    const DOMAINS: usize = 4_000;
    let config = DeliveryConfig { connections_max: nonzero!(50), ..DeliveryConfig::default() };
    let world = World::new(config).await;
    for key in 0..MESSAGES {
        let domains = DOMAINS / usize::from(MESSAGES);
        let address = |n| format!("a@d{}.example", usize::from(key) * domains + n);
        let addresses: Vec<String> = (0..domains).map(address).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        world.add(key, &addresses).await;
    }
    let records = Arc::new(Hooked { inner: world.opened.records.clone(), hook: SlowCommits::default() });
    let begun = Instant::now();
    let running = world.run_on(Queue::new(records.clone(), world.clock.clone()));
    while world.log.sent.lock().len() < DOMAINS {
        sleep(Duration::from_millis(1)).await;
    }
    let per_second = DOMAINS as f64 / begun.elapsed().as_secs_f64();
    let (commits, reads) = (records.hook.commits.load(SeqCst), records.hook.reads.load(SeqCst));
    running.stop().await;
    println!("{per_second:.0} mails/s, {commits} commits, {reads} reads");
    assert_eq!(world.queued().await, 0);
    let mut sent: BTreeMap<String, usize> = BTreeMap::new();
    world.sent().into_iter().for_each(|mail| *sent.entry(mail.domain).or_default() += 1);
    assert!(sent.len() == DOMAINS && sent.values().all(|times| *times == 1));
    assert!(world.log.open_at_once_max.load(SeqCst) <= 50);
    // One after the other they were 7,960 commits, and 109 mails a second.
    assert!(commits <= DOMAINS / 2, "{commits} commits");
    assert!(per_second >= 500.0, "{per_second}");
}
