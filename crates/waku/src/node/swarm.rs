//! The swarm's task: handles connections, relays messages and runs commands.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use libp2p::{
    Multiaddr, PeerId, Swarm,
    core::{ConnectedPoint, upgrade::Version},
    gossipsub::{self, MessageAcceptance},
    identify,
    multiaddr::Protocol,
    ping,
    swarm::{self, ConnectionId, DialError, ListenError, SwarmEvent, dial_opts::DialOpts},
};
use restante_net::LogThrottle;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at},
};
use tracing::{debug, info, trace, warn};

use super::{
    Command, ConnectError, Direction, Node, NodeConfig, NodeError, NodeEvent, NodeMetrics, PublishError,
    address::AddressGroup,
    behaviour::{Behaviour, BehaviourEvent},
    executor::ConnectionExecutor,
    liveness::Liveness,
    metrics::KindLabel,
    peer_of, relay,
    static_peers::StaticPeers,
    streams::{self, Origin},
    transport, with_peer_id,
};
use crate::{
    intake::{Intake, Verdict},
    rates::Limiter,
    service::Service,
};

/// How often static peers and meshes are checked.
const TICK: Duration = Duration::from_secs(1);
/// How long starting to listen on an address may take.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long queued messages may still be sent when the node is closed.
const FLUSH_TIME: Duration = Duration::from_millis(250);
/// The error for an address without a peer id.
const NAMES_NO_PEER: &str = "it names no peer: expected /ip4/.../tcp/.../p2p/<peer id>";
/// The most that is stored of a peer's announcements.
const PROTOCOLS_PER_PEER_MAX: usize = 64;
const AGENT_CHARS_MAX: usize = 128;
const PROTOCOL_CHARS_MAX: usize = 256;
/// The most events of one connection that wait for the swarm's task: enough for a burst of messages.
const EVENTS_PER_CONNECTION: usize = 64;

/// A node that has not started yet.
pub struct Unstarted {
    node: Node,
    config: NodeConfig,
    metrics: NodeMetrics,
    commands: mpsc::Receiver<Command>,
}

impl std::fmt::Debug for Unstarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unstarted").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Unstarted {
    pub(super) fn new(
        node: Node,
        config: NodeConfig,
        metrics: NodeMetrics,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        Self { node, config, metrics, commands }
    }

    /// Listens on the addresses and answers requests by these services. Relayed messages go to `intake`.
    ///
    /// # Errors
    /// When an address can't be listened on.
    pub async fn start(
        self,
        services: Vec<Arc<dyn Service>>,
        limiter: Limiter,
        intake: Intake,
    ) -> Result<(), NodeError> {
        let Self { node, config, metrics, commands } = self;
        let requests =
            Arc::new(streams::RequestHandler::new(services, limiter, config.limits.requests_max.get()));
        let streams = streams::Behaviour::new(node.shared.streams.clone(), requests);
        let known = relay::KnownTopics::default();
        let behaviour = Behaviour::new(&config, streams, known.clone())?;
        let transport = transport::build(&config.key, config.certificates.clone(), &config.limits, &metrics)?;
        let mut swarm = Swarm::new(transport, behaviour, node.peer_id(), swarm_config(&config));
        let early = listen(&mut swarm, &node, &config.listen).await?;
        for address in &config.external_addresses {
            swarm.add_external_address(address.clone());
        }
        let mut task = Task {
            node,
            swarm,
            intake,
            metrics,
            known,
            static_peers: StaticPeers::new(&config.static_peers),
            dials: HashMap::new(),
            liveness: Liveness::default(),
            reserved: config.reserved_peers.iter().copied().collect(),
            connections_max: config.limits.connections_max.get() as usize,
            connections_per_address_max: config.limits.connections_per_address_max.get() as usize,
            eviction_log: LogThrottle::default(),
            own_id_log: LogThrottle::default(),
            idle_timeout: config.limits.idle_timeout,
        };
        for topic in config.relay.iter().flatten() {
            task.subscribe(topic);
        }
        for event in early {
            task.on_event(event);
        }
        tokio::spawn(task.run(commands));
        Ok(())
    }
}

fn swarm_config(config: &NodeConfig) -> swarm::Config {
    swarm::Config::with_executor(ConnectionExecutor::new())
        .with_idle_connection_timeout(config.limits.idle_timeout)
        .with_per_connection_event_buffer_size(EVENTS_PER_CONNECTION)
        .with_max_negotiating_inbound_streams(config.limits.streams_per_connection_max.get())
        // A request is sent together with the protocol's name, without waiting for the negotiation.
        .with_substream_upgrade_protocol_override(Version::V1Lazy)
}

