//! Items: each for one server.

use std::collections::HashSet;

use bytes::Bytes;
use restante_core::ErrorKind;
use restante_queue::{Dealer, ITEM_BYTES_MAX, PUBLISH_ITEMS_MAX, Received, WAITING_MAX};

use crate::{
    Subject,
    common::{finish, is_quiet, items, next, soon, until},
    promises,
};

promises![
    published_items_are_received,
    finished_items_come_no_more,
    an_item_goes_to_one_of_several_servers,
    returned_items_come_again,
    items_of_a_server_that_ends_go_to_others,
    items_wait_for_a_server,
    no_more_is_held_than_the_bound,
    waiting_may_be_cancelled,
    one_server_deals_and_another_follows,
    too_many_and_too_long_items_are_refused,
    a_full_queue_refuses,
    a_closed_queue_takes_nothing,
];

async fn published_items_are_received(subject: Subject) {
    let server = &subject.work(1).await[0];
    server.work.publish(&items(0..100)).await.unwrap();
    server.work.publish(&[]).await.unwrap();
    assert_eq!(finish(server, 100).await, items(0..100).into_iter().collect());
    server.upkeep.close().await;
}

async fn finished_items_come_no_more(subject: Subject) {
    let servers = subject.work(2).await;
    servers[0].work.publish(&items(0..20)).await.unwrap();
    finish(&servers[0], 10).await;
    let rest: HashSet<Bytes> = finish_all(&servers, 10).await.into_iter().collect();
    assert_eq!(rest.len(), 10);
    until("the last are done", async || servers[1].upkeep.stats().await.unwrap().waiting == 0).await;
    for server in &servers {
        assert!(is_quiet(server).await);
        server.upkeep.close().await;
    }
}

/// Finishes this many items; it doesn't matter which servers receive them.
async fn finish_all(servers: &[restante_queue::OpenedWork], count: usize) -> Vec<Bytes> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let received = tokio::select! {
            received = next(&servers[0]) => received,
            received = next(&servers[1]) => received,
        };
        seen.push(received.item.clone());
        received.ticket.done();
    }
    seen
}

async fn an_item_goes_to_one_of_several_servers(subject: Subject) {
    let servers = subject.work(2).await;
    servers[0].work.publish(&items(0..200)).await.unwrap();
    let mut seen = finish_all(&servers, 200).await;
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 200, "each once");
    for server in &servers {
        assert!(is_quiet(server).await);
        server.upkeep.close().await;
    }
}

async fn returned_items_come_again(subject: Subject) {
    let server = &subject.work(1).await[0];
    server.work.publish(&items(0..1)).await.unwrap();
    for _ in 0..5 {
        let received = next(server).await;
        assert_eq!(received.item, items(0..1)[0]);
        drop(received.ticket);
    }
    next(server).await.ticket.done();
    assert!(is_quiet(server).await);
    server.upkeep.close().await;
}

async fn items_of_a_server_that_ends_go_to_others(subject: Subject) {
    let servers = subject.work(2).await;
    servers[0].work.publish(&items(0..10)).await.unwrap();
    let mut held = Vec::new();
    while held.len() < 3 {
        held.push(next(&servers[1]).await);
    }
    servers[1].upkeep.close().await;
    assert_eq!(finish(&servers[0], 10).await.len(), 10);
    // Too late.
    held.into_iter().for_each(|received| received.ticket.done());
    servers[0].upkeep.close().await;
}

async fn items_wait_for_a_server(subject: Subject) {
    let servers = subject.work(2).await;
    servers[0].work.publish(&items(0..50)).await.unwrap();
    servers[0].upkeep.close().await;
    assert_eq!(finish(&servers[1], 50).await.len(), 50);
    servers[1].upkeep.close().await;
}

async fn no_more_is_held_than_the_bound(subject: Subject) {
    let server = &subject.work(1).await[0];
    let bound = usize::from(subject.config().shared.prefetch.get());
    server.work.publish(&items(0..50)).await.unwrap();
    let mut held = Vec::new();
    while held.len() < bound {
        held.push(next(server).await);
    }
    assert!(is_quiet(server).await);
    held.pop().unwrap().ticket.done();
    let _more = next(server).await;
    assert!(is_quiet(server).await);
    server.upkeep.close().await;
}

async fn waiting_may_be_cancelled(subject: Subject) {
    let server = &subject.work(1).await[0];
    for number in 0..20 {
        assert!(tokio::time::timeout(std::time::Duration::ZERO, server.work.next()).await.is_err());
        server.work.publish(&items(number..number + 1)).await.unwrap();
        let Received { item, ticket } = next(server).await;
        assert_eq!(item, items(number..number + 1)[0]);
        ticket.done();
    }
    server.upkeep.close().await;
}

async fn one_server_deals_and_another_follows(subject: Subject) {
    let servers = subject.work(3).await;
    let deals = |server: usize| matches!(servers[server].work.dealer(), Dealer::ThisServer(_));
    until("one deals", async || (0..3).any(deals)).await;
    let first = (0..3).find(|server| deals(*server)).unwrap();
    until("the others know", async || {
        (0..3).filter(|server| servers[*server].work.dealer() == Dealer::AnotherServer).count() == 2
    })
    .await;
    servers[first].upkeep.close().await;
    assert_eq!(servers[first].work.dealer(), Dealer::Unknown);
    until("another one deals", async || (0..3).any(|server| server != first && deals(server))).await;
    for server in &servers {
        server.upkeep.close().await;
    }
}

async fn too_many_and_too_long_items_are_refused(subject: Subject) {
    let server = &subject.work(1).await[0];
    let many = vec![Bytes::from_static(b"x"); PUBLISH_ITEMS_MAX + 1];
    let long = [Bytes::from_static(b"x"), Bytes::from(vec![b'x'; ITEM_BYTES_MAX + 1])];
    for refused in [&many[..], &long] {
        assert_eq!(server.work.publish(refused).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(is_quiet(server).await, "nothing of it was added");
    server.work.publish(&many[1..]).await.unwrap();
    server.work.publish(&[Bytes::from(vec![b'x'; ITEM_BYTES_MAX])]).await.unwrap();
    server.upkeep.close().await;
}

async fn a_full_queue_refuses(subject: Subject) {
    let server = &subject.work(1).await[0];
    let items = vec![Bytes::from_static(b"x"); PUBLISH_ITEMS_MAX];
    let mut added = 0;
    let error = soon("the queue is full", async {
        loop {
            match server.work.publish(&items).await {
                Ok(()) => added += items.len(),
                Err(error) => return error,
            }
        }
    })
    .await;
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(added <= WAITING_MAX + 2 * PUBLISH_ITEMS_MAX, "{added}");
    server.upkeep.health().unwrap();
    server.upkeep.close().await;
}

async fn a_closed_queue_takes_nothing(subject: Subject) {
    let server = &subject.work(1).await[0];
    server.work.publish(&items(0..1)).await.unwrap();
    server.upkeep.close().await;
    server.upkeep.close().await;
    assert_eq!(server.work.publish(&items(1..2)).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(server.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(server.upkeep.stats().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(is_quiet(server).await);
}
