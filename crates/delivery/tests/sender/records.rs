//! A sender whose records fail in part.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::Error;
use restante_delivery::DeliveryConfig;
use restante_mail::queue::{Queue, QueueAccount, Selection};
use restante_records::{
    AccountId, Commit,
    testing::{Hook, Hooked},
};
use tokio::time::sleep;

use crate::world::*;

/// Records that can't be committed to, or that have accounts which can't be read.
#[derive(Default)]
struct Failing {
    is_read_only: AtomicBool,
    unreadable: Mutex<BTreeSet<AccountId>>,
}

#[async_trait]
impl Hook for Failing {
    async fn before_read(&self, account: AccountId) -> Result<(), Error> {
        if self.unreadable.lock().contains(&account) {
            return Err(Error::corrupt("a page is damaged"));
        }
        Ok(())
    }

    async fn before_commit(&self, _: &Commit) -> Result<(), Error> {
        if self.is_read_only.load(SeqCst) {
            return Err(Error::unavailable("no commits now"));
        }
        Ok(())
    }
}

fn records_of(world: &World) -> Arc<Hooked<Failing>> {
    Arc::new(Hooked { inner: world.opened.records.clone(), hook: Failing::default() })
}

fn account_of(key: u8) -> QueueAccount {
    QueueAccount::of_key(&[key; 32])
}

/// One account of the queue that could not be read kept all mail from being sent.
#[tokio::test(start_paused = true)]
async fn out2_an_account_that_can_not_be_read_delays_no_other() {
    let world = World::new(DeliveryConfig::default()).await;
    let records = records_of(&world);
    let damaged = account_of(1);
    records.hook.unreadable.lock().insert(damaged.account());
    let others: Vec<u8> = (2..=60).filter(|key| account_of(*key) != damaged).collect();
    world.add(1, &["a@damaged.example"]).await;
    let running = world.run_on(Queue::new(records.clone(), world.clock.clone()));
    for key in &others {
        world.add(*key, &["a@b.example"]).await;
    }
    sleep(seconds(5)).await;
    assert_eq!(world.attempts("a@b.example").len(), others.len());
    assert_eq!(world.attempts("a@damaged.example").len(), 0);
    records.hook.unreadable.lock().clear();
    sleep(seconds(5)).await;
    assert_eq!(world.attempts("a@damaged.example").len(), 1);
    running.stop().await;
}

/// After a minute without commits a delivery was forgotten, and the mail was sent again.
#[tokio::test(start_paused = true)]
async fn out5_a_delivery_is_noted_however_long_that_takes() {
    let world = World::new(DeliveryConfig::default()).await;
    let records = records_of(&world);
    world.behave("b.example", Behavior { sending: seconds(2), ..Behavior::default() });
    world.add(1, &["a@b.example"]).await;
    let running = world.run_on(Queue::new(records.clone(), world.clock.clone()));
    sleep(seconds(1)).await;
    records.hook.is_read_only.store(true, SeqCst);
    sleep(seconds(3_600)).await;
    assert_eq!(world.queued().await, 1);
    records.hook.is_read_only.store(false, SeqCst);
    sleep(seconds(100)).await;
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.attempts("a@b.example").len(), 1);
    // A server that stops does not wait for it.
    world.add(2, &["a@b.example"]).await;
    sleep(seconds(1)).await;
    records.hook.is_read_only.store(true, SeqCst);
    sleep(seconds(200)).await;
    let before = world.seconds();
    running.stop().await;
    assert!(world.seconds() - before <= 31);
}

/// An operator dropped and held mail of a domain whose server was slow, and the rest of the batch was sent all the same.
#[tokio::test(start_paused = true)]
async fn out5_what_is_dropped_or_held_after_its_claim_is_not_sent() {
    let world = World::new(DeliveryConfig::default()).await;
    world.behave("b.example", Behavior { sending: seconds(30), ..Behavior::default() });
    // They are in one account, so that one worker claims them together.
    let keys: Vec<u8> = (0..=255).filter(|key| account_of(*key) == account_of(0)).take(4).collect();
    let mut ids = Vec::new();
    for key in &keys {
        ids.extend(world.add(*key, &["a@b.example"]).await);
    }
    let running = world.run();
    sleep(seconds(15)).await;
    let claimed = world.queue.get(ids[2]).await.unwrap().unwrap();
    assert!(claimed.is_leased);
    world.queue.drop_ids(&ids[1..2]).await.unwrap();
    world.queue.hold(&Selection::Ids(vec![ids[2]]), "spam?").await.unwrap();
    sleep(seconds(200)).await;
    let sent: Vec<u8> = world.sent().iter().map(|sent| sent.key).collect();
    assert_eq!(sent, [keys[0], keys[3]]);
    let held = world.queue.get(ids[2]).await.unwrap().unwrap();
    assert_eq!((held.is_leased, held.attempts), (false, 0), "it was not tried");
    world.queue.release(&Selection::Ids(vec![ids[2]])).await.unwrap();
    sleep(seconds(60)).await;
    assert_eq!(world.queued().await, 0);
    running.stop().await;
}
