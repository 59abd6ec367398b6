use super::*;

#[test]
fn a_slow_reader_ends_with_a_reason_and_others_continue() {
    let (hub, metrics) = hub();
    let small = SubscriptionConfig { events_max: 3, ..config(Overflow::End) };
    let slow = hub.join(id(1), small).unwrap();
    slow.subscribe(&[exact("t")]).unwrap();
    let quick = subscribe(&hub, 2, Overflow::End, &["t"]);
    for number in 0..3 {
        assert_eq!(hub.publish(&event(number)), 2);
    }
    assert_eq!(hub.publish(&event(3)), 1);
    assert_eq!((slow.waiting(), slow.ended()), (0, Some(Ended::Slow)), "what waited is gone");
    assert_eq!((end_of(&slow), end_of(&slow)), (Ended::Slow, Ended::Slow));
    hub.ended(slow.id(), Ended::Operator);
    assert_eq!(end_of(&slow), Ended::Slow, "the first reason counts");
    assert_eq!(hub.publish(&event(4)), 1);
    assert_eq!(read(&quick), [0, 1, 2, 3, 4]);
    assert_eq!(metrics.count_of_ended(Ended::Slow), 1);
    assert_eq!(metrics.count_of_dropped(DropReason::Full), 1);
}

#[test]
fn a_queue_that_drops_loses_the_newest_and_counts_them() {
    let (hub, metrics) = hub();
    let losses = Arc::new(Losses::default());
    let small = SubscriptionConfig { events_max: 3, ..config(Overflow::Drop) };
    let subscription = hub.join_with_losses(id(1), small, losses.clone()).unwrap();
    subscription.subscribe(&[exact("t")]).unwrap();
    for number in 0..5 {
        assert_eq!(hub.publish(&event(number)), usize::from(number < 3));
    }
    assert_eq!(read(&subscription), [0, 1, 2]);
    assert_eq!(hub.publish(&event(5)), 1, "there is space again");
    assert_eq!(subscription.pause(), 1);
    assert_eq!(hub.publish(&event(6)), 0);
    assert_eq!((losses.dropped.get(), losses.away.get()), (2, 1));
    assert_eq!(metrics.count_of_dropped(DropReason::Full), 2);
}

#[test]
fn bytes_count_until_they_are_released_or_more_is_asked_for() {
    let (hub, _) = hub();
    let size = event_of("c", "t", 0, 1_000).bytes();
    let subscription =
        hub.join(id(1), SubscriptionConfig { bytes_max: 2 * size, ..config(Overflow::Drop) }).unwrap();
    subscription.subscribe(&[exact("t")]).unwrap();
    let mut number = 0;
    let mut publish = || {
        number += 1;
        hub.publish(&event_of("c", "t", number, 1_000))
    };
    assert_eq!([publish(), publish(), publish()], [1, 1, 0]);
    let Some(Next::Events(events)) = subscription.next().now_or_never() else { panic!("two wait") };
    assert_eq!(publish(), 0, "what is being sent counts");
    subscription.release(&events[..1]);
    assert_eq!([publish(), publish()], [1, 0]);
    subscription.release(&events[1..]);
    assert_eq!([publish(), publish()], [1, 0]);
    assert!(subscription.next().now_or_never().is_some() && subscription.next().now_or_never().is_none());
    assert_eq!([publish(), publish(), publish()], [1, 1, 0], "asking for more releases the last");
}

#[test]
fn an_event_larger_than_a_queue_goes_alone() {
    let (hub, _) = hub();
    let subscription =
        hub.join(id(1), SubscriptionConfig { bytes_max: 500, ..config(Overflow::Drop) }).unwrap();
    subscription.subscribe(&[exact("t")]).unwrap();
    assert_eq!(hub.publish(&event_of("c", "t", 1, 10_000)), 1);
    assert_eq!(hub.publish(&event_of("c", "t", 2, 10_000)), 0);
    assert_eq!(read(&subscription), [1]);
}

#[test]
fn batches_are_bounded_and_in_order() {
    let (hub, _) = hub();
    let wide = SubscriptionConfig { bytes_max: 64 << 20, ..config(Overflow::End) };
    let subscription = hub.join(id(1), wide).unwrap();
    subscription.subscribe(&[exact("t")]).unwrap();
    for number in 0..200 {
        hub.publish(&event(number));
    }
    let Some(Next::Events(few)) = subscription.next_few(8).now_or_never() else { panic!("many wait") };
    assert_eq!(few.len(), 8);
    let Some(Next::Events(more)) = subscription.next().now_or_never() else { panic!("many wait") };
    assert!((2..100).contains(&more.len()));
    assert_eq!(read(&subscription), (8 + more.len() as u64..200).collect::<Vec<_>>());
    for number in 200..210 {
        hub.publish(&event_of("c", "t", number, 200 << 10));
    }
    let Some(Next::Events(large)) = subscription.next().now_or_never() else { panic!("ten wait") };
    assert_eq!(large.len(), 2, "bytes end a batch");
}

