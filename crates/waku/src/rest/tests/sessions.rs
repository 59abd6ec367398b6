use futures_util::stream::BoxStream;
use restante_sessions::{
    Answer as SessionAnswer, Counts, Ended, Error as SessionError, Found, InfoChange, InfoKey, InfoValue,
    NewSession, NodeId, NodeState, Nodes, SessionId, Sessions,
    hub::{Event, Next, Overflow, Subscription, SubscriptionConfig},
};
use serde_json::json;

use super::*;

const SESSIONS: &str = "/admin/v1/sessions";

fn admin() -> RestConfig {
    RestConfig { admin: true, ..RestConfig::default() }
}

async fn admin_door() -> Door {
    door_with(admin()).await
}

async fn open_session(door: &Door, user: &str, resource: &str, info: &[InfoChange<'_>]) -> SessionId {
    door.waku.live.sessions.open(NewSession { user, resource, info }).await.unwrap()
}

/// Opens `count` sessions, each of another user.
async fn open_many(door: &Door, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for number in 0..count {
        // Names in no particular order.
        let user = format!("{}@example.org", number * 7 % count);
        ids.push(open_session(door, &user, "tablet", &[]).await.to_string());
    }
    ids.reverse(); // lists have the newest first
    ids
}

fn ids(page: &Value) -> Vec<String> {
    let sessions = page["sessions"].as_array().unwrap().iter();
    sessions.map(|session| session["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_session_is_shown_whole() {
    let door = admin_door().await;
    let address = InfoValue::Address("192.0.2.1:5222".parse().unwrap());
    let info = [
        (InfoKey::DOOR, Some(InfoValue::Text("waku_filter"))),
        (InfoKey::ADDRESS, Some(address)),
        (InfoKey::TOPICS, Some(InfoValue::Number(3))),
    ];
    let id = open_session(&door, "juliet@example.com", "balcony", &info).await;
    door.waku.live.sessions.set_presence(id, Some(-3), &[]).await.unwrap();
    let expected = json!({
        "id": id.to_string(), "user": "juliet@example.com", "resource": "balcony", "priority": -3,
        "node": id.node.0, "openedAt": id.opened_at().to_string(),
        "info": {"door": "waku_filter", "address": "192.0.2.1:5222", "topics": 3},
    });
    assert_eq!(door.get(&format!("{SESSIONS}/{id}")).await.json(), expected);
    let page = door.get(SESSIONS).await.json();
    assert_eq!(page, json!({"sessions": [expected], "next": null, "complete": true}));
}

#[tokio::test]
async fn pages_give_each_session_once_newest_first() {
    let door = admin_door().await;
    let expected = open_many(&door, 25).await;
    for limit in [1, 7, 24, 25, 26] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = door.get(&format!("{SESSIONS}?limit={limit}{cursor}")).await.json();
            assert!(ids(&page).len() <= limit, "{page}");
            found.extend(ids(&page));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(found, expected, "limit {limit}");
    }
}

#[tokio::test]
async fn what_came_meanwhile_is_on_no_page_and_what_stayed_is_on_one() {
    let door = admin_door().await;
    let before = open_many(&door, 4).await;
    let first = door.get(&format!("{SESSIONS}?limit=2")).await.json();
    assert_eq!(ids(&first), before[..2]);
    open_session(&door, "new@example.org", "tablet", &[]).await;
    assert_eq!(door.send("DELETE", &format!("{SESSIONS}/{}", before[2]), "").await.status, 200);
    let next = first["next"].as_str().unwrap();
    let second = door.get(&format!("{SESSIONS}?cursor={next}")).await.json();
    assert_eq!(ids(&second), before[3..]);
}

#[tokio::test]
async fn lists_are_narrowed_down() {
    let door = admin_door().await;
    let text = |text| [(InfoKey::DOOR, Some(InfoValue::Text(text)))];
    let one = open_session(&door, "a b+c", "live", &text("rest_live")).await.to_string();
    let two = open_session(&door, "a b+c", "filter", &text("waku_filter")).await.to_string();
    let other = open_session(&door, "other", "filter", &text("waku_filter")).await.to_string();
    let node = door.waku.live.nodes.here().0;
    for (query, expected) in [
        ("", vec![&other, &two, &one]),
        ("user=a+b%2Bc", vec![&two, &one]),
        ("user=a%20b%2Bc&resource=live", vec![&one]),
        ("user=a+b%2Bc&limit=1", vec![&two]),
        ("resource=filter", vec![&other, &two]),
        ("door=waku_filter", vec![&other, &two]),
        ("door=rest_live&user=other", vec![]),
        ("user=nobody", vec![]),
        (&format!("node={node}"), vec![&other, &two, &one]),
        (&format!("node={}", node.wrapping_add(1)), vec![]),
    ] {
        let page = door.get(&format!("{SESSIONS}?{query}")).await.json();
        assert_eq!(ids(&page).iter().collect::<Vec<_>>(), expected, "{query}");
    }
    let page = door.get(&format!("{SESSIONS}?user=a+b%2Bc&limit=1&cursor={two}")).await.json();
    assert_eq!((ids(&page), &page["next"]), (vec![one], &Value::Null));
}

#[tokio::test]
async fn wrong_questions_are_named() {
    let door = admin_door().await;
    for (method, path, expected) in [
        ("GET", "?limit=0", "limit: expected a number from 1 to 10000"),
        ("GET", "?limit=10001", "limit: expected a number from 1 to 10000"),
        ("GET", "?cursor=x", "cursor: is no cursor of an earlier page"),
        ("GET", "?user=", "user: is empty"),
        ("GET", "?user=a&user=b", "user: is given twice"),
        ("GET", "?user=%ff", "user: is not UTF-8"),
        ("GET", "?usr=a", "usr: is not known here: did you mean user?"),
        ("GET", "?node=nowhere", "node: no node has this name: see /admin/v1/sessions/counts"),
        ("GET", "/x", "sessionId: a session id has 32 hexadecimal digits"),
        ("DELETE", "/x", "sessionId: a session id has 32 hexadecimal digits"),
        ("DELETE", "", "user: name the one whose sessions shall be closed"),
        ("DELETE", "?resource=x", "user: name the one whose sessions shall be closed"),
        ("DELETE", "?usr=a", "usr: is not known here: did you mean user?"),
        ("DELETE", "?user=a&door=x", "door: is not known here: use user, resource"),
    ] {
        let answer = door.send(method, &format!("{SESSIONS}{path}"), "").await;
        assert_eq!(answer.refusal(), (400, expected), "{method} {path}");
    }
}

#[tokio::test]
async fn counts_name_the_nodes() {
    let door = admin_door().await;
    for resource in ["one", "two"] {
        open_session(&door, "juliet", resource, &[]).await;
    }
    open_session(&door, "romeo", "one", &[]).await;
    let counts = door.get(&format!("{SESSIONS}/counts")).await.json();
    assert_eq!((&counts["sessions"], &counts["users"]), (&json!(3), &json!(2)));
    assert_eq!(counts["complete"], true);
    let node = &counts["byNode"][0];
    assert_eq!((&node["node"], &node["sessions"]), (&json!(door.waku.live.nodes.here().0), &json!(3)));
}

/// A subscription of a session, as a door opens it.
fn subscribe(door: &Door, id: SessionId) -> Subscription {
    let config =
        SubscriptionConfig { events_max: 10, bytes_max: 1_000, interests_max: 10, overflow: Overflow::End };
    door.waku.live.hub.join(id, config).unwrap()
}

#[tokio::test]
async fn a_session_is_closed_and_its_reader_gets_the_reason() {
    let door = admin_door().await;
    let (one, two) =
        (open_session(&door, "juliet", "one", &[]).await, open_session(&door, "juliet", "two", &[]).await);
    let subscription = subscribe(&door, one);
    let close = format!("{SESSIONS}/{one}");
    assert_eq!(door.send("DELETE", &close, "").await.json(), json!({"closed": 1, "complete": true}));
    assert!(matches!(subscription.next().await, Next::Ended(Ended::Operator)));
    let gone = (404, "no session has this id: it may have ended meanwhile");
    assert_eq!(door.send("DELETE", &close, "").await.refusal(), gone);
    assert_eq!(door.get(&close).await.refusal(), gone);
    assert_eq!(ids(&door.get(SESSIONS).await.json()), [two.to_string()]);
}

#[tokio::test]
async fn all_sessions_of_a_user_are_closed_and_no_others() {
    let door = admin_door().await;
    for (user, resource) in [("juliet", "one"), ("juliet", "two"), ("juliet", "three"), ("romeo", "one")] {
        open_session(&door, user, resource, &[]).await;
    }
    let close = async |query: &str| door.send("DELETE", &format!("{SESSIONS}?{query}"), "").await.json();
    let closed = |count| json!({"closed": count, "complete": true});
    assert_eq!(close("user=juliet&resource=two").await, closed(1));
    assert_eq!(close("user=juliet").await, closed(2));
    assert_eq!(close("user=juliet").await, closed(0));
    let left = door.get(SESSIONS).await.json();
    assert_eq!(left["sessions"].as_array().unwrap().len(), 1);
    assert_eq!(left["sessions"][0]["user"], "romeo");
}

/// A table whose other nodes can't be reached: their known sessions can't be closed.
struct Cut {
    inner: Live,
    remote: SessionId,
}

fn unreachable<T>() -> Result<T, SessionError> {
    Err(SessionError::new(ErrorKind::Unavailable, "redis is unavailable: connection refused"))
}

impl Sessions for Cut {
    fn open<'a>(&'a self, new: NewSession<'a>) -> SessionAnswer<'a, Result<SessionId, SessionError>> {
        self.inner.sessions.open(new)
    }

    fn close(&self, id: SessionId, why: Ended) -> SessionAnswer<'_, Result<bool, SessionError>> {
        if id == self.remote {
            SessionAnswer::ready(unreachable())
        } else {
            self.inner.sessions.close(id, why)
        }
    }

    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> SessionAnswer<'a, Result<bool, SessionError>> {
        self.inner.sessions.set_presence(id, priority, changes)
    }

    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> SessionAnswer<'a, Result<bool, SessionError>> {
        self.inner.sessions.merge_info(id, changes)
    }

    fn by_user<'a>(&'a self, user: &'a str) -> SessionAnswer<'a, Result<Found, SessionError>> {
        self.inner.sessions.by_user(user)
    }

    fn by_address<'a>(
        &'a self,
        user: &'a str,
        resource: &'a str,
    ) -> SessionAnswer<'a, Result<Found, SessionError>> {
        self.inner.sessions.by_address(user, resource)
    }

    fn by_id(&self, id: SessionId) -> SessionAnswer<'_, Result<Found, SessionError>> {
        self.inner.sessions.by_id(id)
    }

    fn all(&self) -> BoxStream<'_, Result<Found, SessionError>> {
        self.inner.sessions.all()
    }

    fn counts(&self) -> SessionAnswer<'_, Result<Counts, SessionError>> {
        self.inner.sessions.counts()
    }
}