/// Starts to listen, and waits until every address is known. Returns other events that happened meanwhile: peers may connect
/// at once.
async fn listen(
    swarm: &mut Swarm<Behaviour>,
    node: &Node,
    addresses: &[Multiaddr],
) -> Result<Vec<SwarmEvent<BehaviourEvent>>, NodeError> {
    let mut waiting = HashMap::new();
    let mut listeners = Vec::new();
    for address in addresses {
        let failed = |reason: String| NodeError::Listen { address: address.clone(), reason };
        check_is_free(address).map_err(|error| failed(error.to_string()))?;
        let listener = swarm.listen_on(address.clone()).map_err(|error| failed(reason_of(&error)))?;
        waiting.insert(listener, address.clone());
        listeners.push(listener);
    }
    let mut others = Vec::new();
    let mut bound = Vec::new();
    let until = Instant::now() + LISTEN_TIMEOUT;
    while let Some(address) = waiting.values().next().cloned() {
        let late = |_| NodeError::Listen { address, reason: "the system did not confirm it".to_owned() };
        match timeout_at(until, swarm.select_next_some()).await.map_err(late)? {
            SwarmEvent::NewListenAddr { listener_id, address } => {
                bound.push((listener_id, address));
                waiting.remove(&listener_id);
            }
            SwarmEvent::ListenerClosed { listener_id, reason: Err(error), .. }
                if waiting.contains_key(&listener_id) =>
            {
                let address = waiting.remove(&listener_id).unwrap_or_else(Multiaddr::empty);
                return Err(NodeError::Listen { address, reason: error.to_string() });
            }
            other => others.push(other),
        }
    }
    // In the order of the settings: users take the first.
    bound.sort_by_key(|(listener, _)| listeners.iter().position(|known| known == listener));
    for (_, address) in bound {
        node.note_listening(address);
    }
    Ok(others)
}

/// Refuses a port on which another process listens: libp2p would share it, and peers would reach one process or the other.
fn check_is_free(address: &Multiaddr) -> std::io::Result<()> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next() {
        Some(Protocol::Ip4(ip)) => ip.into(),
        Some(Protocol::Ip6(ip)) => ip.into(),
        _ => return Ok(()),
    };
    match parts.next() {
        Some(Protocol::Tcp(port)) if port != 0 => TcpListener::bind((ip, port)).map(drop),
        _ => Ok(()),
    }
}

