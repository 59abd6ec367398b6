//! Outgoing mail that a queue deals out between servers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{Error, nonzero};
use restante_delivery::DeliveryConfig;
use restante_queue::{Dealer, OpenedWork, Received, Work, local_work};
use tokio::time::sleep;

use crate::{config, world::*};

/// So many addresses, each with a domain of its own.
fn addresses(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("a@{number}.example")).collect()
}

async fn add_all(world: &World, key: u8, addresses: &[String]) {
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    world.add(key, &addresses).await;
}

/// Notes which items one server received.
struct Counting(OpenedWork, Arc<AtomicU64>);

#[async_trait]
impl Work for Counting {
    async fn publish(&self, items: &[Bytes]) -> Result<(), Error> {
        self.0.work.publish(items).await
    }

    async fn next(&self) -> Received {
        let received = self.0.work.next().await;
        self.1.fetch_add(1, SeqCst);
        received
    }

    fn dealer(&self) -> Dealer {
        self.0.work.dealer()
    }
}

/// A queue that takes everything and delivers nothing.
struct Lossy {
    dealer: Dealer,
    published: AtomicU64,
    is_full: AtomicBool,
}

impl Lossy {
    fn new(dealer: Dealer) -> Arc<Self> {
        Arc::new(Self { dealer, published: AtomicU64::new(0), is_full: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Work for Lossy {
    async fn publish(&self, items: &[Bytes]) -> Result<(), Error> {
        if self.is_full.load(SeqCst) {
            return Err(Error::full("it takes no more"));
        }
        self.published.fetch_add(items.len() as u64, SeqCst);
        Ok(())
    }

    async fn next(&self) -> Received {
        std::future::pending().await
    }

    fn dealer(&self) -> Dealer {
        self.dealer
    }
}

#[tokio::test(start_paused = true)]
async fn each_recipient_is_sent_once_and_every_server_sends_some() {
    let world = World::new(DeliveryConfig { connections_max: nonzero!(4), ..config() }).await;
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let servers = local_work(2, 8);
    let mut running = Vec::new();
    for (server, count) in servers.iter().zip(&counts) {
        let work = Arc::new(Counting(server.clone(), count.clone()));
        running.push(world.run_with(world.second(), Some(work)));
    }
    let addresses = addresses(300);
    add_all(&world, 1, &addresses).await;
    sleep(seconds(45)).await;
    assert_eq!(world.queued().await, 0);
    for address in &addresses {
        assert_eq!(world.attempts(address).len(), 1, "{address}");
    }
    let received = counts.map(|count| count.load(SeqCst));
    assert_eq!(received.iter().sum::<u64>(), 300, "each hint once: {received:?}");
    assert!(received.iter().all(|count| *count >= 50), "{received:?}");
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn recipients_are_tried_again_at_their_time() {
    let config = DeliveryConfig {
        retry_seconds: vec![0, 3, 100, 700],
        retry_jitter_percent: 0,
        delay_notice_seconds: 0,
        ..config()
    };
    let world = World::new(config).await;
    world.behave("b.example", Behavior { reply: reply(451, "4.3.0"), ..Behavior::default() });
    let servers = local_work(2, 8);
    let running = servers.iter().map(|server| world.run_with(world.second(), Some(server.work.clone())));
    let running: Vec<_> = running.collect();
    world.add(1, &["b@b.example"]).await;
    sleep(seconds(900)).await;
    let attempts = world.attempts("b@b.example");
    assert_eq!(attempts.len(), 4, "{attempts:?}");
    for (n, wait) in [3, 100, 700].into_iter().enumerate() {
        let waited = attempts[n + 1] - attempts[n];
        // Due again soon after its hint, it is known to be due again after some seconds.
        assert!((wait..=wait + 14).contains(&waited), "{attempts:?}");
    }
    for running in running {
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_server_deals_when_the_first_one_ends() {
    let world = World::new(config()).await;
    let servers = local_work(2, 8);
    let first = world.run_with(world.second(), Some(servers[0].work.clone()));
    let second = world.run_with(world.second(), Some(servers[1].work.clone()));
    sleep(seconds(2)).await;
    first.stop().await;
    servers[0].upkeep.close().await;
    let addresses = addresses(50);
    add_all(&world, 1, &addresses).await;
    sleep(seconds(10)).await;
    assert_eq!(world.queued().await, 0);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_queue_loses_is_found_when_it_is_overdue() {
    for dealer in [Dealer::AnotherServer, Dealer::ThisServer(1)] {
        let world = World::new(config()).await;
        let lossy = Lossy::new(dealer);
        let broken = world.run_with(world.second(), Some(lossy.clone()));
        let helper = world.run_with(world.second(), Some(Lossy::new(Dealer::AnotherServer)));
        let addresses = addresses(50);
        add_all(&world, 1, &addresses).await;
        sleep(seconds(30)).await;
        assert_eq!(world.queued().await, 50, "it is left to the queue at first");
        sleep(seconds(60 + 64 + 5)).await;
        assert_eq!(world.queued().await, 0);
        let published = lossy.published.load(SeqCst);
        let bound = if dealer == Dealer::AnotherServer { 0 } else { 150 };
        assert!(published <= bound, "hints are not repeated all the time: {published}");
        broken.stop().await;
        helper.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_queue_each_server_sends_at_once() {
    let world = World::new(config()).await;
    let running = world.run_with(world.second(), Some(Lossy::new(Dealer::Unknown)));
    add_all(&world, 1, &addresses(50)).await;
    sleep(seconds(3)).await;
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_full_queue_refuses_is_published_later() {
    let world = World::new(config()).await;
    let lossy = Lossy::new(Dealer::ThisServer(1));
    lossy.is_full.store(true, SeqCst);
    let running = world.run_with(world.second(), Some(lossy.clone()));
    add_all(&world, 1, &addresses(50)).await;
    sleep(seconds(20)).await;
    assert_eq!(lossy.published.load(SeqCst), 0);
    lossy.is_full.store(false, SeqCst);
    sleep(seconds(3)).await;
    assert_eq!(lossy.published.load(SeqCst), 50);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_cannot_be_read_is_rejected_and_others_are_used() {
    let world = World::new(config()).await;
    let server = &local_work(1, 8)[0];
    let unreadable = [Bytes::new(), Bytes::from_static(b"\x01\x00"), Bytes::from(vec![0xff; 100])];
    server.work.publish(&unreadable).await.unwrap();
    let running = world.run_with(world.second(), Some(server.work.clone()));
    add_all(&world, 1, &addresses(20)).await;
    sleep(seconds(5)).await;
    assert_eq!(world.queued().await, 0);
    let dead = server.upkeep.dead(10).await.unwrap();
    assert_eq!(dead.into_iter().map(|dead| dead.item).collect::<Vec<_>>(), unreadable);
    running.stop().await;
}

/// A domain that answers nothing must not take all that a server may hold.
#[tokio::test(start_paused = true)]
async fn a_slow_domain_does_not_hold_up_others() {
    let world = World::new(config()).await;
    world.behave("slow.example", Behavior { sending: seconds(3_600), ..Behavior::default() });
    let server = &local_work(1, 8)[0];
    let running = world.run_with(world.second(), Some(server.work.clone()));
    let slow: Vec<String> = (0..40).map(|number| format!("{number}@slow.example")).collect();
    add_all(&world, 1, &slow).await;
    sleep(seconds(2)).await;
    let others = addresses(100);
    add_all(&world, 2, &others).await;
    sleep(seconds(200)).await;
    for address in &others {
        assert_eq!(world.attempts(address).len(), 1, "{address}");
    }
    drop(running);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_leaves_its_hints_to_others() {
    let world = World::new(config()).await;
    world.behave("slow.example", Behavior { sending: seconds(5), ..Behavior::default() });
    let servers = local_work(2, 100);
    let first = world.run_with(world.second(), Some(servers[0].work.clone()));
    let slow: Vec<String> = (0..400).map(|number| format!("{number}@slow.example")).collect();
    for (key, some) in slow.chunks(4).enumerate() {
        add_all(&world, key as u8 + 1, some).await;
    }
    sleep(seconds(2)).await;
    first.stop().await;
    servers[0].upkeep.close().await;
    let second = world.run_with(world.second(), Some(servers[1].work.clone()));
    sleep(seconds(400)).await;
    assert_eq!(world.queued().await, 0);
    for address in &slow {
        assert_eq!(world.attempts(address).len(), 1, "{address}");
    }
    second.stop().await;
}