impl Nodes for Cut {
    fn here(&self) -> NodeId {
        self.inner.nodes.here()
    }

    fn heartbeat(&self) -> SessionAnswer<'_, Result<(), SessionError>> {
        SessionAnswer::ready(unreachable())
    }

    fn sweep(&self) -> SessionAnswer<'_, Result<u64, SessionError>> {
        SessionAnswer::ready(unreachable())
    }

    fn nodes(&self) -> SessionAnswer<'_, Result<Vec<NodeState>, SessionError>> {
        SessionAnswer::ready(unreachable())
    }

    fn broadcast(&self, _event: &Event) {}

    fn health(&self) -> Result<(), SessionError> {
        unreachable()
    }

    fn close(&self) -> SessionAnswer<'_, Result<(), SessionError>> {
        SessionAnswer::ready(unreachable())
    }
}

/// A door whose table can't reach the others, and a session of another node that it still knows.
async fn cut_door() -> (Door, SessionId) {
    let inner = crate::live::standalone().await.unwrap();
    let remote =
        inner.sessions.open(NewSession { user: "juliet", resource: "far", info: &[] }).await.unwrap();
    let cut = Arc::new(Cut { inner: inner.clone(), remote });
    let live = Live { sessions: cut.clone(), nodes: cut, hub: inner.hub };
    let Opened { archive, upkeep } = memory().await;
    (start_door_with(live, archive, upkeep, admin(), WakuConfig::default()).await, remote)
}

