//! What `open` promises.

use std::{collections::BTreeMap, sync::Arc};

use restante_core::{Clock, ErrorKind, ManualClock, Timestamp};
use restante_sessions::{
    Config, Ended, Error, INFO_BYTES_MAX, NewSession, RESOURCE_BYTES_MAX, SessionId, USER_BYTES_MAX,
};

use crate::{
    Subject,
    common::{ODD_NAMES, OwnedValue, node::Node, number, soon, text},
};

crate::promises! {
    any: [
        an_opened_session_is_found,
        a_new_session_is_not_available,
        a_new_session_has_the_info_it_was_opened_with,
        the_same_resource_again_replaces_the_old_session,
        a_replacing_session_has_no_info_of_the_old_one,
        the_same_resource_of_another_user_is_left_alone,
        resources_that_look_alike_are_different,
        there_is_no_moment_with_both_or_neither,
        concurrent_opens_at_one_address_leave_one,
        beyond_the_limit_the_oldest_ends,
        the_oldest_is_the_first_opened_however_often_it_was_changed,
        a_replacement_is_not_one_more,
        a_limit_of_one_leaves_the_newest,
        the_limit_is_for_each_user,
        concurrent_opens_keep_the_limit,
        ids_always_increase,
        ids_always_increase_while_the_clock_stands_still,
        ids_always_increase_while_the_clock_goes_back,
        concurrent_opens_get_ids_of_their_own,
        an_id_contains_the_time_and_node_of_opening,
        addresses_that_are_empty_or_too_long_are_refused,
        the_longest_addresses_are_kept,
        odd_addresses_are_kept_apart,
        what_is_refused_changes_nothing,
        sessions_of_a_user_that_are_too_large_together_are_refused,
    ],
    shared: []
}

async fn an_opened_session_is_found(subject: Subject) {
    let node = subject.node().await;
    assert_eq!(node.user("ann").await, []);
    let id = node.open("ann", "phone").await;
    let [row] = &node.user("ann").await[..] else { panic!("one session was opened") };
    assert_eq!((row.id, &*row.user, &*row.resource), (id, "ann", "phone"));
    assert_eq!(node.address("ann", "phone").await.as_ref(), Some(row));
    assert_eq!(node.id(id).await.as_ref(), Some(row));
}

async fn a_new_session_is_not_available(subject: Subject) {
    let node = subject.node().await;
    let id = node.open("ann", "phone").await;
    assert_eq!(node.id(id).await.unwrap().priority, None);
}

async fn a_new_session_has_the_info_it_was_opened_with(subject: Subject) {
    let node = subject.node().await;
    let bare = node.open("ann", "phone").await;
    assert_eq!(node.id(bare).await.unwrap().info, BTreeMap::new());
    let changes = [text(3, "read"), number(1, -7), number(9, 1), number(9, 2), (number(4, 0).0, None)];
    let id = node.open_with("ann", "desk", &changes).await;
    let expected = [
        (1, OwnedValue::Number(-7)),
        (3, OwnedValue::Text("read".into())),
        (9, OwnedValue::Number(2)), // of two changes of one key the later counts
    ];
    assert_eq!(node.id(id).await.unwrap().info, BTreeMap::from(expected));
}

async fn the_same_resource_again_replaces_the_old_session(subject: Subject) {
    let node = subject.node().await;
    let old = node.open("ann", "phone").await;
    let other = node.open("ann", "desk").await;
    let new = node.open("ann", "phone").await;
    assert_eq!(node.ids("ann").await, [new, other]);
    assert_eq!(node.address("ann", "phone").await.unwrap().id, new);
    assert_eq!(node.id(old).await, None);
    assert_eq!(node.totals().await, (2, 1));
    assert_eq!(node.ended_sessions().await, [(old, Ended::Replaced)]);
}

async fn a_replacing_session_has_no_info_of_the_old_one(subject: Subject) {
    let node = subject.node().await;
    let old = node.open_with("ann", "phone", &[number(1, 1), number(2, 2)]).await;
    assert!(node.presence(old, Some(5), &[]).await);
    let new = node.open_with("ann", "phone", &[number(2, 3)]).await;
    let row = node.id(new).await.unwrap();
    assert_eq!((row.priority, row.info), (None, BTreeMap::from([(2, OwnedValue::Number(3))])));
}

async fn the_same_resource_of_another_user_is_left_alone(subject: Subject) {
    let node = subject.node().await;
    let of_ann = node.open("ann", "phone").await;
    let of_bob = node.open("bob", "phone").await;
    assert_eq!((node.ids("ann").await, node.ids("bob").await), (vec![of_ann], vec![of_bob]));
    assert_eq!(node.ended_sessions().await, []);
}

