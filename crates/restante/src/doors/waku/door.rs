//! Starts and stops the Waku door.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener as BlockingListener},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context;
use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_archive::{Metrics, Opened};
use restante_backup::{Layout, Store};
use restante_http::OperatorGuard;
use restante_net::{NetMetrics, tls::Certificates};
use restante_operate::{ArchiveHealth, Listener, RetentionState};
use restante_waku::{
    Waku, WakuConfig, WakuMetrics,
    live::Listener as MessageListener,
    node::NodeConfig,
    rest::{MessageCache, Rest, RestConfig, RestMetrics, WakuDoor},
};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{
    WakuSpec,
    archives::{self, Access},
    nwaku, retention,
    size::{self, SizeMetrics},
};
use crate::{
    certificates,
    commands::serve::port_taken,
    config::{Config, Effective},
    doors::{DoorSpec, HeldStore, OpenDoor, Report, Shared, Started},
    exit::UsageError,
    signals::Stop,
    telemetry::VERSION,
};

const EXAMPLES: &str = "  \
  restante publish --pubsub-topic /waku/2/rs/1/0 --content-topic /toy/1/chat/proto --payload hello
  restante query --content-topic /toy/1/chat/proto --start -1h
";

const SERVE_EXAMPLES: &str = "  \
  restante serve --data /var/lib/restante --retention 'time:2592000;size:50GB'
  restante serve --cluster-id 16 --shard 32 --shard 64 --listen-address 0.0.0.0 --websocket-support
  restante serve --cluster-id 1 --relay=false --storenode /ip4/198.51.100.9/tcp/60000/p2p/16U...
";

/// `restante setup` creates a server for mail only.
const SETTINGS: &str = "
# This server has no Waku node; true makes it one.
[waku.node]
enabled = false
";

#[async_trait]
impl DoorSpec for WakuSpec {
    fn lines(&self, text: &str) -> &'static str {
        match text {
            "help" => EXAMPLES,
            "serve" => SERVE_EXAMPLES,
            "restante.toml" => SETTINGS,
            _ => "",
        }
    }

    fn advise(&self, error: clap::Error) -> clap::Error {
        nwaku::advise(error)
    }

    fn prepare(
        &self,
        effective: &Effective,
        metrics: &NetMetrics,
    ) -> anyhow::Result<Option<Arc<Certificates>>> {
        let config = &effective.config;
        if effective.has_secret_flag() {
            warn!(
                "everybody on this machine can read the node's key on the command line: put it into a file"
            );
        }
        let node = &config.waku.node;
        let wrong =
            |what| UsageError(format!("{}: waku.node.key: {what}", effective.origin("waku.node.key")));
        node.key.check(&config.server.data_dir).map_err(wrong)?;
        let files = node.certificate().filter(|_| node.enabled);
        let load = |files| certificates::load(effective, "waku.node.certificate_file", &[files], metrics);
        Ok(files.map(load).transpose()?)
    }

    async fn open(
        &self,
        shared: &Shared,
        certificates: Option<Arc<Certificates>>,
    ) -> anyhow::Result<Box<dyn OpenDoor>> {
        let config = &shared.effective.config;
        let archive_metrics = Metrics::default();
        let opened = archives::open(config, Access::Serve, archive_metrics.clone()).await?;
        let stop_timeout = shared.bounds.limits.stop_timeout;
        let rest = RestConfig {
            stop_timeout_ms: u64::try_from(stop_timeout.as_millis()).unwrap_or(u64::MAX),
            ..config.rest.door.clone()
        };
        let retention = retention::state(&config.archive);
        let timeout = Duration::from_millis(rest.request_timeout_ms.get());
        let health = ArchiveHealth::new(opened.archive.clone(), opened.upkeep.clone(), timeout);
        let rest_metrics = RestMetrics::default();
        Ok(Box::new(OpenWaku {
            shared: shared.clone(),
            certificates,
            opened,
            health: Arc::new(health.with_retention(retention.clone())),
            retention,
            cache: Arc::new(MessageCache::new(&rest, &rest_metrics)),
            rest,
            archive_metrics,
            size_metrics: SizeMetrics::default(),
            waku_metrics: WakuMetrics::default(),
            rest_metrics,
            started: OnceLock::new(),
        }))
    }

    fn lay_out(&self, config: &Config, layout: Layout) -> Layout {
        let key = config.waku.node.key.file(layout.data());
        let state = config.waku.sync_file(layout.data());
        layout.with_node_key(key.as_deref()).with_file(&state).with_store(archives::store(config, None))
    }

    async fn hold(&self, config: &Config, held: &mut Vec<Box<dyn HeldStore>>) -> anyhow::Result<()> {
        if archives::is_there(config)? {
            held.push(Box::new(archives::open(config, Access::Serve, Metrics::default()).await?));
        }
        Ok(())
    }
}

