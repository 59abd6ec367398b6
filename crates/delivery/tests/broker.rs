//! Outgoing mail that a RabbitMQ deals out between servers, and a RabbitMQ that loses everything: fault 6 of the engines that scale out.
//! `RESTANTE_TEST_MAILS=50000` for more mail.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

#[allow(dead_code, reason = "tests in paused time use more of it")]
#[path = "sender/world.rs"]
mod world;

use std::{collections::BTreeMap, env, time::Duration};

use libtest_mimic::{Arguments, Trial};
use restante_core::nonzero;
use restante_delivery::DeliveryConfig;
use restante_disk::testing::run_or_ignore;
use restante_queue::{Config, Dealer, OpenedWork, QueueConfig, open_work};
use tokio::time::{Instant, sleep};
use world::{Behavior, World, message};

const URL: &str = "RESTANTE_RABBITMQ_URL";
/// How long is waited for all mail to leave, on a machine that runs many tests.
const PATIENCE: Duration = Duration::from_secs(300);

fn url() -> Option<String> {
    env::var(URL).ok().filter(|url| !url.is_empty())
}

fn main() {
    let trials = vec![
        trial("mail_that_was_dealt_out_survives_a_wiped_broker", || run(false)),
        trial("mail_is_sent_without_the_broker", || run(true)),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(name: &str, test: fn()) -> Trial {
    Trial::ignorable_test(format!("rabbitmq::{name}"), move || {
        run_or_ignore("rabbitmq", url().is_none().then(|| format!("{URL} is not set")), test)
    })
}

fn run(is_away: bool) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let prefix = format!("d{}-{is_away}", std::process::id());
        match is_away {
            false => survive_a_wipe(&prefix).await,
            true => go_on_without(&prefix).await,
        }
    });
}

/// The queue of one server.
async fn open(prefix: &str, url: &str) -> OpenedWork {
    let shared = QueueConfig {
        prefix: prefix.to_owned(),
        prefetch: nonzero!(200),
        timeout_ms: nonzero!(20_000),
        ..QueueConfig::default()
    };
    open_work(Config { shared, ..Config::new(url.parse().unwrap()) }).await.unwrap()
}

/// The queues of a test, which another program deletes with all that is in them.
async fn wipe(prefix: &str) -> u32 {
    let connection = lapin::Connection::connect(&url().unwrap(), Default::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut deleted = 0;
    for queue in ["work", "work-dead", "dealer"] {
        let queue = format!("{prefix}-{queue}");
        deleted += channel.queue_delete(queue.into(), Default::default()).await.unwrap();
    }
    deleted
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn config() -> DeliveryConfig {
    DeliveryConfig { connections_max: nonzero!(50), sweep_seconds: nonzero!(10), ..DeliveryConfig::default() }
}

/// Queues so many mails, ten at once.
async fn queue_mails(world: &World, mails: usize) {
    for first in (0..mails).step_by(10) {
        let addresses: Vec<String> = (first..first + 10).map(|n| format!("{n}@{}.example", n % 97)).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut message = message(1, &addresses);
        message.source.key[..8].copy_from_slice(&(first as u64).to_be_bytes());
        world.queue.add(message).await.unwrap();
    }
}

/// How often each address got its mail.
fn counts(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for sent in world.sent() {
        for address in sent.recipients {
            *counts.entry(address).or_default() += 1;
        }
    }
    counts
}

async fn survive_a_wipe(prefix: &str) {
    let mails: usize = env::var("RESTANTE_TEST_MAILS").ok().map_or(10_000, |mails| mails.parse().unwrap());
    let world = World::new(config()).await;
    for domain in 0..97 {
        let behavior = Behavior { sending: Duration::from_millis(20), ..Behavior::default() };
        world.behave(&format!("{domain}.example"), behavior);
    }
    let servers = [open(prefix, &url().unwrap()).await, open(prefix, &url().unwrap()).await];
    let deals = async || servers.iter().any(|server| matches!(server.work.dealer(), Dealer::ThisServer(_)));
    until("a server deals", deals).await;
    queue_mails(&world, mails).await;
    let running = servers.iter().map(|server| world.run_with(world.second(), Some(server.work.clone())));
    let running: Vec<_> = running.collect();
    // Three times, at different stages of the work.
    let mut wiped = 0;
    for part in 1..=3 {
        until("some mail is sent", async || counts(&world).len() >= mails * part / 5).await;
        wiped += wipe(prefix).await;
    }
    until("all mail is sent", async || world.queued().await == 0).await;
    let counts = counts(&world);
    assert_eq!(counts.len(), mails, "all of it");
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "no answer of another server was lost: {twice:?}");
    println!("{mails} mails, each sent once; {wiped} hints were wiped");
    for running in running {
        running.stop().await;
    }
    for server in &servers {
        server.upkeep.close().await;
    }
    wipe(prefix).await;
}

async fn go_on_without(prefix: &str) {
    let (front, host) =
        url().map(|url| url.rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap()).unwrap();
    let (host, path) = host.split_once('/').unwrap();
    let proxy = restante_fault_proxy::Proxy::new(host.to_owned()).await.unwrap();
    let server = open(prefix, &format!("{front}@{}/{path}", proxy.address())).await;
    until("it deals", async || matches!(server.work.dealer(), Dealer::ThisServer(_))).await;
    let world = World::new(config()).await;
    let running = world.run_with(world.second(), Some(server.work.clone()));
    queue_mails(&world, 100).await;
    until("mail is sent by hints", async || world.queued().await == 0).await;
    proxy.refuse().await;
    proxy.cut();
    until("it is reported", async || server.upkeep.health().is_err()).await;
    let mut second = message(2, &["second@1.example"]);
    second.source.key = [2; 32];
    world.queue.add(second).await.unwrap();
    until("mail is sent without the broker", async || world.queued().await == 0).await;
    proxy.accept().await.unwrap();
    until("it is back", async || server.upkeep.health().is_ok()).await;
    let third = message(3, &["third@1.example"]);
    world.queue.add(third).await.unwrap();
    until("mail is sent by hints again", async || world.queued().await == 0).await;
    assert!(counts(&world).values().all(|count| *count == 1));
    running.stop().await;
    server.upkeep.close().await;
    wipe(prefix).await;
}