async fn resources_that_look_alike_are_different(subject: Subject) {
    let node = subject.node().await;
    let mut opened = Vec::new();
    for resource in ODD_NAMES {
        opened.push(node.open("ann", resource).await);
    }
    for (resource, id) in ODD_NAMES.iter().zip(&opened) {
        let row = node.address("ann", resource).await.unwrap();
        assert_eq!((row.id, &*row.resource), (*id, *resource));
    }
    opened.reverse();
    assert_eq!(node.ids("ann").await, opened);
    assert_eq!(node.ended_sessions().await, []);
}

/// A concurrent reader finds one session each time, and never an older one than before.
async fn there_is_no_moment_with_both_or_neither(subject: Subject) {
    const TIMES: usize = 2_000;
    let node = Arc::new(subject.node().await);
    let first = node.open("ann", "phone").await;
    let writer = {
        let node = node.clone();
        tokio::spawn(async move {
            let mut opened = vec![first];
            for _ in 0..TIMES {
                opened.push(node.open("ann", "phone").await);
            }
            opened
        })
    };
    let mut last = first;
    let mut looks = 0;
    while !writer.is_finished() || looks == 0 {
        let by_user = node.ids("ann").await;
        let by_address = node.address("ann", "phone").await.expect("there is always one").id;
        assert_eq!(by_user.len(), 1, "there is always exactly one");
        assert!(last <= by_user[0] && by_user[0] <= by_address, "an older session than before was found");
        last = by_address;
        looks += 1;
        tokio::task::yield_now().await;
    }
    let opened = writer.await.unwrap();
    let (current, replaced) = opened.split_last().unwrap();
    assert_eq!(node.ids("ann").await, [*current]);
    let ended: Vec<_> = replaced.iter().map(|id| (*id, Ended::Replaced)).collect();
    assert_eq!(node.ended_sessions().await, ended);
}

/// Opens sessions in several concurrent tasks, and returns their ids by task.
async fn open_at_once(
    node: &Arc<Node>,
    tasks: usize,
    times: usize,
    address: fn(usize, usize) -> (String, String),
) -> Vec<Vec<SessionId>> {
    let mut running = Vec::new();
    for task in 0..tasks {
        let node = node.clone();
        running.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            for time in 0..times {
                let (user, resource) = address(task, time);
                ids.push(node.open(&user, &resource).await);
                tokio::task::yield_now().await;
            }
            ids
        }));
    }
    let mut ids = Vec::new();
    for task in running {
        ids.push(soon("a task opens its sessions", task).await.unwrap());
    }
    ids
}

async fn concurrent_opens_at_one_address_leave_one(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let ids = open_at_once(&node, 8, 50, |_, _| ("ann".into(), "phone".into())).await;
    let left = node.ids("ann").await;
    assert_eq!((left.len(), node.totals().await), (1, (1, 1)));
    let mut replaced: Vec<_> = ids.concat().into_iter().map(|id| (id, Ended::Replaced)).collect();
    replaced.retain(|(id, _)| *id != left[0]);
    replaced.sort_by_key(|(id, _)| *id);
    assert_eq!(node.ended_sessions().await, replaced, "each but the one that is left was reported once");
}

async fn beyond_the_limit_the_oldest_ends(subject: Subject) {
    let node = subject.node_with_limit(3).await;
    let mut ids = Vec::new();
    for resource in ["a", "b", "c", "d", "e"] {
        ids.push(node.open("ann", resource).await);
    }
    assert_eq!(node.ids("ann").await, [ids[4], ids[3], ids[2]]);
    assert_eq!(node.totals().await, (3, 1));
    assert_eq!(node.ended_sessions().await, [(ids[0], Ended::Crowded), (ids[1], Ended::Crowded)]);
}

async fn the_oldest_is_the_first_opened_however_often_it_was_changed(subject: Subject) {
    let node = subject.node_with_limit(2).await;
    let first = node.open("ann", "z").await;
    let second = node.open("ann", "a").await;
    assert!(node.merge(first, &[number(1, 1)]).await);
    assert!(node.presence(first, Some(127), &[]).await);
    let third = node.open("ann", "m").await;
    assert_eq!(node.ids("ann").await, [third, second]);
    assert_eq!(node.ended_sessions().await, [(first, Ended::Crowded)]);
}

async fn a_replacement_is_not_one_more(subject: Subject) {
    let node = subject.node_with_limit(2).await;
    let first = node.open("ann", "a").await;
    let second = node.open("ann", "b").await;
    let again = node.open("ann", "b").await;
    assert_eq!(node.ids("ann").await, [again, first]);
    assert_eq!(node.ended_sessions().await, [(second, Ended::Replaced)]);
}

