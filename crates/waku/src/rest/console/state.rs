//! What the console tells of the server: cheap to make, bounded, and kept for a second, so that many open pages cost what
//! one does.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{
    extract::{RawQuery, State},
    response::Response,
};
use bytes::Bytes;
use futures_util::StreamExt;
use parking_lot::RwLock;
use restante_archive::{Health, Stats};
use restante_core::Timestamp;
use restante_sessions::InfoKey;
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    super::{
        App, reply,
        reply::{Refusal, cut},
    },
    cached::Cached,
    days::Days,
    exposition::{Sample, samples},
    history::{History, INTERVAL_SECONDS, Reading},
};
use crate::node::{Direction, Node};

/// How long the whole is kept, and how long one waits for it.
const TOLD_FOR: Duration = Duration::from_millis(500);
const TOLD_WITHIN: Duration = Duration::from_secs(5);
/// What an archive holds is asked for every time the page asks, but by engines that take long to count: see [`Cached`].
const HELD_FOR: Duration = Duration::from_millis(500);
const HELD_WITHIN: Duration = Duration::from_millis(500);
/// Sessions are counted by door by walking through them.
const WALKED_FOR: Duration = Duration::from_secs(5);
const WALKED_WITHIN: Duration = Duration::from_millis(500);
/// How often the page asks.
const POLL_SECONDS: u64 = 1;
/// Other nodes of the table may be out of reach.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);
/// Users whose sessions are counted by door. Of a longer table a part is counted, and said to be one.
const USERS_WALKED_MAX: usize = 10_000;
/// Users that are walked through before others have their turn.
const USERS_PER_TURN: usize = 1_000;
/// Names of doors, agents and topics are those of others: so many are told, and so much of each.
const DOORS_MAX: usize = 16;
const AGENTS_MAX: usize = 8;
const TOPICS_MAX: usize = 64;
const NODES_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 80;
/// What health says of a database is cut here.
const PROBLEM_CHARS_MAX: usize = 600;

/// What the console keeps between requests.
#[derive(Debug)]
pub(crate) struct Desk {
    history: History,
    facts: RwLock<Facts>,
    told: Cached<Bytes>,
    held: Cached<Value>,
    walked: Cached<Value>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            history: History::default(),
            facts: RwLock::default(),
            told: Cached::new(TOLD_FOR, TOLD_WITHIN),
            held: Cached::new(HELD_FOR, HELD_WITHIN),
            walked: Cached::new(WALKED_FOR, WALKED_WITHIN),
        }
    }
}

/// What the metrics say beside rates and times.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    engine: Option<String>,
    started: Option<f64>,
    damaged: f64,
    pruned: f64,
    handover_dropped: f64,
    mesh_peers: f64,
    rest_connections: f64,
}

impl Facts {
    fn of(text: &str) -> Self {
        let mut facts = Self::default();
        samples(text).for_each(|sample| facts.take(&sample));
        facts
    }

    fn take(&mut self, sample: &Sample<'_>) {
        match sample.name {
            "restante_archive_engine_up" => self.engine = sample.label("engine").map(str::to_owned),
            "restante_server_start_time_seconds" => self.started = Some(sample.value),
            "restante_archive_damaged_records_total" => self.damaged = sample.value,
            "restante_archive_pruned_messages_total" => self.pruned = sample.value,
            "restante_waku_handover_dropped_total" => self.handover_dropped = sample.value,
            "restante_waku_relay_mesh_peers" => self.mesh_peers = sample.value,
            "restante_net_connections" if sample.label("listener") == Some("rest") => {
                self.rest_connections = sample.value
            }
            _ => {}
        }
    }
}

impl Desk {
    /// Looks at the metrics from now on, for as long as somebody else holds the app.
    pub(crate) fn watch(app: &Arc<App>) {
        let weak = Arc::downgrade(app);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(keep_watching(weak));
        }
    }
}

async fn keep_watching(app: Weak<App>) {
    let mut ticks = interval(Duration::from_secs(INTERVAL_SECONDS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        look(app).await;
    }
}

/// Takes a point of the history. Writing all metrics takes a millisecond, which is too long for a worker.
async fn look(app: Arc<App>) {
    let looking = spawn_blocking(move || {
        let text = (app.rest.metrics_text)();
        *app.desk.facts.write() = Facts::of(&text);
        app.desk.history.add(app.rest.clock.now(), Reading::of(&text));
    });
    let _ = looking.await; // fails only when the runtime ends
}

/// `GET /console/v1/state`: the server now, and the points of its history since the one that `since` names.
pub(crate) async fn state(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let since = since_in(query.as_deref().unwrap_or_default())?;
    let making = app.clone();
    let told = app.desk.told.get(|| tell(making)).await.ok_or(Refusal::busy())?;
    let history = app.desk.history.since(since).to_string();
    let mut json = Vec::with_capacity(told.len() + history.len() + 32);
    for part in [b"{\"server\":", &*told, b",\"history\":", history.as_bytes(), b"}"] {
        json.extend_from_slice(part);
    }
    Ok(reply::json(json))
}

fn since_in(query: &str) -> Result<i64, Refusal> {
    let mut since = 0;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if name != "since" {
            return Err(Refusal::unknown(name, &["since"]));
        }
        let wrong = |_| Refusal::field("since", "expected milliseconds since 1970 as a whole number");
        since = value.parse().map_err(wrong)?;
    }
    Ok(since)
}