#[tokio::test]
async fn nodes_that_are_out_of_reach_are_no_trouble_of_this_one() {
    let (door, _) = cut_door().await;
    let answer = door.get("/health").await.json();
    assert_eq!(answer["nodeHealth"], "Ready");
    let sessions = answer["protocolsHealth"].as_array().unwrap().last().unwrap();
    let desc = "redis is unavailable: connection refused";
    assert_eq!(sessions, &json!({"Sessions": "Not Ready", "desc": desc}));
}

#[tokio::test]
async fn unreachable_nodes_are_reported() {
    let (door, remote) = cut_door().await;
    let page = door.get(SESSIONS).await.json();
    assert_eq!((ids(&page).len(), &page["complete"]), (1, &json!(false)));
    assert_eq!(door.get(&format!("{SESSIONS}?node={}", remote.node)).await.json()["complete"], false);
    let answer = door.get(&format!("{SESSIONS}/counts")).await.json();
    assert_eq!(answer["byNode"][0]["name"], Value::Null);
    let refusal = (503, "other nodes are out of reach: try again later");
    assert_eq!(door.get(&format!("{SESSIONS}?node=paris")).await.refusal(), refusal);
    assert_eq!(door.send("DELETE", &format!("{SESSIONS}/{remote}"), "").await.refusal(), refusal);
    open_session(&door, "juliet", "near", &[]).await;
    let closed = door.send("DELETE", &format!("{SESSIONS}?user=juliet"), "").await.json();
    assert_eq!(closed, json!({"closed": 1, "complete": false}));
}