async fn a_limit_of_one_leaves_the_newest(subject: Subject) {
    let node = subject.node_with_limit(1).await;
    let first = node.open("ann", "a").await;
    let second = node.open("ann", "b").await;
    let third = node.open("ann", "b").await;
    assert_eq!(node.ids("ann").await, [third]);
    assert_eq!(node.ended_sessions().await, [(first, Ended::Crowded), (second, Ended::Replaced)]);
}

async fn the_limit_is_for_each_user(subject: Subject) {
    let node = subject.node_with_limit(1).await;
    let of_ann = node.open("ann", "a").await;
    let of_bob = node.open("bob", "b").await;
    assert_eq!((node.ids("ann").await, node.ids("bob").await), (vec![of_ann], vec![of_bob]));
    assert_eq!(node.ended_sessions().await, []);
}

async fn concurrent_opens_keep_the_limit(subject: Subject) {
    let node = Arc::new(subject.node_with_limit(5).await);
    let ids = open_at_once(&node, 6, 20, |task, time| ("ann".into(), format!("{task} {time}"))).await;
    let left = node.ids("ann").await;
    assert_eq!((left.len(), node.totals().await), (5, (5, 1)));
    let mut crowded: Vec<_> = ids.concat().into_iter().map(|id| (id, Ended::Crowded)).collect();
    crowded.retain(|(id, _)| !left.contains(id));
    crowded.sort_by_key(|(id, _)| *id);
    assert_eq!(node.ended_sessions().await, crowded, "each but those that are left was reported once");
}

async fn ids_always_increase(subject: Subject) {
    let node = subject.node().await;
    let mut last = node.open("ann", "phone").await;
    for n in 0..500 {
        let id = node.open(&format!("user {}", n % 7), &format!("resource {}", n % 5)).await;
        assert!(id > last, "{id} follows {last}");
        last = id;
    }
}

async fn node_with_clock(subject: &Subject, now: Timestamp) -> (Node, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(now));
    let node = Node::new(Config { clock: clock.clone() as Arc<dyn Clock>, ..subject.config() }).await;
    (node, clock)
}

async fn ids_always_increase_while_the_clock_stands_still(subject: Subject) {
    let (node, _clock) = node_with_clock(&subject, Timestamp(1_700_000_000_000_000_000)).await;
    let mut last = node.open("ann", "phone").await;
    for n in 0..200 {
        let id = node.open(&format!("user {}", n % 7), "phone").await;
        assert!(id.opened_us > last.opened_us, "a node never opens two at the same microsecond");
        last = id;
    }
}

async fn ids_always_increase_while_the_clock_goes_back(subject: Subject) {
    let (node, clock) = node_with_clock(&subject, Timestamp(1_700_000_000_000_000_000)).await;
    let mut last = node.open("ann", "phone").await;
    for now in [1_600_000_000_000_000_000, 1_000, 0, -1, i64::MIN, 1_700_000_000_000_000_999] {
        clock.set(Timestamp(now));
        for user in ["ann", "bob"] {
            let id = node.open(user, "phone").await;
            assert!(id > last, "the clock shows {now}: {id} follows {last}");
            last = id;
        }
        assert_eq!((node.ids("bob").await, node.totals().await), (vec![last], (2, 2)));
    }
}

async fn concurrent_opens_get_ids_of_their_own(subject: Subject) {
    let node = Arc::new(subject.node().await);
    let ids = open_at_once(&node, 8, 50, |task, time| (format!("user {time}"), format!("{task}"))).await;
    for of_task in &ids {
        assert!(of_task.is_sorted_by(|one, next| one < next), "what is opened later has a greater id");
    }
    let mut all = ids.concat();
    all.sort();
    assert!(all.is_sorted_by(|one, next| one.opened_us < next.opened_us), "no id was given twice");
    assert_eq!(node.totals().await, (400, 50));
}

async fn an_id_contains_the_time_and_node_of_opening(subject: Subject) {
    let (node, clock) = node_with_clock(&subject, Timestamp(1_700_000_000_123_456_789)).await;
    let id = node.open("ann", "phone").await;
    assert_eq!((id.opened_us, id.node), (1_700_000_000_123_456, node.here()));
    clock.set(Timestamp(1_700_000_001_000_000_000));
    assert_eq!(node.open("bob", "phone").await.opened_us, 1_700_000_001_000_000);
}

async fn addresses_that_are_empty_or_too_long_are_refused(subject: Subject) {
    let node = subject.node().await;
    let long_user = "u".repeat(USER_BYTES_MAX + 1);
    let long_resource = "r".repeat(RESOURCE_BYTES_MAX + 1);
    // The limit counts bytes: these are one too many, though half as many characters.
    let wide_user = "é".repeat(USER_BYTES_MAX / 2 + 1);
    let wide_resource = "é".repeat(RESOURCE_BYTES_MAX / 2 + 1);
    let refused = [
        ("", "phone"),
        ("ann", ""),
        ("", ""),
        (&*long_user, "phone"),
        (&*wide_user, "phone"),
        ("ann", &*long_resource),
        ("ann", &*wide_resource),
    ];
    for (user, resource) in refused {
        let error = node.try_open(user, resource, &[]).await.map_err(|error| error.kind());
        assert_eq!(error, Err(ErrorKind::Invalid), "{} and {} bytes", user.len(), resource.len());
    }
    assert_eq!((node.totals().await, node.all().await.len()), ((0, 0), 0));
}