/// However many sessions are slow, memory is left for a reader that keeps up. Slow queues that filled one after the other once
/// took all of it, because an empty queue took one event whatever was left.
#[test]
fn slow_queues_that_fill_one_after_another_leave_memory_for_fast_readers() {
    let (hub, metrics) = hub_with(HubConfig { queued_bytes_max: nonzero!(1 << 20), ..HubConfig::default() });
    let wide = SubscriptionConfig { events_max: 10_000, ..config(Overflow::Drop) };
    let mut slow = Vec::new();
    for number in 0..120 {
        let subscription = hub.join(id(number), wide).unwrap();
        let topic = number.to_string();
        subscription.subscribe(&[exact(&topic)]).unwrap();
        for event in 0..200 {
            hub.publish(&event_of("c", &topic, number * 200 + event, 1_000));
        }
        assert!(subscription.waiting() > 0, "an empty queue takes one");
        slow.push(subscription);
    }
    assert!(metrics.queued_bytes.get() > (1 << 20) * 3 / 4, "they have taken all they may");
    let quick = subscribe(&hub, 999, Overflow::End, &["quick"]);
    for number in 100_000..100_100 {
        assert_eq!(hub.publish(&event_of("c", "quick", number, 10_000)), 1);
        assert_eq!(read(&quick), [number]);
    }
    drop((slow, quick));
    assert_eq!(metrics.queued_bytes.get(), 0);
}

/// The budget is bounded: enough stopped readers, each with an event of its own, exhaust it. Then a session that must not miss an
/// event ends with another reason than `Slow`.
#[test]
fn a_session_refused_for_lack_of_memory_is_not_called_slow() {
    let (hub, metrics) = hub_with(HubConfig { queued_bytes_max: nonzero!(1 << 20), ..HubConfig::default() });
    let stopped: Vec<Subscription> =
        (0..200).map(|number| subscribe(&hub, number, Overflow::Drop, &[&number.to_string()])).collect();
    for number in 0..200 {
        hub.publish(&event_of("c", &number.to_string(), number, 10_000));
    }
    let empty = subscribe(&hub, 998, Overflow::End, &["t"]);
    let reading = subscribe(&hub, 999, Overflow::End, &["u"]);
    hub.publish(&event_of("c", "u", 1_000, 10));
    hub.publish(&event_of("c", "u", 1_001, 10));
    assert_eq!(end_of(&reading), Ended::Full, "its queue is not what is full");
    assert_eq!(hub.publish(&event_of("c", "t", 1_002, 10_000)), 0);
    assert_eq!(end_of(&empty), Ended::Full);
    assert_eq!((metrics.count_of_ended(Ended::Full), metrics.count_of_ended(Ended::Slow)), (2, 0));
    drop(stopped);
    let back = subscribe(&hub, 1_000, Overflow::End, &["t"]);
    assert_eq!((hub.publish(&event_of("c", "t", 1_003, 10_000)), read(&back)), (1, vec![1_003]));
}

/// An event without subscribers was once remembered as delivered, and lost when it was published again.
#[test]
fn an_undelivered_event_is_delivered_when_published_again() {
    let (hub, metrics) = hub();
    let broadcasts = Arc::new(Broadcasts::default());
    hub.connect(broadcasts.clone());
    assert_eq!(hub.publish(&event(1)), 0, "there is no subscriber");
    let subscription = subscribe(&hub, 1, Overflow::Drop, &["t"]);
    assert_eq!([hub.publish(&event(1)), hub.publish(&event(1))], [1, 0]);
    subscription.pause();
    assert_eq!(hub.publish(&event(2)), 0, "its client is away");
    subscription.resume();
    hub.received(event(2).to_unmetered());
    hub.received(event(2).to_unmetered());
    assert_eq!(read(&subscription), [2], "what waited was dropped with the pause");
    hub.received(event(3).to_unmetered());
    assert_eq!((hub.publish(&event(3)), read(&subscription)), (0, vec![3]));
    assert_eq!(*broadcasts.0.lock(), [1, 2], "others are notified once");
    let counts = [Source::Here, Source::Elsewhere, Source::Again].map(|source| metrics.count_of(source));
    assert_eq!(counts, [2, 1, 5]);
}

