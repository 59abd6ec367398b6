//! What the console shows of the server: cheap to compute, bounded, and cached for half a second, so that many open pages cost as
//! much as one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{extract::RawQuery, response::Response};
use futures_util::StreamExt;
use parking_lot::RwLock;
use restante_core::Timestamp;
use restante_http::{
    Refusal,
    reply::{self, cut},
};
use restante_sessions::InfoKey;
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    cached::Cached,
    exposition::{Sample, samples},
    history::{History, INTERVAL_SECONDS, Reading},
};
use crate::{ArchiveReport, Facts as DoorFacts, Operate, Problem};

/// How long the whole state is valid, and how long a request waits for it.
const STATE_FOR: Duration = Duration::from_millis(500);
const STATE_WITHIN: Duration = Duration::from_secs(5);
/// An archive's content is counted each time the page polls, but less often with engines that take long to count: see [`Cached`].
const HELD_FOR: Duration = Duration::from_millis(500);
const HELD_WITHIN: Duration = Duration::from_millis(500);
/// Sessions are counted by door by iterating over them.
const WALKED_FOR: Duration = Duration::from_secs(5);
const WALKED_WITHIN: Duration = Duration::from_millis(500);
/// How often the page polls.
const POLL_SECONDS: u64 = 1;
/// Other nodes of the table may be unreachable.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);
/// The most users whose sessions are counted by door. Of a longer table only a part is counted, and the answer says so.
const USERS_WALKED_MAX: usize = 10_000;
/// Users that are processed before other tasks run.
const USERS_PER_YIELD: usize = 1_000;
/// Names of doors and nodes come from others: at most this many are shown, and at most this much of each.
const DOORS_MAX: usize = 16;
const NODES_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 80;
/// The health text of a database is truncated to this.
pub(crate) const PROBLEM_CHARS_MAX: usize = 600;

/// What the console keeps between requests.
#[derive(Debug)]
pub(crate) struct ConsoleState {
    history: History,
    facts: RwLock<Facts>,
    is_watching: AtomicBool,
    state: Cached<Arc<str>>,
    held: Cached<Value>,
    walked: Cached<Value>,
}

impl Default for ConsoleState {
    fn default() -> Self {
        Self {
            history: History::default(),
            facts: RwLock::default(),
            is_watching: AtomicBool::default(),
            state: Cached::new(STATE_FOR, STATE_WITHIN),
            held: Cached::new(HELD_FOR, HELD_WITHIN),
            walked: Cached::new(WALKED_FOR, WALKED_WITHIN),
        }
    }
}

/// What the metrics contain besides rates and times.
#[derive(Clone, Debug, Default, PartialEq)]
struct Facts {
    engine: Option<String>,
    started: Option<f64>,
    damaged: f64,
    pruned: f64,
    connections: BTreeMap<String, f64>,
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
            "restante_net_connections" => {
                let listener = sample.label("listener").unwrap_or_default().to_owned();
                self.connections.insert(listener, sample.value);
            }
            _ => {}
        }
    }
}

/// Reads the metrics from now on, for as long as something else holds the routes.
pub(crate) fn watch(operate: &Arc<Operate>) {
    if operate.console.is_watching.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(keep_watching(Arc::downgrade(operate)));
    }
}