async fn the_longest_addresses_are_kept(subject: Subject) {
    let node = subject.node().await;
    let user = format!("{}é", "u".repeat(USER_BYTES_MAX - 2));
    let resource = format!("{}é", "r".repeat(RESOURCE_BYTES_MAX - 2));
    let id = node.open(&user, &resource).await;
    let almost = node.open(&user[..USER_BYTES_MAX - 2], &resource[..RESOURCE_BYTES_MAX - 2]).await;
    let row = node.address(&user, &resource).await.unwrap();
    assert_eq!((row.id, row.user, row.resource), (id, user.clone(), resource));
    assert_eq!(node.ids(&user).await, [id]);
    assert_eq!(node.id(almost).await.unwrap().user, user[..USER_BYTES_MAX - 2]);
    assert_eq!(node.all().await.len(), 2);
}

async fn odd_addresses_are_kept_apart(subject: Subject) {
    let node = subject.node().await;
    let mut opened = BTreeMap::new();
    for user in ODD_NAMES {
        for resource in ODD_NAMES {
            opened.insert((user, resource), node.open(user, resource).await);
        }
    }
    for ((user, resource), id) in &opened {
        let row = node.address(user, resource).await.unwrap();
        assert_eq!((row.id, &*row.user, &*row.resource), (*id, *user, *resource));
        assert_eq!(node.id(*id).await, Some(row));
    }
    let users = ODD_NAMES.len();
    assert_eq!(node.totals().await, ((users * users) as u64, users as u64));
    assert!(node.all().await.values().all(|sessions| sessions.len() == users));
    for user in ODD_NAMES {
        assert!(node.close(opened[&(user, "*")], Ended::Left).await);
        assert_eq!(node.user(user).await.len(), users - 1);
    }
    assert_eq!(node.ended_sessions().await, []);
}

async fn what_is_refused_changes_nothing(subject: Subject) {
    let node = subject.node_with_limit(2).await;
    let first = node.open_with("ann", "a", &[number(1, 1)]).await;
    let second = node.open("ann", "b").await;
    let before = node.user("ann").await;
    let long = "x".repeat(INFO_BYTES_MAX);
    let kind = |error: Error| error.kind();
    let too_much = [text(1, &long)];
    // The first would replace a session, the second would be one too many, the third a new user's.
    for (user, resource) in [("ann", "a"), ("ann", "c"), ("bob", "a")] {
        let new = NewSession { user, resource, info: &too_much };
        assert_eq!(node.sessions.open(new).await.map_err(kind), Err(ErrorKind::Full));
    }
    assert_eq!(node.try_open("ann", "", &[]).await.map_err(kind), Err(ErrorKind::Invalid));
    assert_eq!((node.user("ann").await, node.user("bob").await), (before, vec![]));
    assert_eq!(node.totals().await, (2, 1));
    assert_eq!(node.ended_sessions().await, []);
    assert_eq!(node.ids("ann").await, [second, first]);
}

async fn sessions_of_a_user_that_are_too_large_together_are_refused(subject: Subject) {
    const LIMIT: usize = 150;
    let node = subject.node_with_limit(LIMIT).await;
    let long = "x".repeat(INFO_BYTES_MAX - 16);
    let mut ids = Vec::new();
    let refused = loop {
        match node.try_open("ann", &format!("phone {}", ids.len()), &[text(1, &long)]).await {
            Ok(id) => ids.insert(0, id),
            Err(error) => break error.kind(),
        }
        assert!(ids.len() < LIMIT, "so many do not fit, and none has made way for another");
    };
    assert_eq!(refused, ErrorKind::Full);
    assert!(ids.len() > 100, "a hundred sessions may take all that each may take, not only {}", ids.len());
    assert_eq!(node.ids("ann").await, ids);
    let grown = node.sessions.merge_info(ids[0], &[text(2, "y")]).await;
    assert!(grown.is_ok_and(|is_there| is_there), "the rest of the last cell can be used");
    node.open("bob", "phone").await;
    assert!(node.close(ids[0], Ended::Left).await);
    node.open_with("ann", "again", &[text(1, &long)]).await;
    assert_eq!((node.totals().await, node.ended_sessions().await), ((ids.len() as u64 + 1, 2), vec![]));
}