async fn tell(app: Arc<App>) -> Bytes {
    let (holding, walking) = (app.clone(), app.clone());
    let held = app.desk.held.get(|| hold(holding)).await;
    let walked = app.desk.walked.get(|| walk(walking)).await;
    let sessions = count_sessions(&app, walked).await;
    let with = app.clone();
    // There may be a thousand peers to look at.
    let told = spawn_blocking(move || write(&with, held, sessions)).await;
    told.unwrap_or_else(|_| Bytes::from_static(b"{}")) // the runtime ends
}

fn write(app: &App, held: Option<Value>, sessions: Value) -> Bytes {
    let rest = &app.rest;
    let now = rest.clock.now();
    let facts = app.desk.facts.read().clone();
    let health = rest.upkeep.health();
    let told = json!({
        "version": rest.version,
        "now": millis(now),
        "startedAt": facts.started.map(|seconds| (seconds * 1e3) as i64),
        "isReady": health.problem.is_none() && app.takes_messages(),
        "problems": problems(app, &health, &facts),
        "pollSeconds": POLL_SECONDS,
        "doors": doors(app, &facts),
        "archive": archive(&health, &facts, held),
        "retention": rest.retention.told(),
        "pruned": facts.pruned,
        "peers": rest.waku.node.as_ref().map(|node| peers(node, &facts)),
        "sessions": sessions,
        "hasAdmin": app.has_admin(),
    });
    told.to_string().into()
}

fn millis(timestamp: Timestamp) -> i64 {
    timestamp.nanos() / 1_000_000
}

/// What an operator should know first.
fn problems(app: &App, health: &Health, facts: &Facts) -> Vec<Value> {
    let problem = |what: String, since: Option<Timestamp>| json!({"what": cut(&what, PROBLEM_CHARS_MAX), "since": since.map(millis)});
    let mut problems = Vec::new();
    if let Some(what) = &health.problem {
        problems.push(problem(what.clone(), health.since));
    } else if !app.takes_messages() {
        problems.push(problem("the last message could not be archived".to_owned(), None));
    }
    if let Some(following) = health.following.as_ref().filter(|following| following.problem.is_some()) {
        let what = following.problem.clone().unwrap_or_default();
        problems.push(problem(format!("the tandem's second archive: {what}"), following.since));
    }
    if let Err(error) = app.rest.waku.live.nodes.health() {
        problems.push(problem(format!("sessions of other nodes are unknown: {error}"), None));
    }
    if let Some(what) = &health.damage {
        problems.push(problem(what.clone(), None));
    }
    if facts.damaged > 0.0 {
        problems
            .push(problem(format!("{} damaged records were found and are not served", facts.damaged), None));
    }
    if facts.handover_dropped > 0.0 {
        let what = format!(
            "{} relayed messages were dropped on their way to the archive: the queue was full",
            facts.handover_dropped
        );
        problems.push(problem(what, None));
    }
    problems
}

fn doors(app: &App, facts: &Facts) -> Vec<Value> {
    let rest = &app.rest;
    let own = json!({
        "name": "REST", "isOn": true, "connections": facts.rest_connections, "addresses": rest.listen_addresses,
    });
    let Some(node) = &rest.waku.node else {
        return vec![own, json!({"name": "Waku node", "isOn": false})];
    };
    let addresses: Vec<String> = node.addresses().iter().take(NODES_MAX).map(ToString::to_string).collect();
    let services = rest.waku.services;
    let mut doors = vec![own, json!({"name": "Waku node", "isOn": true, "addresses": addresses})];
    let offered = [
        ("Relay", node.is_relay()),
        ("Store", services.store),
        ("Filter", services.filter),
        ("Light push", services.lightpush),
        ("Peer exchange", services.peer_exchange),
    ];
    doors.extend(offered.map(|(name, is_on)| json!({"name": name, "isOn": is_on})));
    doors
}

fn archive(health: &Health, facts: &Facts, held: Option<Value>) -> Value {
    let following = health.following.as_ref().map(|following| {
        json!({
            "engine": following.engine,
            "problem": following.problem.as_deref().map(|problem| cut(problem, PROBLEM_CHARS_MAX)),
            "isStopped": following.is_stopped,
            "messages": following.messages,
            "bytes": following.bytes,
        })
    });
    let spool = json!({"messages": health.spooled_messages, "bytes": health.spooled_bytes});
    json!({
        "engine": facts.engine,
        "isWell": health.problem.is_none(),
        "spool": (health.spooled_messages > 0 || health.spooled_bytes > 0).then_some(spool),
        "tandem": following,
        "held": held,
    })
}

