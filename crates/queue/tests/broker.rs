//! A RabbitMQ that loses its data, stops, hangs and is available again.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "common/mod.rs"]
mod common;

use std::{net::SocketAddr, time::Duration};

use common::{
    Engine, TestQueue, blocking::Blocking, channel, finish, items, next, run, soon, trial, until, wipe,
};
use lapin::Confirmation;
use libtest_mimic::Arguments;
use restante_core::{AccountId, ErrorKind, Identity, Revision, nonzero};
use restante_fault_proxy::{Direction, Proxy};
use restante_queue::{Announcement, Config, Dealer, Missed, open_announcements, open_work};

macro_rules! trials {
    ($($engine:expr => $name:ident),* $(,)?) => {
        vec![$(trial($engine, stringify!($name), || run($engine, |subject| async move { $name(&subject).await }))),*]
    };
}

fn main() {
    use Engine::{Rabbitmq, Redis};
    let trials = trials![
        Rabbitmq => a_wiped_queue_is_made_anew,
        Rabbitmq => a_lost_connection_is_made_anew,
        Rabbitmq => a_broker_that_is_away_is_no_error_at_the_start,
        Rabbitmq => a_broker_that_hangs_is_given_up,
        Rabbitmq => a_broker_that_is_short_of_memory_gets_nothing_until_it_is_not,
        Rabbitmq => an_unreadable_message_goes_to_the_dead_items_at_once,
        Rabbitmq => a_queue_of_another_kind_is_reported,
        Rabbitmq => announcements_of_rabbitmq_come_back,
        Redis => announcements_of_redis_come_back,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// A proxy in front of the engine, and the configuration of a server behind it.
async fn behind_proxy(subject: &TestQueue) -> (Proxy, Config) {
    let proxy = Proxy::new(host(subject)).await.unwrap();
    let config = config_at(subject, proxy.address());
    (proxy, config)
}

/// Where the engine is.
fn host(subject: &TestQueue) -> String {
    let url = subject.engine.url().unwrap();
    let (_, host) = url.rsplit_once('@').unwrap_or_else(|| url.split_once("//").unwrap());
    host.split_once('/').map_or(host, |(host, _)| host).to_owned()
}

/// The configuration of a server that reaches the engine at another address, and gives up soon.
fn config_at(subject: &TestQueue, address: SocketAddr) -> Config {
    let url = subject.engine.url().unwrap();
    let mut config = subject.config();
    config.url = url.replacen(&host(subject), &address.to_string(), 1).parse().unwrap();
    config.shared.timeout_ms = nonzero!(3_000);
    config
}

async fn a_wiped_queue_is_made_anew(subject: &TestQueue) {
    let server = &subject.work(1).await[0];
    until("it deals", async || matches!(server.work.dealer(), Dealer::ThisServer(_))).await;
    let before = server.work.dealer();
    let held = {
        server.work.publish(&items(0..100)).await.unwrap();
        next(server).await
    };
    let names = ["work", "work-dead", "dealer"].map(|name| format!("{}-{name}", subject.prefix));
    wipe(&subject.engine.url().unwrap(), &names).await;
    // The number shows that what was published before may be lost.
    until("it deals anew", async || {
        matches!(server.work.dealer(), Dealer::ThisServer(_)) && server.work.dealer() != before
    })
    .await;
    held.ticket.done();
    server.work.publish(&items(200..300)).await.unwrap();
    assert_eq!(finish(server, 100).await, items(200..300).into_iter().collect());
    server.upkeep.close().await;
}

async fn a_lost_connection_is_made_anew(subject: &TestQueue) {
    let (proxy, config) = behind_proxy(subject).await;
    let server = open_work(config).await.unwrap();
    server.work.publish(&items(0..20)).await.unwrap();
    let held = next(&server).await;
    proxy.refuse().await;
    proxy.cut();
    until("it is reported", async || server.upkeep.health().is_err()).await;
    assert_eq!(server.work.dealer(), Dealer::Unknown);
    assert_eq!(server.work.publish(&items(0..1)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.accept().await.unwrap();
    until("it is back", async || server.upkeep.health().is_ok()).await;
    held.ticket.done(); // too late: the broker has returned the item
    assert_eq!(finish(&server, 20).await, items(0..20).into_iter().collect());
    server.upkeep.close().await;
}

async fn a_broker_that_is_away_is_no_error_at_the_start(subject: &TestQueue) {
    let (proxy, config) = behind_proxy(subject).await;
    proxy.refuse().await;
    let server = open_work(config).await.unwrap();
    assert_eq!(server.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    proxy.accept().await.unwrap();
    until("it is there", async || server.upkeep.health().is_ok()).await;
    server.work.publish(&items(0..1)).await.unwrap();
    finish(&server, 1).await;
    server.upkeep.close().await;
}

async fn a_broker_that_hangs_is_given_up(subject: &TestQueue) {
    let (proxy, config) = behind_proxy(subject).await;
    let server = open_work(config).await.unwrap();
    server.work.publish(&items(0..5)).await.unwrap();
    for direction in [Direction::ToClient, Direction::ToServer] {
        proxy.silence(direction);
        let error = soon("an error", server.work.publish(&items(5..6))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        until("it is reported", async || server.upkeep.health().is_err()).await;
        proxy.heal();
        until("it is back", async || server.upkeep.health().is_ok()).await;
    }
    server.work.publish(&items(6..7)).await.unwrap();
    // What was published while it was silent may have been added, too.
    let mut seen = finish(&server, 6).await;
    if !seen.contains(&items(6..7)[0]) {
        seen.extend(finish(&server, 1).await);
    }
    assert!(items(0..5).iter().all(|item| seen.contains(item)), "{seen:?}");
    server.upkeep.close().await;
}

/// What a server tries to send is refused at once, and is not collected in memory.
async fn a_broker_that_is_short_of_memory_gets_nothing_until_it_is_not(subject: &TestQueue) {
    let proxy = Blocking::before(host(subject)).await;
    let server = open_work(config_at(subject, proxy.address)).await.unwrap();
    server.work.publish(&items(0..5)).await.unwrap();
    for round in 0..2 {
        proxy.set(true);
        until("it is reported", async || server.upkeep.health().is_err()).await;
        for _ in 0..1_000 {
            let error = server.work.publish(&items(100..200)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("short of memory or disk space"), "{error}");
        }
        // No server waits for the broker: each looks for its own work.
        assert_eq!(server.work.dealer(), Dealer::Unknown);
        proxy.set(false);
        until("it takes items again", async || server.upkeep.health().is_ok()).await;
        server.work.publish(&items(10 * round + 5..10 * round + 10)).await.unwrap();
    }
    let expected = items(0..10).into_iter().chain(items(15..20)).collect();
    assert_eq!(finish(&server, 15).await, expected, "nothing that was refused was sent");
    server.upkeep.close().await;
}

/// A message of another program, longer than any item.
async fn an_unreadable_message_goes_to_the_dead_items_at_once(subject: &TestQueue) {
    let server = &subject.work(1).await[0];
    let (_connection, channel) = channel(&subject.engine.url().unwrap()).await;
    // The confirm means that the queue has it: an item that another connection publishes later follows it.
    channel.confirm_select(Default::default()).await.unwrap();
    let queue = format!("{}-work", subject.prefix);
    let publishing = channel.basic_publish(
        "".into(),
        queue.as_str().into(),
        Default::default(),
        &[0xff; 5_000],
        Default::default(),
    );
    assert!(matches!(publishing.await.unwrap().await.unwrap(), Confirmation::Ack(None)));
    server.work.publish(&items(0..1)).await.unwrap();
    assert_eq!(next(server).await.item, items(0..1)[0]);
    until("it is dead", async || server.upkeep.stats().await.unwrap().dead == 1).await;
    server.upkeep.close().await;
}

async fn a_queue_of_another_kind_is_reported(subject: &TestQueue) {
    let (_connection, channel) = channel(&subject.engine.url().unwrap()).await;
    let queue = format!("{}-work", subject.prefix);
    channel.queue_declare(queue.into(), Default::default(), Default::default()).await.unwrap();
    let server = open_work(subject.config()).await.unwrap();
    let error = server.upkeep.health().unwrap_err().to_string();
    assert!(error.contains("can't declare the queue"), "{error}");
    server.upkeep.close().await;
}

fn announcement(number: u64) -> Announcement {
    Announcement {
        store: Identity([1; 16]),
        account: AccountId(7),
        revision: Revision(number),
        position: number,
    }
}

async fn announcements_of_rabbitmq_come_back(subject: &TestQueue) {
    announcements_come_back(subject).await;
}

async fn announcements_of_redis_come_back(subject: &TestQueue) {
    announcements_come_back(subject).await;
}

async fn announcements_come_back(subject: &TestQueue) {
    let (proxy, config) = behind_proxy(subject).await;
    let (behind, beside) =
        (open_announcements(config).await.unwrap(), open_announcements(subject.config()).await.unwrap());
    let mut listener = behind.announcements.listen();
    beside.announcements.announce(announcement(1));
    assert_eq!(soon("an announcement", listener.next()).await, Some(Ok(announcement(1))));
    proxy.refuse().await;
    proxy.cut();
    assert_eq!(soon("the gap", listener.next()).await, Some(Err(Missed)));
    until("it is reported", async || (behind.problem)().is_some()).await;
    proxy.accept().await.unwrap();
    until("it is back", async || (behind.problem)().is_none()).await;
    beside.announcements.announce(announcement(2));
    assert_eq!(soon("an announcement", listener.next()).await, Some(Ok(announcement(2))));
    // A connection on which nothing arrives any more is detected by the messages that this server sends itself.
    proxy.silence(Direction::ToClient);
    assert_eq!(soon("the gap", listener.next()).await, Some(Err(Missed)));
    proxy.heal();
    until("it is back again", async || (behind.problem)().is_none()).await;
    tokio::time::sleep(Duration::ZERO).await;
}
