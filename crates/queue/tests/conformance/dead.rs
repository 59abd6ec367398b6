//! Items that no server can use.

use restante_queue::{OpenedWork, RETURNS_MAX, Stats};

use crate::{
    Subject,
    common::{finish, is_quiet, items, next, until},
    promises,
};

promises![
    rejected_items_are_dead_at_once,
    items_that_are_returned_too_often_are_dead,
    dead_items_are_requeued,
    dead_items_are_dropped,
];

/// Rejects this many items, and waits until they are dead.
async fn bury(server: &OpenedWork, count: u32) {
    server.work.publish(&items(0..count)).await.unwrap();
    for _ in 0..count {
        next(server).await.ticket.reject();
    }
    until("they are dead", async || {
        server.upkeep.stats().await.unwrap() == Stats { waiting: 0, dead: count.into() }
    })
    .await;
}

async fn rejected_items_are_dead_at_once(subject: Subject) {
    let server = &subject.work(1).await[0];
    bury(server, 5).await;
    assert!(is_quiet(server).await);
    // Listing them changes nothing.
    for _ in 0..2 {
        let mut dead = server.upkeep.dead(100).await.unwrap();
        dead.sort_by(|one, other| one.item.cmp(&other.item));
        assert!(dead.iter().all(|dead| dead.reason == "rejected"), "{dead:?}");
        assert_eq!(dead.into_iter().map(|dead| dead.item).collect::<Vec<_>>(), items(0..5));
        until("they are there", async || server.upkeep.stats().await.unwrap().dead == 5).await;
    }
    assert_eq!(server.upkeep.dead(2).await.unwrap().len(), 2);
    server.upkeep.close().await;
}

async fn items_that_are_returned_too_often_are_dead(subject: Subject) {
    let server = &subject.work(1).await[0];
    server.work.publish(&items(0..1)).await.unwrap();
    for _ in 0..=RETURNS_MAX {
        drop(next(server).await.ticket);
    }
    until("it is dead", async || server.upkeep.stats().await.unwrap().dead == 1).await;
    assert!(is_quiet(server).await);
    assert_eq!(server.upkeep.dead(10).await.unwrap()[0].reason, "delivery_limit");
    server.upkeep.close().await;
}

async fn dead_items_are_requeued(subject: Subject) {
    let server = &subject.work(1).await[0];
    assert_eq!(server.upkeep.requeue_dead().await.unwrap(), 0);
    bury(server, 5).await;
    assert_eq!(server.upkeep.requeue_dead().await.unwrap(), 5);
    assert_eq!(finish(server, 5).await, items(0..5).into_iter().collect());
    until("none is dead", async || server.upkeep.stats().await.unwrap() == Stats::default()).await;
    server.upkeep.close().await;
}

async fn dead_items_are_dropped(subject: Subject) {
    let server = &subject.work(1).await[0];
    bury(server, 5).await;
    assert_eq!(server.upkeep.drop_dead().await.unwrap(), 5);
    assert_eq!(server.upkeep.stats().await.unwrap(), Stats::default());
    assert_eq!(server.upkeep.dead(10).await.unwrap(), []);
    assert!(is_quiet(server).await);
    server.upkeep.close().await;
}