/// The innermost cause: the outer errors only say that listening failed.
fn reason_of(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// A dial for which callers wait.
struct Dial {
    replies: Vec<oneshot::Sender<Result<PeerId, ConnectError>>>,
}

struct Task {
    node: Node,
    swarm: Swarm<Behaviour>,
    intake: Intake,
    metrics: NodeMetrics,
    known: relay::KnownTopics,
    static_peers: StaticPeers,
    dials: HashMap<ConnectionId, Dial>,
    liveness: Liveness,
    /// Peers whose connections are never evicted, besides the static ones.
    reserved: HashSet<PeerId>,
    connections_max: usize,
    connections_per_address_max: usize,
    eviction_log: LogThrottle,
    own_id_log: LogThrottle,
    idle_timeout: Duration,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                command = commands.recv() => match command {
                    Some(Command::Close { reply }) => {
                        self.flush().await;
                        let _ = reply.send(());
                        return;
                    }
                    Some(command) => self.on_command(command),
                    None => return, // every handle was dropped
                },
                _ = tick.tick() => self.on_tick(),
            }
        }
    }

    /// Runs the swarm for a moment, to send what is queued for peers.
    async fn flush(&mut self) {
        let until = Instant::now() + FLUSH_TIME;
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_event(event),
                () = sleep_until(until) => return,
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Publish { topic, wire, reply } => {
                let _ = reply.send(self.publish(&topic, wire));
            }
            Command::Subscribe { topic, reply } => {
                let _ = reply.send(self.subscribe(&topic));
            }
            Command::Unsubscribe { topic, reply } => {
                let _ = reply.send(self.unsubscribe(&topic));
            }
            Command::Connect { address, reply } => self.connect(address, reply),
            Command::Disconnect { peer } => {
                let _ = self.swarm.disconnect_peer_id(peer); // not connected: nothing to do
            }
            Command::Close { .. } => {}
        }
    }

    fn publish(&mut self, topic: &str, wire: Bytes) -> Result<usize, PublishError> {
        let relay = self.swarm.behaviour_mut().relay.as_mut().ok_or(PublishError::NoRelay)?;
        let followers = self.node.shared.peers.followers(topic);
        let topic = relay::topic(topic);
        self.known.published(&topic);
        let recipients = relay::recipients(relay, &topic, followers);
        relay.publish(topic, wire).map_err(|error| match error {
            gossipsub::PublishError::NoPeersSubscribedToTopic => PublishError::NoPeers,
            gossipsub::PublishError::Duplicate => PublishError::Duplicate,
            gossipsub::PublishError::MessageTooLarge => PublishError::TooLarge,
            _ => PublishError::Busy,
        })?;
        self.metrics.relay_published.inc();
        Ok(recipients)
    }

    fn subscribe(&mut self, name: &str) -> bool {
        let Some(relay) = self.swarm.behaviour_mut().relay.as_mut() else { return false };
        let topic = relay::topic(name);
        let is_new = relay.subscribe(&topic).unwrap_or(false);
        if is_new {
            self.known.followed(&topic);
            if let Err(error) = relay.set_topic_params(topic, relay::topic_score_params()) {
                debug!(error, "peers are not scored for a pubsub topic");
            }
            self.node.shared.topics.write().push(name.to_owned());
        }
        is_new
    }

    fn unsubscribe(&mut self, name: &str) -> bool {
        let Some(relay) = self.swarm.behaviour_mut().relay.as_mut() else { return false };
        let topic = relay::topic(name);
        let was_there = relay.unsubscribe(&topic);
        self.known.unfollowed(&topic);
        self.node.shared.topics.write().retain(|topic| topic != name);
        was_there
    }

    fn connect(&mut self, address: Multiaddr, reply: oneshot::Sender<Result<PeerId, ConnectError>>) {
        let Some(peer) = peer_of(&address) else {
            let _ = reply.send(Err(ConnectError::Address(NAMES_NO_PEER.to_owned())));
            return;
        };
        if self.swarm.is_connected(&peer) {
            let _ = reply.send(Ok(peer));
            return;
        }
        match self.dial(peer, address) {
            Ok(id) => self.dials.entry(id).or_insert(Dial { replies: Vec::new() }).replies.push(reply),
            Err(error) => {
                let _ = reply.send(Err(connect_error(&error)));
            }
        }
    }

    fn dial(&mut self, peer: PeerId, address: Multiaddr) -> Result<ConnectionId, DialError> {
        let always = swarm::dial_opts::PeerCondition::Always; // another dial may use an outdated address
        let options = DialOpts::peer_id(peer).addresses(vec![address]).condition(always).build();
        let id = options.connection_id();
        self.swarm.dial(options).map(|()| id)
    }

    fn on_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Relay(event)) => self.on_relay(event),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(event)) => self.on_identify(event),
            SwarmEvent::Behaviour(BehaviourEvent::Ping(event)) => self.on_ping(&event),
            SwarmEvent::ConnectionEstablished {
                peer_id, connection_id, endpoint, num_established, ..
            } => {
                self.on_connected(peer_id, connection_id, &endpoint, num_established.get());
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                trace!(peer = %peer_id, ?cause, "a connection was closed");
                self.liveness.forget(peer_id, connection_id);
                self.on_closed(peer_id, num_established);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, peer_id, error } => {
                self.on_dial_failed(connection_id, peer_id, &error);
            }
            SwarmEvent::IncomingConnectionError { error, .. } => {
                self.metrics.refused_connections.inc();
                if matches!(error, ListenError::LocalPeerId { .. }) {
                    self.on_own_peer_id();
                }
                debug!(%error, "a peer could not connect");
            }
            SwarmEvent::NewListenAddr { address, .. } => self.node.note_listening(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => self.node.forget_listening(&address),
            SwarmEvent::ListenerError { error, .. } => debug!(%error, "a listener failed"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                warn!(
                    ?addresses,
                    ?reason,
                    "a listener has closed: peers can no longer connect to these addresses"
                );
            }
            _ => {}
        }
    }

    fn on_relay(&mut self, event: gossipsub::Event) {
        let peers = &self.node.shared.peers;
        match event {
            gossipsub::Event::Message { propagation_source, message_id, message } => {
                self.node.shared.streams.touch(propagation_source);
                let topic = message.topic.as_str();
                let verdict = self.intake.take_relayed(topic, message.data.into());
                let acceptance = match verdict {
                    Verdict::Accept => MessageAcceptance::Accept,
                    Verdict::Ignore => MessageAcceptance::Ignore,
                    Verdict::Reject => MessageAcceptance::Reject,
                };
                if let Some(relay) = self.swarm.behaviour_mut().relay.as_mut() {
                    relay.report_message_validation_result(&message_id, &propagation_source, acceptance);
                }
            }
            gossipsub::Event::Subscribed { peer_id, topic } => {
                peers.change(peer_id, |info| _ = info.topics.insert(topic.into_string()));
            }
            gossipsub::Event::Unsubscribed { peer_id, topic } => {
                peers.change(peer_id, |info| _ = info.topics.remove(topic.as_str()));
            }
            gossipsub::Event::SlowPeer { peer_id, failed_messages } => {
                let count = |kind, messages: usize| {
                    self.metrics.relay_slow.get_or_create(&KindLabel { kind }).inc_by(messages as u64);
                };
                count("control", failed_messages.priority);
                count("data", failed_messages.non_priority);
                debug!(peer = %peer_id, ?failed_messages, "a peer is too slow for relay");
                let is_stuck =
                    failed_messages.non_priority > 0 && self.liveness.is_stuck(peer_id, Instant::now());
                if is_stuck && self.swarm.disconnect_peer_id(peer_id).is_ok() {
                    debug!(peer = %peer_id, "a peer that accepts no messages is disconnected");
                }
            }
            gossipsub::Event::GossipsubNotSupported { .. } => {}
        }
    }

    fn on_identify(&mut self, event: identify::Event) {
        let identify::Event::Received { peer_id, info, .. } = event else { return };
        let short = |protocol: &&libp2p::StreamProtocol| protocol.as_ref().len() <= PROTOCOL_CHARS_MAX;
        let protocols = info.protocols.iter().filter(short).take(PROTOCOLS_PER_PEER_MAX);
        let protocols: Vec<String> = protocols.map(ToString::to_string).collect();
        let agent: String = info.agent_version.chars().take(AGENT_CHARS_MAX).collect();
        self.node.shared.peers.change(peer_id, |peer| {
            peer.protocols.clone_from(&protocols);
            peer.agent = agent;
        });
        self.notify(NodeEvent::Identified { peer: peer_id, protocols });
    }

    fn on_ping(&mut self, event: &ping::Event) {
        let latency_ms = event.result.as_ref().ok().and_then(|took| u64::try_from(took.as_millis()).ok());
        self.node.shared.peers.change(event.peer, |peer| peer.latency_ms = latency_ms);
        let is_late = matches!(event.result, Err(ping::Failure::Timeout));
        if self.liveness.is_dead(event.connection, is_late) && self.swarm.close_connection(event.connection) {
            debug!(peer = %event.peer, "a connection is dead: pings are not answered");
        }
    }

    fn on_connected(&mut self, peer: PeerId, id: ConnectionId, endpoint: &ConnectedPoint, count: u32) {
        if let Some(dial) = self.dials.remove(&id) {
            for reply in dial.replies {
                let _ = reply.send(Ok(peer));
            }
        }
        self.static_peers.connected(peer, Instant::now());
        let direction = if endpoint.is_dialer() { Direction::Outbound } else { Direction::Inbound };
        if count == 1 {
            let address = with_peer_id(endpoint.get_remote_address().clone(), peer);
            self.node.shared.peers.insert(peer, address.clone(), direction, self.static_peers.contains(peer));
            self.notify(NodeEvent::Connected { peer, address });
        }
        let origin = match direction {
            Direction::Outbound => Origin::Dialled,
            Direction::Inbound => Origin::Incoming(AddressGroup::of(endpoint.get_remote_address())),
        };
        self.enforce_limits(id, origin);
        self.update_connection_metrics();
    }

    /// Closes the connections that have been idle for longest while a limit is exceeded. Connections of static and reserved
    /// peers are never closed, and outgoing ones not for incoming ones.
    fn enforce_limits(&mut self, newest: ConnectionId, origin: Origin) {
        let is_incoming = origin != Origin::Dialled;
        while is_incoming && self.node.shared.streams.count_of(origin) > self.connections_per_address_max {
            if !self.evict(newest, "address", |other| other == origin) {
                break;
            }
        }
        while self.node.shared.streams.len() > self.connections_max {
            if !self.evict(newest, "all", |other| !is_incoming || other != Origin::Dialled) {
                break;
            }
        }
    }

    /// Closes the connection that has been idle for longest among those for which `may_close` holds; returns whether there was
    /// one.
    fn evict(
        &mut self,
        newest: ConnectionId,
        limit: &'static str,
        may_close: impl Fn(Origin) -> bool,
    ) -> bool {
        let is_exempt = |peer| self.static_peers.contains(peer) || self.reserved.contains(&peer);
        let may_close = |peer, origin| may_close(origin) && !is_exempt(peer);
        let Some(idle) = self.node.shared.streams.take_most_idle(may_close, newest) else { return false };
        if self.swarm.close_connection(idle) {
            self.metrics.evicted_connection(limit);
            if let Some(connections) = self.eviction_log.count() {
                let advice = "see waku.limits.connections_max and waku.limits.connections_per_address_max";
                info!(connections, limit, advice, "idle connections were closed for new ones");
            }
        }
        true
    }

    /// A peer has this node's own peer id.
    fn on_own_peer_id(&self) {
        self.metrics.own_peer_id.inc();
        if let Some(connections) = self.own_id_log.count() {
            let advice = "a server that was restored or copied needs a key of its own: stop it, move its node.key away and \
                          start it again";
            warn!(connections, peer = %self.node.peer_id(), advice, "another server has this node's key, or this node dials itself");
        }
    }

    fn on_closed(&mut self, peer: PeerId, left: u32) {
        self.update_connection_metrics();
        if left > 0 {
            return;
        }
        self.node.shared.peers.remove(peer);
        if self.static_peers.gone(peer, Instant::now()) {
            info!(%peer, "the connection to a static peer has ended: dialling it again");
        }
        self.notify(NodeEvent::Gone { peer });
    }

    fn on_dial_failed(&mut self, id: ConnectionId, peer: Option<PeerId>, error: &DialError) {
        if let Some(dial) = self.dials.remove(&id) {
            for reply in dial.replies {
                let _ = reply.send(Err(connect_error(error)));
            }
        }
        if matches!(error, DialError::LocalPeerId { .. }) {
            self.on_own_peer_id();
        }
        let Some(peer) = peer else { return };
        if self.swarm.is_connected(&peer) {
            return;
        }
        if self.static_peers.failed(peer, Instant::now()) {
            warn!(%peer, error = %connect_error(error), "a static peer can't be reached: dialling it again until it answers");
        }
    }

    fn on_tick(&mut self) {
        for (peer, address) in self.static_peers.due(Instant::now()) {
            if self.swarm.is_connected(&peer) {
                self.static_peers.connected(peer, Instant::now());
            } else if let Err(error) = self.dial(peer, address) {
                debug!(%peer, %error, "a static peer can't be dialled");
                self.static_peers.failed(peer, Instant::now());
            }
        }
        self.close_idle();
        self.update_meshes();
    }

    /// Closes idle connections of peers that don't follow a topic: relay's streams keep those open.
    fn close_idle(&mut self) {
        let peers = &self.node.shared.peers;
        let may_close = |peer| !self.static_peers.contains(peer) && !peers.is_follower(peer);
        for id in self.node.shared.streams.take_idle(self.idle_timeout, may_close) {
            self.swarm.close_connection(id);
        }
    }

    /// Updates the table of peers and the metric with the peers in each mesh.
    fn update_meshes(&mut self) {
        let Some(relay) = self.swarm.behaviour().relay.as_ref() else { return };
        let mut meshes: HashMap<PeerId, std::collections::BTreeSet<String>> = HashMap::new();
        for topic in relay.topics() {
            for peer in relay.mesh_peers(topic) {
                meshes.entry(*peer).or_default().insert(topic.to_string());
            }
        }
        let all: usize = meshes.values().map(std::collections::BTreeSet::len).sum();
        self.metrics.mesh_peers.set(all as i64);
        self.node.shared.peers.set_meshes(meshes);
    }

    fn update_connection_metrics(&self) {
        let info = self.swarm.network_info();
        self.metrics.connections.set(i64::from(info.connection_counters().num_established()));
        self.metrics.peers.set(info.num_peers() as i64);
    }

    fn notify(&self, event: NodeEvent) {
        let _ = self.node.shared.events.send(event); // there may be no listener
    }
}

fn connect_error(error: &DialError) -> ConnectError {
    match error {
        DialError::Transport(failures) => {
            let reasons: Vec<String> = failures.iter().map(|(_, error)| reason_of(error)).collect();
            ConnectError::Failed(reasons.join("; "))
        }
        other => ConnectError::Failed(other.to_string()),
    }
}