async fn keep_watching(operate: Weak<Operate>) {
    let mut ticks = interval(Duration::from_secs(INTERVAL_SECONDS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(operate) = operate.upgrade() else { return };
        look(operate).await;
    }
}

/// Adds a point to the history. Writing all metrics takes a millisecond, which is too long for a worker.
async fn look(operate: Arc<Operate>) {
    let looking = spawn_blocking(move || {
        let text = (operate.parts.metrics_text)();
        *operate.console.facts.write() = Facts::of(&text);
        operate.console.history.add(operate.parts.clock.now(), Reading::of(&text));
    });
    let _ = looking.await; // fails only when the runtime ends
}

/// `GET /console/v1/state`: the current state of the server, and the points of its history after the one that `since` names.
pub(crate) async fn state(
    operate: Arc<Operate>,
    query: RawQuery,
    has_admin: bool,
) -> Result<Response, Refusal> {
    let since = since_in(query.0.as_deref().unwrap_or_default())?;
    let making = operate.clone();
    let state = operate.console.state.get(|| make_state(making)).await.ok_or(Refusal::busy())?;
    let history = operate.console.history.since(since).to_string();
    let has_admin = if has_admin { "true" } else { "false" };
    let mut json = Vec::with_capacity(state.len() + history.len() + 64);
    for part in ["{\"server\":{\"hasAdmin\":", has_admin, ",", &state, ",\"history\":", &history, "}"] {
        json.extend_from_slice(part.as_bytes());
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

/// The fields of the server as JSON, without the opening brace.
async fn make_state(operate: Arc<Operate>) -> Arc<str> {
    let (counting, walking) = (operate.clone(), operate.clone());
    let held = operate.console.held.get(|| hold(counting)).await;
    let walked = operate.console.walked.get(|| walk(walking)).await;
    let sessions = count_sessions(&operate, walked).await;
    // A door may have thousands of peers to examine.
    let shown = spawn_blocking(move || show(&operate, held, sessions)).await;
    let shown = shown.unwrap_or_else(|_| json!({"version": null})).to_string(); // the runtime is shutting down
    shown.strip_prefix('{').unwrap_or_default().into()
}

fn show(operate: &Operate, held: Option<Value>, sessions: Value) -> Value {
    let parts = &operate.parts;
    let archive = parts.archive.as_ref();
    let now = parts.clock.now();
    let facts = operate.console.facts.read().clone();
    let metrics = (parts.metrics_text)();
    let of_doors = parts.doors.iter().map(|door| door.facts(&metrics));
    let of_roles = parts.facts.iter().map(|show| show(&metrics));
    let of_doors: Vec<DoorFacts> = of_doors.chain(of_roles).collect();
    let mut state = json!({
        "version": parts.version,
        "now": millis(now),
        "startedAt": facts.started.map(|seconds| (seconds * 1e3) as i64),
        "isReady": archive.is_none_or(|archive| archive.is_ready()),
        "problems": problems(operate, &of_doors, &facts),
        "pollSeconds": POLL_SECONDS,
        "archive": archive.map(|archive| show_archive(&**archive, &facts, held)),
        "retention": archive.map(|archive| archive.show_retention()),
        "pruned": facts.pruned,
        "sessions": sessions,
    });
    let mut doors = listeners(operate, &facts);
    for of_door in of_doors {
        doors.extend(of_door.services);
        if let Value::Object(fields) = &mut state {
            fields.extend(of_door.fields);
        }
    }
    if let Value::Object(fields) = &mut state {
        fields.insert("doors".to_owned(), doors.into());
    }
    state
}

pub(crate) fn millis(timestamp: Timestamp) -> i64 {
    timestamp.nanos() / 1_000_000
}

/// What an operator should know first.
fn problems(operate: &Operate, of_doors: &[DoorFacts], facts: &Facts) -> Vec<Value> {
    let mut problems = operate.parts.archive.as_ref().map(|archive| archive.problems()).unwrap_or_default();
    let mut add = |what: String| problems.push(Problem { what, since: None });
    for role in &operate.parts.roles {
        if let Some(problem) = (role.problem)() {
            add(format!("{}: {problem}", role.name));
        }
    }
    if let Some(problem) = operate.sessions_problem() {
        add(format!("sessions of other nodes are unknown: {problem}"));
    }
    if facts.damaged > 0.0 {
        add(format!("{} damaged records were found and are not served", facts.damaged));
    }
    of_doors.iter().flat_map(|of_door| &of_door.problems).cloned().for_each(add);
    let show =
        |Problem { what, since }| json!({"what": cut(&what, PROBLEM_CHARS_MAX), "since": since.map(millis)});
    problems.into_iter().map(show).collect()
}

/// The HTTP listeners, with which the table of doors begins.
fn listeners(operate: &Operate, facts: &Facts) -> Vec<Value> {
    let mut listeners: Vec<Value> = Vec::new();
    for (listener, address) in &operate.parts.addresses {
        let connections = facts.connections.get(listener.as_str()).copied().unwrap_or_default();
        let name = listener.name();
        listeners
            .push(json!({"name": name, "isOn": true, "connections": connections, "addresses": [address]}));
    }
    listeners
}

fn show_archive(archive: &dyn ArchiveReport, facts: &Facts, held: Option<Value>) -> Value {
    let mut shown = archive.show();
    shown.insert("engine".to_owned(), json!(facts.engine));
    shown.insert("held".to_owned(), json!(held));
    shown.into()
}

/// The content of the archive; `null` if it can't be counted now.
async fn hold(operate: Arc<Operate>) -> Value {
    let Some(archive) = &operate.parts.archive else { return Value::Null };
    archive.held(operate.parts.clock.now()).await
}

/// How many clients are connected; without numbers if the table does not answer.
async fn count_sessions(operate: &Operate, walked: Option<Value>) -> Value {
    let live = &operate.parts.live;
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

/// Counts sessions by door. Of a long table only a part is counted.
async fn walk(operate: Arc<Operate>) -> Value {
    let mut by_door: BTreeMap<String, usize> = BTreeMap::new();
    let mut users = 0;
    let mut all = operate.parts.live.sessions.all();
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
            let is_listed = by_door.len() < DOORS_MAX || by_door.contains_key(&door);
            *by_door.entry(if is_listed { door } else { "other".to_owned() }).or_default() += 1;
        }
        users += 1;
        if users % USERS_PER_YIELD == 0 {
            tokio::task::yield_now().await;
        }
    }
    let doors = by_door.iter().map(|(door, sessions)| json!({"door": door, "sessions": sessions}));
    json!({"at": millis(operate.parts.clock.now()), "doors": doors.collect::<Vec<Value>>(), "isWhole": is_whole})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_metrics() {
        let text = "restante_server_start_time_seconds 1795302883.8\n\
                    restante_archive_engine_up{engine=\"log\"} 1\n\
                    restante_net_connections{listener=\"rest\"} 3\n";
        let facts = Facts::of(text);
        assert_eq!(facts.engine.as_deref(), Some("log"));
        assert_eq!((facts.started, facts.connections["rest"]), (Some(1_795_302_883.8), 3.0));
    }

    #[test]
    fn since_is_a_number_or_not_there() {
        assert_eq!(since_in("").unwrap(), 0);
        assert_eq!(since_in("since=12").unwrap(), 12);
        assert!(since_in("since=x").is_err());
    }
}
