//! Announcements of commits.

use std::time::Duration;

use restante_core::{AccountId, Identity, Revision};
use restante_queue::{Announcement, Missed};
use tokio::time::timeout;

use crate::{Subject, common::soon, promises};

promises![
    others_hear_and_this_server_does_not,
    announcements_of_a_server_come_in_its_order,
    other_prefixes_are_not_heard,
    a_slow_listener_is_notified_of_its_gap,
    a_listener_begins_with_what_comes,
];

fn announcement(number: u64) -> Announcement {
    Announcement {
        store: Identity([1; 16]),
        account: AccountId(7),
        revision: Revision(number),
        position: number + 1_000,
    }
}

async fn others_hear_and_this_server_does_not(subject: Subject) {
    let servers = subject.announcements(3).await;
    let mut listeners: Vec<_> = servers.iter().map(|server| server.announcements.listen()).collect();
    servers[0].announcements.announce(announcement(1));
    servers[1].announcements.announce(announcement(2));
    let mut heard = Vec::new();
    for (listener, count) in listeners.iter_mut().zip([1, 1, 2]) {
        for _ in 0..count {
            heard.push(soon("an announcement", listener.next()).await.unwrap().unwrap());
        }
        assert!(timeout(Duration::from_millis(200), listener.next()).await.is_err());
    }
    assert_eq!(heard[..2], [announcement(2), announcement(1)]);
    heard[2..].sort_by_key(|one| one.revision);
    assert_eq!(heard[2..], [announcement(1), announcement(2)]);
}

async fn announcements_of_a_server_come_in_its_order(subject: Subject) {
    let servers = subject.announcements(2).await;
    let mut listener = servers[1].announcements.listen();
    for number in 0..500 {
        servers[0].announcements.announce(announcement(number));
    }
    for number in 0..500 {
        assert_eq!(soon("an announcement", listener.next()).await, Some(Ok(announcement(number))));
    }
}

async fn other_prefixes_are_not_heard(subject: Subject) {
    let servers = subject.announcements(1).await;
    let other = crate::TestQueue::new(subject.engine);
    let others = other.announcements(1).await;
    let mut listener = servers[0].announcements.listen();
    others[0].announcements.announce(announcement(1));
    assert!(timeout(Duration::from_millis(300), listener.next()).await.is_err());
    drop(others);
    other.remove().await;
}

async fn a_slow_listener_is_notified_of_its_gap(subject: Subject) {
    let servers = subject.announcements(2).await;
    let (mut slow, mut fast) = (servers[1].announcements.listen(), servers[1].announcements.listen());
    for number in 0..3_000 {
        servers[0].announcements.announce(announcement(number));
        // So that none is left out before it is sent.
        assert_eq!(soon("an announcement", fast.next()).await, Some(Ok(announcement(number))));
    }
    assert_eq!(slow.next().await, Some(Err(Missed)));
    let after = slow.next().await.unwrap().unwrap();
    assert!(after.revision > Revision(0) && after.revision < Revision(3_000));
}

async fn a_listener_begins_with_what_comes(subject: Subject) {
    let servers = subject.announcements(2).await;
    let mut first = servers[1].announcements.listen();
    servers[0].announcements.announce(announcement(1));
    assert_eq!(soon("an announcement", first.next()).await, Some(Ok(announcement(1))));
    let mut second = servers[1].announcements.listen();
    servers[0].announcements.announce(announcement(2));
    assert_eq!(soon("an announcement", second.next()).await, Some(Ok(announcement(2))));
    drop((servers, first));
}