#[async_trait]
impl HeldStore for Opened {
    fn store(&self, config: &Config) -> Store {
        archives::store(config, Some(self.upkeep.clone()))
    }

    async fn close(&self) -> anyhow::Result<()> {
        self.upkeep.close().await.context("can't close the archive")
    }
}

/// The door with its archive.
struct OpenWaku {
    shared: Shared,
    /// The certificates of the node's secure WebSockets.
    certificates: Option<Arc<Certificates>>,
    opened: Opened,
    health: Arc<ArchiveHealth>,
    retention: RetentionState,
    rest: RestConfig,
    /// Messages that wait for REST clients.
    cache: Arc<MessageCache>,
    archive_metrics: Metrics,
    size_metrics: SizeMetrics,
    waku_metrics: WakuMetrics,
    rest_metrics: RestMetrics,
    started: OnceLock<Arc<Rest>>,
}

#[async_trait]
impl OpenDoor for OpenWaku {
    fn register(&self, registry: &mut Registry) {
        let engine = self.config().archive_url().engine();
        self.archive_metrics.register(registry, engine);
        self.size_metrics.register(registry, engine);
    }

    fn report(&self) -> Report {
        Report { archive: Some(self.health.clone()), ..Report::default() }
    }

    fn stores(&self) -> Vec<Store> {
        vec![self.opened.store(self.config())]
    }

    fn spawn_upkeep(&mut self, stop: &Stop) -> Vec<JoinHandle<()>> {
        let upkeep = || self.opened.upkeep.clone();
        let schedule = (&self.config().archive).into();
        vec![
            tokio::spawn(retention::run(upkeep(), schedule, self.retention.clone(), stop.clone())),
            tokio::spawn(size::run(upkeep(), self.size_metrics.clone(), stop.clone())),
        ]
    }

    async fn start(&self, addresses: &[(Listener, SocketAddr)]) -> anyhow::Result<Vec<Started>> {
        let waku = self.start_waku().await?;
        let rest = Arc::new(self.rest(addresses, waku));
        self.started.get_or_init(|| rest.clone());
        let offer = rest.offer();
        Ok(vec![Started { door: Arc::new(WakuDoor::new(rest)), offer }])
    }

    fn announce(
        &self,
        addresses: &[(Listener, SocketAddr)],
        is_one: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Some(rest) = self.started.get() else { return Ok(()) };
        announce_archive(self.config());
        for (_, address) in addresses.iter().filter(|(kind, _)| *kind == Listener::Rest) {
            let url = self.config().url(Listener::Rest, *address);
            self.announce_rest(rest, *address, &url, is_one);
            writeln!(out, "listening on {url}")?;
        }
        let Some(node) = &rest.waku.node else { return Ok(()) };
        for address in node.addresses() {
            if !is_one {
                info!(%address, "Waku node");
            }
            writeln!(out, "listening on {address}")?;
        }
        if node.is_relay() && node.topics().is_empty() {
            let advice = "name the cluster with --cluster-id, or subscribe to pubsub topics by REST";
            warn!(advice, "no cluster is named, so nothing is relayed yet");
        }
        Ok(())
    }

    /// Lets the archive finish pending work.
    async fn close(&self, limit: Duration) -> anyhow::Result<()> {
        let closed = tokio::time::timeout(limit, self.opened.upkeep.close()).await;
        let closed =
            closed.with_context(|| format!("the archive was not closed within {} s", limit.as_secs_f64()))?;
        closed.context("can't close the archive")
    }
}

impl OpenWaku {
    fn config(&self) -> &Config {
        &self.shared.effective.config
    }