/// A message that was published again was once sent to other nodes only the first time, and missed new subscribers there.
#[test]
fn other_nodes_are_notified_each_time_the_publisher_asks() {
    let (hub, metrics) = hub();
    let broadcasts = Arc::new(Broadcasts::default());
    hub.connect(broadcasts.clone());
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    assert_eq!([hub.publish_here(&event(1)), hub.publish_here(&event(1))], [1, 0]);
    assert_eq!(*broadcasts.0.lock(), [], "it is not durable yet");
    hub.broadcast(&event(1));
    hub.broadcast(&event(1));
    assert_eq!((hub.publish(&event(1)), read(&subscription)), (0, vec![1]), "relay brings it as well");
    assert_eq!(*broadcasts.0.lock(), [1, 1]);
    assert_eq!([Source::Here, Source::Again].map(|source| metrics.count_of(source)), [1, 2]);
}

#[test]
fn an_event_that_did_not_fit_is_delivered_when_published_again() {
    let (hub, _) = hub();
    let small = SubscriptionConfig { events_max: 1, ..config(Overflow::Drop) };
    let subscription = hub.join(id(1), small).unwrap();
    subscription.subscribe(&[exact("t")]).unwrap();
    assert_eq!([hub.publish(&event(1)), hub.publish(&event(2)), hub.publish(&event(2))], [1, 0, 0]);
    assert_eq!(read(&subscription), [1]);
    assert_eq!((hub.publish(&event(2)), read(&subscription)), (1, vec![2]));
    let other = subscribe(&hub, 2, Overflow::Drop, &["t"]);
    assert_eq!((hub.publish(&event(2)), other.waiting()), (0, 0), "it was delivered");
}

/// Many sessions that are slow at the same time stay within the budget.
#[test]
fn slow_queues_never_take_the_whole_budget() {
    let (hub, metrics) = hub_with(HubConfig { queued_bytes_max: nonzero!(1 << 20), ..HubConfig::default() });
    let wide = SubscriptionConfig { events_max: 10_000, ..config(Overflow::Drop) };
    let slow: Vec<Subscription> = (0..50).map(|number| hub.join(id(number), wide).unwrap()).collect();
    for (number, subscription) in slow.iter().enumerate() {
        subscription.subscribe(&[exact(&number.to_string())]).unwrap();
    }
    for number in 0..50 * 200 {
        hub.publish(&event_of("c", &(number % 50).to_string(), number, 1_000));
        assert!(metrics.queued_bytes.get() <= 1 << 20);
    }
    let quick = hub.join(id(99), wide).unwrap();
    quick.subscribe(&[exact("quick")]).unwrap();
    assert_eq!(hub.publish(&event_of("c", "quick", 99_999, 1_000)), 1);
    assert!(metrics.count_of_dropped(DropReason::Memory) > 0);
    drop((slow, quick));
    assert_eq!(metrics.queued_bytes.get(), 0);
}

#[test]
fn an_event_counts_once_however_many_subscribe() {
    let size = event_of("c", "t", 0, 5_000).bytes();
    let (hub, metrics) =
        hub_with(HubConfig { queued_bytes_max: (size + 100).try_into().unwrap(), ..HubConfig::default() });
    let subscriptions: Vec<Subscription> =
        (0..100).map(|number| subscribe(&hub, number, Overflow::Drop, &["t"])).collect();
    let ending = subscribe(&hub, 100, Overflow::End, &["u"]);
    assert_eq!(hub.publish(&event_of("c", "t", 1, 5_000)), 100);
    assert_eq!(metrics.queued_bytes.get(), size as i64);
    assert_eq!(hub.publish(&event_of("c", "u", 2, 5_000)), 0, "there is no budget for a second");
    assert_eq!(end_of(&ending), Ended::Full, "a queue without gaps ends");
    assert!(subscriptions.iter().all(|subscription| read(subscription) == [1]));
    assert_eq!(metrics.queued_bytes.get(), 0);
}

