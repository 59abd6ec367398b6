//! The bound on connections to a smarthost, which takes the mail of all domains.

use std::sync::atomic::Ordering::SeqCst;

use restante_core::nonzero;
use restante_delivery::{DeliveryConfig, transport::RemoteConfig};
use tokio::time::sleep;

use super::world::*;

fn config() -> DeliveryConfig {
    let remote = RemoteConfig {
        smarthost: "smtp.example.net:587".to_owned(),
        smarthost_connections_max: nonzero!(3),
        ..RemoteConfig::default()
    };
    DeliveryConfig { remote, ..DeliveryConfig::default() }
}

/// Adds a mail to each of `domains` domains. Sending a message to one of them takes `sending_seconds`.
async fn add_domains(world: &World, domains: u8, sending_seconds: u64) {
    for n in 0..domains {
        let domain = format!("d{n}.example");
        world.behave(&domain, Behavior { sending: seconds(sending_seconds), ..Behavior::default() });
        world.add(n, &[&format!("a@{domain}")]).await;
    }
}

/// Regression test: each domain had its own connections to the smarthost, and slow ones had additional slots: up to 500 at once.
#[tokio::test(start_paused = true)]
async fn out12_connections_to_the_smarthost_have_a_bound_for_all_domains_together() {
    let world = World::new(config()).await;
    // Longer than `slow_after_seconds`.
    add_domains(&world, 30, 20).await;
    let running = world.run();
    sleep(seconds(400)).await;
    assert_eq!(world.log.open_at_once_max.load(SeqCst), 3);
    assert_eq!((world.sent().len(), world.queued().await), (30, 0), "all of it is sent");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn out12_a_smarthost_that_hangs_does_not_delay_mail_for_this_server() {
    let world = World::new(config()).await;
    let running = world.run();
    world.add(200, &["first@here.example"]).await;
    sleep(seconds(5)).await;
    add_domains(&world, 30, 3_000).await;
    sleep(seconds(60)).await;
    let from = world.seconds();
    world.add(201, &["second@here.example"]).await;
    sleep(seconds(60)).await;
    let placed = world.log.local.lock().clone();
    assert_eq!(placed.len(), 2);
    assert!(placed[1].at - from <= 1, "after {} s", placed[1].at - from);
    assert_eq!(world.log.open_at_once_max.load(SeqCst), 3);
    running.stop().await;
}

/// Workers for domains of this server use no slot for connections, so they must not open one.
#[tokio::test(start_paused = true)]
async fn out12_a_domain_that_leaves_this_server_gets_its_mail_within_the_bound() {
    let world = World::new(config()).await;
    let running = world.run();
    world.add(200, &["first@here.example"]).await;
    sleep(seconds(5)).await;
    add_domains(&world, 3, 100).await;
    sleep(seconds(5)).await;
    world.log.has_moved_away.store(true, SeqCst);
    world.add(201, &["second@here.example"]).await;
    sleep(seconds(60)).await;
    assert_eq!(world.log.open_at_once_max.load(SeqCst), 3, "it waits for a connection");
    assert!(world.attempts("second@here.example").is_empty());
    sleep(seconds(100)).await;
    assert_eq!(world.attempts("second@here.example").len(), 1);
    assert_eq!((world.queued().await, world.log.open_at_once_max.load(SeqCst)), (0, 3));
    running.stop().await;
}
