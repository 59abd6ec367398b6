use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use super::*;

const PUBLISHERS: u64 = 3;
const EVENTS: u64 = 3_000;
const READERS: u64 = 4;

fn wide() -> SubscriptionConfig {
    SubscriptionConfig { events_max: usize::MAX, bytes_max: usize::MAX, ..config(Overflow::End) }
}

/// Number of a publisher's n-th event.
fn number(publisher: u64, n: u64) -> u64 {
    publisher * EVENTS + n
}

/// The n of each publisher's events, in the order of their arrival.
fn by_publisher(read: &[u64]) -> Vec<Vec<u64>> {
    let of = |publisher| read.iter().filter(move |number| *number / EVENTS == publisher);
    (0..PUBLISHERS).map(|publisher| of(publisher).map(|number| number % EVENTS).collect()).collect()
}

/// Publishes in the order of numbers, and shows its progress before and after each event.
struct Publisher {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Publisher {
    fn run(&self, hub: &Hub, publisher: u64) {
        for n in 0..EVENTS {
            self.begun.store(n + 1, Ordering::SeqCst);
            hub.publish(&event(number(publisher, n)));
            self.done.store(n + 1, Ordering::SeqCst);
            if n % 64 == 0 {
                thread::yield_now();
            }
        }
    }
}

/// Joins, reads and leaves until all is published. Between subscribing and unsubscribing no event is lost or repeated, and the
/// events of a publisher are in its order.
fn come_and_go(hub: &Hub, publishers: &[Publisher], reader: u64, is_over: &AtomicBool) {
    let mut rounds = 0;
    while !is_over.load(Ordering::SeqCst) {
        rounds += 1;
        let subscription = hub.join(id(rounds << 8 | reader), wide()).unwrap();
        subscription.subscribe(&[exact("t")]).unwrap();
        let begun: Vec<u64> = publishers.iter().map(|one| one.begun.load(Ordering::SeqCst)).collect();
        let mut read = read(&subscription);
        for _ in 0..rounds % 7 {
            thread::yield_now();
            read.extend(super::read(&subscription));
        }
        let done: Vec<u64> = publishers.iter().map(|one| one.done.load(Ordering::SeqCst)).collect();
        assert_eq!(subscription.unsubscribe(&[exact("t")]), 1);
        read.extend(super::read(&subscription));
        for (publisher, came) in by_publisher(&read).into_iter().enumerate() {
            assert!(came.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no hole, no repeat: {came:?}");
            // What was completely published between subscribing and unsubscribing must have arrived.
            let due = begun[publisher]..done[publisher];
            if !due.is_empty() {
                let (first, last) = (came.first().copied(), came.last().copied());
                assert!(first.is_some_and(|first| first <= due.start), "{due:?} are due, {came:?} came");
                assert!(last.is_some_and(|last| last + 1 >= due.end), "{due:?} are due, {came:?} came");
            }
        }
    }
}

#[test]
fn nothing_is_lost_while_others_publish_join_and_leave() {
    let (hub, metrics) = hub();
    let publishers: Vec<Publisher> =
        (0..PUBLISHERS).map(|_| Publisher { begun: AtomicU64::new(0), done: AtomicU64::new(0) }).collect();
    let staying = hub.join(id(u64::MAX), wide()).unwrap();
    staying.subscribe(&[exact("t"), interest(None, TopicMatch::Prefix("".into()))]).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..READERS {
            let (hub, publishers, is_over) = (&hub, &publishers, &is_over);
            scope.spawn(move || come_and_go(hub, publishers, reader, is_over));
        }
        let working = publishers.iter().zip(0..).map(|(publisher, number)| {
            let hub = &hub;
            scope.spawn(move || publisher.run(hub, number))
        });
        let working: Vec<_> = working.collect();
        working.into_iter().for_each(|one| one.join().unwrap());
        is_over.store(true, Ordering::SeqCst);
    });
    let all: Vec<u64> = (0..EVENTS).collect();
    assert!(by_publisher(&read(&staying)).iter().all(|came| *came == all));
    drop(staying);
    assert!(hub.shared.index.read().is_empty());
    assert_eq!((metrics.subscriptions.get(), metrics.interests.get(), metrics.queued_bytes.get()), (0, 0, 0));
}

/// An event without subscribers does not prevent the delivery of the same event published by somebody who has subscribed first.
#[test]
fn of_two_equal_events_one_reaches_a_subscriber_that_came_in_between() {
    let (hub, _) = hub();
    let away = subscribe(&hub, u64::MAX, Overflow::Drop, &["t"]);
    away.pause();
    for number in 0..1_000 {
        let subscription = hub.join(id(number), wide()).unwrap();
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                hub.publish(&event(number));
            });
            start.wait();
            subscription.subscribe(&[exact("t")]).unwrap();
            hub.publish(&event(number));
        });
        assert_eq!(read(&subscription), [number], "once, from either publisher");
    }
}

/// Waiting readers are woken for every event of every publisher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sleeping_readers_miss_no_wake_up() {
    let (hub, _) = hub();
    let readers = (0..READERS).map(|reader| {
        let subscription = hub.join(id(reader), wide()).unwrap();
        subscription.subscribe(&[exact("t")]).unwrap();
        tokio::spawn(async move {
            let mut came = 0;
            while came < PUBLISHERS * EVENTS {
                match subscription.next().await {
                    Next::Events(events) => came += events.len() as u64,
                    Next::Ended(why) => panic!("ended: {why:?}"),
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for publisher in 0..PUBLISHERS {
        let hub = hub.clone();
        tokio::task::spawn_blocking(move || {
            for n in 0..EVENTS {
                hub.publish(&event(number(publisher, n)));
            }
        });
    }
    for reader in readers {
        tokio::time::timeout(std::time::Duration::from_secs(60), reader).await.unwrap().unwrap();
    }
}