/// What the archive holds; `null` when it can't tell now. Engines may count for long, so not on a worker.
async fn hold(app: Arc<App>) -> Value {
    let runtime = Handle::current();
    let counted = spawn_blocking(move || {
        let stats = runtime.block_on(app.rest.upkeep.stats());
        stats.map_or(Value::Null, |stats| show_stats(&stats, app.rest.clock.now()))
    });
    counted.await.unwrap_or(Value::Null)
}

fn show_stats(stats: &Stats, now: Timestamp) -> Value {
    json!({
        "at": millis(now),
        "messages": stats.messages,
        "topics": stats.topics,
        "bodyBytes": stats.body_bytes,
        "diskBytes": stats.disk_bytes,
        "oldest": stats.oldest.map(millis),
        "newest": stats.newest.map(millis),
        "parts": stats.parts.len(),
        "days": Days::of(&stats.parts, now),
    })
}

fn peers(node: &Node, facts: &Facts) -> Value {
    let peers = node.peers();
    let mut by_agent: BTreeMap<&str, usize> = BTreeMap::new();
    for peer in &peers {
        *by_agent.entry(&peer.agent).or_default() += 1;
    }
    let mut agents: Vec<(usize, &str)> = by_agent.into_iter().map(|(agent, count)| (count, agent)).collect();
    agents.sort_by_key(|(count, agent)| (std::cmp::Reverse(*count), *agent));
    let show_agent =
        |(count, agent): &(usize, &str)| json!({"name": cut(agent, NAME_CHARS_MAX), "peers": count});
    let topics = node.topics();
    let show_topic =
        |topic: &String| json!({"name": cut(topic, NAME_CHARS_MAX), "peers": node.followers(topic)});
    json!({
        "connected": peers.len(),
        "inbound": peers.iter().filter(|peer| peer.direction == Direction::Inbound).count(),
        "mesh": facts.mesh_peers,
        "agents": agents.iter().take(AGENTS_MAX).map(show_agent).collect::<Vec<Value>>(),
        "topics": topics.iter().take(TOPICS_MAX).map(show_topic).collect::<Vec<Value>>(),
        "topicsInAll": topics.len(),
    })
}

/// How many are connected; without numbers when the table does not answer.
async fn count_sessions(app: &App, walked: Option<Value>) -> Value {
    let live = &app.rest.waku.live;
    let counting = async { (live.sessions.counts().await, live.nodes.nodes().await) };
    let Ok((Ok(counts), nodes)) = timeout(COUNTED_WITHIN, counting).await else {
        return json!({"total": null, "users": null, "isComplete": false, "nodes": [], "byDoor": walked});
    };
    let here = live.nodes.here();
    let nodes = nodes.unwrap_or_default();
    let show_node = |node: &restante_sessions::NodeState| json!({"name": cut(&node.name, NAME_CHARS_MAX), "sessions": node.sessions, "isHere": node.id == here});
    json!({
        "total": counts.sessions,
        "users": counts.users,
        "isComplete": counts.is_complete,
        "nodes": nodes.iter().take(NODES_MAX).map(show_node).collect::<Vec<Value>>(),
        "byDoor": walked,
    })
}

/// Counts sessions by door. Of a long table a part is walked through.
async fn walk(app: Arc<App>) -> Value {
    let mut by_door: BTreeMap<String, usize> = BTreeMap::new();
    let mut users = 0;
    let mut all = app.rest.waku.live.sessions.all();
    let mut is_whole = true;
    while let Some(found) = all.next().await {
        let Ok(found) = found else {
            is_whole = false;
            break;
        };
        if users == USERS_WALKED_MAX {
            is_whole = false;
            break;
        }
        for session in &found {
            let door = cut(session.info.text(InfoKey::DOOR).unwrap_or("other"), NAME_CHARS_MAX);
            let has_room = by_door.len() < DOORS_MAX || by_door.contains_key(&door);
            *by_door.entry(if has_room { door } else { "other".to_owned() }).or_default() += 1;
        }
        users += 1;
        if users % USERS_PER_TURN == 0 {
            tokio::task::yield_now().await;
        }
    }
    let doors = by_door.iter().map(|(door, sessions)| json!({"door": door, "sessions": sessions}));
    json!({"at": millis(app.rest.clock.now()), "doors": doors.collect::<Vec<Value>>(), "isWhole": is_whole})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_metrics() {
        let text = "restante_server_start_time_seconds 1795302883.8\n\
                    restante_archive_engine_up{engine=\"log\"} 1\n\
                    restante_waku_handover_dropped_total 3\n";
        let facts = Facts::of(text);
        assert_eq!(facts.engine.as_deref(), Some("log"));
        assert_eq!((facts.started, facts.handover_dropped), (Some(1_795_302_883.8), 3.0));
    }

    #[test]
    fn since_is_a_number_or_not_there() {
        assert_eq!(since_in("").unwrap(), 0);
        assert_eq!(since_in("since=12").unwrap(), 12);
        assert!(since_in("since=x").is_err());
    }
}
