//! The door's reports about itself: its health, and the facts for the console.

use std::{cmp::Reverse, collections::BTreeMap};

use restante_http::reply::cut;
use restante_operate::{ComponentHealth, Facts, Status, exposition::samples};
use serde_json::{Map, Value, json};

use super::App;
use crate::node::{Direction, Node};

/// Names of agents, topics and addresses come from others: at most this many are shown, and at most this much of each.
const AGENTS_MAX: usize = 8;
const TOPICS_MAX: usize = 64;
const ADDRESSES_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 80;

/// The components in nwaku's order. The door serves history without peers, and the first node of a network has none: only the
/// archive is vital.
pub(crate) async fn health(app: &App) -> Vec<ComponentHealth> {
    let mut components = vec![relay(app), app.rest.health.check("Store").await];
    let services = app.rest.waku.services;
    let has_node = app.rest.waku.node.is_some();
    let offered = [
        ("Filter", services.filter),
        ("Lightpush", services.lightpush),
        ("Peer Exchange", services.peer_exchange),
        ("Metadata", true),
    ];
    components.extend(offered.map(|(name, is_offered)| match has_node && is_offered {
        true => ComponentHealth::new(name, None),
        false => not_mounted(name),
    }));
    components
}

/// Relay is ready when a message would reach a peer.
fn relay(app: &App) -> ComponentHealth {
    let Some(node) = app.rest.waku.node.as_ref().filter(|node| node.is_relay()) else {
        return not_mounted("Relay");
    };
    let has_followers = node.topics().iter().any(|topic| node.followers(topic) > 0);
    let problem = "no peer follows a pubsub topic that this node relays";
    ComponentHealth::new("Relay", (!has_followers).then(|| problem.to_owned()))
}

fn not_mounted(name: &'static str) -> ComponentHealth {
    ComponentHealth { status: Status::NotMounted, ..ComponentHealth::new(name, None) }
}

/// The node and its services, its peers, and messages that were lost.
pub(crate) fn facts(app: &App, metrics: &str) -> Facts {
    let value =
        |name: &str| samples(metrics).find(|sample| sample.name == name).map_or(0.0, |sample| sample.value);
    let mut facts = Facts { services: services(app), ..Facts::default() };
    let dropped = value("restante_waku_handover_dropped_total");
    if dropped > 0.0 {
        let what = "relayed messages were dropped on their way to the archive: the queue was full";
        facts.problems.push(format!("{dropped} {what}"));
    }
    let peers = app.rest.waku.node.as_ref().map(|node| peers(node, value("restante_waku_relay_mesh_peers")));
    facts.fields = Map::from_iter([("peers".to_owned(), peers.into())]);
    facts
}

fn services(app: &App) -> Vec<Value> {
    let Some(node) = &app.rest.waku.node else {
        return vec![json!({"name": "Waku node", "isOn": false})];
    };
    let addresses: Vec<String> =
        node.addresses().iter().take(ADDRESSES_MAX).map(ToString::to_string).collect();
    let services = app.rest.waku.services;
    let mut shown = vec![json!({"name": "Waku node", "isOn": true, "addresses": addresses})];
    let offered = [
        ("Relay", node.is_relay()),
        ("Store", services.store),
        ("Filter", services.filter),
        ("Light push", services.lightpush),
        ("Peer exchange", services.peer_exchange),
    ];
    shown.extend(offered.map(|(name, is_on)| json!({"name": name, "isOn": is_on})));
    shown
}

fn peers(node: &Node, mesh: f64) -> Value {
    let peers = node.peers();
    let mut by_agent: BTreeMap<&str, usize> = BTreeMap::new();
    for peer in &peers {
        *by_agent.entry(&peer.agent).or_default() += 1;
    }
    let mut agents: Vec<(usize, &str)> = by_agent.into_iter().map(|(agent, count)| (count, agent)).collect();
    agents.sort_by_key(|(count, agent)| (Reverse(*count), *agent));
    let show_agent =
        |(count, agent): &(usize, &str)| json!({"name": cut(agent, NAME_CHARS_MAX), "peers": count});
    let topics = node.topics();
    let show_topic =
        |topic: &String| json!({"name": cut(topic, NAME_CHARS_MAX), "peers": node.followers(topic)});
    json!({
        "connected": peers.len(),
        "inbound": peers.iter().filter(|peer| peer.direction == Direction::Inbound).count(),
        "mesh": mesh,
        "agents": agents.iter().take(AGENTS_MAX).map(show_agent).collect::<Vec<Value>>(),
        "topics": topics.iter().take(TOPICS_MAX).map(show_topic).collect::<Vec<Value>>(),
        "topicsInAll": topics.len(),
    })
}