    async fn start_waku(&self) -> anyhow::Result<Waku> {
        let config = self.config();
        let settings = &config.waku;
        let config = WakuConfig {
            rules: settings.rules.clone(),
            node: settings.node.enabled.then(|| self.node_config()).transpose()?,
            handover: settings.handover,
            services: settings.protocols.services,
            rates: settings.rates.clone(),
            filter: settings.filter,
            light_push: settings.lightpush,
            peer_exchange: settings.peer_exchange.clone(),
            sync: settings.sync(&config.server.data_dir, config.archive.retention),
        };
        let archive = self.opened.archive.clone();
        let listeners: Vec<Arc<dyn MessageListener>> = vec![self.cache.clone()];
        let (clock, live) = (self.shared.clock.clone(), self.shared.live.clone());
        let started = Waku::start(config, archive, clock, live, listeners, &self.waku_metrics).await;
        started.context("can't start the Waku node")
    }

    fn node_config(&self) -> anyhow::Result<NodeConfig> {
        let config = self.config();
        check_ports(config)?;
        let (waku, node) = (&config.waku, &config.waku.node);
        let key = node.key.load(&config.server.data_dir).map_err(|error| UsageError(error.to_string()))?;
        Ok(NodeConfig {
            key,
            listen: node.listen(),
            certificates: self.certificates.clone(),
            external_addresses: node.external_addresses.iter().map(Into::into).collect(),
            static_peers: node.static_peers.clone(),
            reserved_peers: Vec::new(),
            relay: waku.protocols.relay.then(|| waku.relay_topics()),
            max_message_bytes: waku.rules.max_message_bytes.get(),
            limits: waku.limits,
            agent: format!("restante/{VERSION}"),
        })
    }

    fn rest(&self, addresses: &[(Listener, SocketAddr)], waku: Waku) -> Rest {
        let config = self.config();
        let own = addresses.iter().find(|(kind, _)| *kind == Listener::Rest).map(|(_, address)| *address);
        let address = own.unwrap_or_else(|| SocketAddr::new(config.rest.address, config.rest.port));
        Rest {
            waku,
            cache: self.cache.clone(),
            archive: self.opened.archive.clone(),
            health: self.health.clone(),
            clock: self.shared.clock.clone(),
            config: self.rest.clone(),
            operators: Arc::new(OperatorGuard::new(self.shared.token.clone(), address)),
            metrics: self.rest_metrics.clone(),
            waku_metrics: self.waku_metrics.clone(),
            memory: self.shared.memory.clone(),
            permits: self.shared.permits.clone(),
            version: VERSION,
            listen_addresses: own.iter().map(|address| config.url(Listener::Rest, *address)).collect(),
        }
    }

    fn announce_rest(&self, rest: &Rest, address: SocketAddr, url: &str, is_one: bool) {
        match (rest.offer().console, is_one) {
            (true, false) => info!(url = %format!("{url}/console"), "REST and console"),
            (true, true) => info!(path = "/console", "console"),
            (false, false) => info!(url, "REST"),
            (false, true) => {}
        }
        if !address.ip().is_loopback() {
            warn!("everybody who reaches the REST address can publish and query");
            if self.rest.admin && self.shared.token.is_none() {
                warn!("and do what is for operators: set operate.token_file, or leave rest.admin off");
            }
        }
    }
}

/// libp2p shares a port with other programs of the same user that do the same, such as a second server. So each port is first bound
/// briefly without sharing.
fn check_ports(config: &Config) -> anyhow::Result<()> {
    for (address, flag) in config.waku.node.ports() {
        BlockingListener::bind(address).with_context(|| port_taken(address, flag))?;
    }
    Ok(())
}

fn announce_archive(config: &Config) {
    info!(archive = %config.archive_url(), "archive");
    if let Some(spool) = config.spool() {
        info!(folder = %spool.folder.display(), spool.bytes_max, "messages wait in the spool while the archive is away");
    }
    if let Some(folder) = config.spool_left_behind() {
        let advice = "set archive.spool.bytes_max, so that they are stored";
        warn!(folder = %folder.display(), advice, "messages are left in a spool that is switched off");
    }
    if let Some(tandem) = config.tandem() {
        info!(second = %tandem.url, "a second archive follows");
    }
}