#[test]
fn interests_are_bounded_and_a_refused_request_changes_nothing() {
    let interest_bytes_max = nonzero!(64 * 1_000);
    let (hub, metrics) =
        hub_with(HubConfig { interest_bytes_max, subscriptions_max: nonzero!(200), ..HubConfig::default() });
    let few = SubscriptionConfig { interests_max: 2, ..config(Overflow::Drop) };
    let subscription = hub.join(id(0), few).unwrap();
    subscription.subscribe(&[exact("a"), exact("a"), exact("b")]).unwrap();
    subscription.subscribe(&[exact("b"), exact("a")]).expect("what it wants already is no more");
    assert_eq!(subscription.subscribe(&[exact("a"), exact("c")]), Err(HubFull::Interests(2)));
    assert_eq!(subscription.interests(), [exact("a"), exact("b")]);
    assert_eq!(subscription.unsubscribe(&[exact("b"), exact("b"), exact("c")]), 1);
    assert_eq!(subscription.subscribe(&[exact(&"x".repeat(1_000))]), Err(HubFull::SubscriptionBytes(1_000)));
    let full = (1..199).map(|number| {
        let subscription = hub.join(id(number), config(Overflow::Drop)).unwrap();
        let wanted = subscription.subscribe(&[exact(&format!("{number}{}", "x".repeat(600)))]);
        (subscription, wanted)
    });
    let (subscriptions, wanted): (Vec<Subscription>, Vec<_>) = full.unzip();
    let taken = wanted.iter().filter(|wanted| wanted.is_ok()).count();
    assert!((50..70).contains(&taken), "{taken} of 920 bytes and more fit into 64,000");
    assert!(wanted.iter().all(|wanted| matches!(wanted, Ok(()) | Err(HubFull::Bytes))));
    assert_eq!(metrics.interests.get(), 1 + taken as i64);
    drop(subscriptions);
    subscription.subscribe(&[exact("c")]).expect("there is space again");
}

#[test]
fn subscriptions_are_bounded_and_come_back() {
    let (hub, metrics) = hub_with(HubConfig { subscriptions_max: nonzero!(2), ..HubConfig::default() });
    let [one, other] = [1, 2].map(|number| hub.join(id(number), config(Overflow::End)).unwrap());
    assert_eq!(hub.join(id(3), config(Overflow::End)).unwrap_err(), HubFull::Subscriptions(2));
    drop(one);
    hub.join(id(3), config(Overflow::End)).unwrap();
    drop(other);
    assert_eq!(metrics.subscriptions.get(), 0);
}

#[test]
fn a_session_that_ended_before_it_joined_ends_at_once() {
    let (hub, metrics) = hub();
    hub.ended(id(1), Ended::Replaced);
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    assert_eq!(end_of(&subscription), Ended::Replaced);
    assert_eq!(hub.publish(&event(1)), 0);
    assert_eq!(metrics.count_of_ended(Ended::Replaced), 1);
}

#[test]
fn a_session_that_joins_again_has_one_subscription() {
    let (hub, _) = hub();
    let first = subscribe(&hub, 1, Overflow::End, &["t"]);
    let second = subscribe(&hub, 1, Overflow::End, &["t"]);
    assert_eq!(end_of(&first), Ended::Replaced);
    drop(first);
    assert_eq!(hub.publish(&event(1)), 1);
    assert_eq!(read(&second), [1]);
    hub.ended(id(1), Ended::Operator);
    assert_eq!(end_of(&second), Ended::Operator, "the former took nothing of it along");
}

#[test]
fn a_subscription_that_was_left_wants_nothing_any_more() {
    let (hub, metrics) = hub();
    let subscription = subscribe(&hub, 1, Overflow::End, &["t", "u"]);
    hub.publish(&event(1));
    assert_eq!(subscription.leave(), 1);
    assert_eq!(
        (end_of(&subscription), subscription.leave(), subscription.interests()),
        (Ended::Left, 0, Vec::new())
    );
    assert_eq!((hub.has_subscribers("c", "t"), hub.publish(&event(2))), (false, 0));
    hub.ended(id(1), Ended::Operator);
    assert_eq!((metrics.interests.get(), metrics.count_of_ended(Ended::Operator)), (0, 0));
}

#[test]
fn all_end_when_the_hub_stops() {
    let (hub, metrics) = hub();
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    hub.publish(&event(1));
    hub.stop();
    assert_eq!((end_of(&subscription), subscription.waiting()), (Ended::Stopping, 0));
    let late = subscribe(&hub, 2, Overflow::End, &["t"]);
    assert_eq!((end_of(&late), hub.publish(&event(2))), (Ended::Stopping, 0));
    assert_eq!(metrics.count_of_ended(Ended::Stopping), 2);
}

#[tokio::test]
async fn a_reader_that_waits_is_woken_by_events_and_by_the_end() {
    let (hub, _) = hub();
    let subscription = Arc::new(subscribe(&hub, 1, Overflow::End, &["t"]));
    let wait = || {
        let subscription = subscription.clone();
        tokio::spawn(async move { subscription.next().await })
    };
    let waiting = wait();
    tokio::task::yield_now().await;
    hub.publish(&event(1));
    assert!(matches!(waiting.await.unwrap(), Next::Events(events) if events.len() == 1));
    let waiting = wait();
    tokio::task::yield_now().await;
    hub.ended(id(1), Ended::Crowded);
    assert!(matches!(waiting.await.unwrap(), Next::Ended(Ended::Crowded)));
}

#[test]
fn nothing_is_lost_when_a_wait_is_given_up() {
    let (hub, _) = hub();
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    assert!(subscription.next().now_or_never().is_none());
    hub.publish(&event(1));
    drop(subscription.next());
    assert_eq!(read(&subscription), [1]);
}

#[test]
fn events_of_other_nodes_are_delivered_once_and_not_sent_on() {
    let (hub, metrics) = hub();
    let broadcasts = Arc::new(Broadcasts::default());
    hub.connect(broadcasts.clone());
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    hub.publish(&event(1));
    hub.received(event(1).to_unmetered());
    hub.received(event(2).to_unmetered());
    hub.publish(&event(2));
    hub.publish(&event_of("d", "no subscriber here", 3, 10));
    assert_eq!(read(&subscription), [1, 2]);
    assert_eq!(*broadcasts.0.lock(), [1, 3]);
    let counts = [Source::Here, Source::Elsewhere, Source::Again].map(|source| metrics.count_of(source));
    assert_eq!(counts, [2, 1, 2]);
    drop(broadcasts);
    assert_eq!(hub.publish(&event(4)), 1, "the hub keeps no table alive");
}

#[test]
fn what_is_counted_is_shown_from_the_start() {
    let (hub, metrics) = hub();
    let mut registry = prometheus_client::registry::Registry::default();
    crate::SessionMetrics { hub: metrics, ..crate::SessionMetrics::default() }.register(&mut registry);
    let subscription = subscribe(&hub, 1, Overflow::End, &["t"]);
    hub.publish(&event(1));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "restante_sessions_hub_subscriptions 1",
        "restante_sessions_hub_interests 1",
        "restante_sessions_hub_events_total{source=\"here\"} 1",
        "restante_sessions_hub_events_total{source=\"elsewhere\"} 0",
        "restante_sessions_hub_events_total{source=\"again\"} 0",
        "restante_sessions_hub_handed_out_total 1",
        "restante_sessions_hub_dropped_total{reason=\"full\"} 0",
        "restante_sessions_hub_dropped_total{reason=\"memory\"} 0",
        "restante_sessions_hub_ended_total{reason=\"slow\"} 0",
        "restante_sessions_hub_ended_total{reason=\"full\"} 0",
        "restante_sessions_hub_ended_total{reason=\"operator\"} 0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
    }
    assert!(text.contains(&format!("restante_sessions_hub_queued_bytes {}\n", hub.queued_bytes())));
    assert_eq!((read(&subscription), hub.queued_bytes()), (vec![1], 0));
}

/// The memory of an idle session with one interest, without its topic: the constants that make up most of it.
#[test]
fn an_idle_subscription_is_small() {
    let subscriber = size_of::<Subscriber>() + 16; // reference counts
    let subscription = size_of::<Subscription>();
    let in_maps = size_of::<(SessionId, Arc<Subscriber>)>() + size_of::<(Arc<str>, index::Subscribers)>();
    let interest = size_of::<Interest>();
    let total = subscriber + subscription + 2 * in_maps + interest; // a map may be half empty
    assert!(total < 600, "{total} bytes: {subscriber} + {subscription} + 2 * {in_maps} + {interest}");
}

/// Nodes that record the events to broadcast.
#[derive(Default)]
struct Broadcasts(Mutex<Vec<i64>>);

impl Nodes for Broadcasts {
    fn here(&self) -> NodeId {
        NodeId(1)
    }

    fn heartbeat(&self) -> crate::Answer<'_, Result<(), crate::Error>> {
        crate::Answer::ready(Ok(()))
    }

    fn sweep(&self) -> crate::Answer<'_, Result<u64, crate::Error>> {
        crate::Answer::ready(Ok(0))
    }

    fn nodes(&self) -> crate::Answer<'_, Result<Vec<crate::NodeState>, crate::Error>> {
        crate::Answer::ready(Ok(Vec::new()))
    }

    fn broadcast(&self, event: &Event) {
        self.0.lock().push(event.timestamp.0);
    }

    fn health(&self) -> Result<(), crate::Error> {
        Ok(())
    }

    fn close(&self) -> crate::Answer<'_, Result<(), crate::Error>> {
        crate::Answer::ready(Ok(()))
    }
}
