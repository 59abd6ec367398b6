//! `restante serve`: opens what is kept, starts the doors, and ends in order.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener as BlockingListener},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use prometheus_client::registry::Registry;
use restante_archive::{Metrics, Opened};
use restante_core::Clock;
use restante_directory::{Directory, DirectoryMetrics};
use restante_http::{HttpMetrics, OperatorGuard, Route, Token};
use restante_net::NetMetrics;
use restante_sessions::{Live, SessionMetrics};
use restante_waku::{
    Waku, WakuConfig, WakuMetrics,
    live::Listener,
    node::NodeConfig,
    rest::{self, MessageCache, Rest, RestConfig, RestMetrics, RetentionState, SetLogLevel},
};
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use crate::{
    archives::{self, Access},
    backup::{self, BackupMetrics, Removing, Sources, Turn},
    blobs,
    commands::{
        self,
        connected::{self, ConnectedMetrics},
        kept::{self, Kept, KeptMetrics},
        retention,
        size::{self, SizeMetrics},
        tidying::{self, TidyMetrics, Tidying},
    },
    config::{Config, Effective, ServeFlags},
    exit::UsageError,
    live, logging, open_files, records, secrets,
    signals::Stop,
    telemetry::{self, VERSION},
};

/// The parts of the grace time: for the requests that were begun, for the messages that relay has brought (and for a backup to
/// remove what it has copied), and the rest for all that is kept and the table of sessions, side by side.
const REQUESTS_SHARE: f64 = 0.5;
const RELAYED_SHARE: f64 = 0.3;
const KEPT_SHARE: f64 = 0.2;

pub(crate) async fn run(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    let effective = flags.load()?;
    let config = &effective.config;
    let set_log_level = logging::start(config);
    match &effective.file {
        Some(file) => info!(file = %file.display(), "settings"),
        None => info!("no file of settings was read"),
    }
    if effective.has_secret_flag() {
        warn!("everybody on this machine can read the node's key on the command line: put it into a file");
    }
    backup::check_not_halfway(config)?;
    check_secrets(&effective)?;
    open_files::raise(config);
    let stop = Stop::on_signals()?;

    let metrics = RoleMetrics::default();
    let live = live::open(config, metrics.sessions.clone()).await?;
    let opened = archives::open(config, Access::Serve, metrics.archive.clone()).await?;
    let kept = open_kept(config, &metrics).await?;
    let settings = config.directory.clone();
    let opened_directory =
        Directory::open(&kept.records, settings, archives::clock(), metrics.directory.clone()).await;
    let (directory, follower) = opened_directory.context("can't open the directory")?;
    let following = tokio::spawn(follower.run());
    let doors = Doors::new(&effective, &opened, (&kept, directory), &live, metrics, set_log_level);
    let (schedule, noted) = ((&config.archive).into(), doors.retention.clone());
    let retention = tokio::spawn(retention::run(opened.upkeep.clone(), schedule, noted, stop.clone()));
    let size = tokio::spawn(size::run(opened.upkeep.clone(), doors.size_metrics.clone(), stop.clone()));
    let connected = tokio::spawn(connected::run(live.clone(), doors.connected_metrics.clone(), stop.clone()));
    let asking = tokio::spawn(kept::run(kept.clone(), doors.kept_metrics.clone(), stop.clone()));
    let tidying = Tidying::new(config, &kept, doors.tidy_metrics.clone());
    let tidying = tokio::spawn(tidying.run(stop.clone()));
    let served = serve(&doors, stop).await;
    let limit = grace(config).mul_f64(KEPT_SHARE);
    end([retention, size, connected, asking, tidying, following], limit).await;
    let (closed, kept_closed, ()) =
        tokio::join!(close(&opened, limit), kept.close(limit), live::close(&live, limit));
    served.and(closed).and(kept_closed)?;
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Ends tasks where they wait, so that none works on what is closed next. One that is busy is waited for, within limits.
async fn end<const COUNT: usize>(tasks: [JoinHandle<()>; COUNT], limit: Duration) {
    let deadline = Instant::now() + limit;
    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        let _ = timeout_at(deadline, task).await; // an error says that it was aborted, or is still busy
    }
}

/// Opens the records and the blobs.
async fn open_kept(config: &Config, metrics: &RoleMetrics) -> anyhow::Result<Kept> {
    let records = records::open(config, metrics.records.clone()).await?;
    let blobs = blobs::open(config, metrics.blobs.clone()).await?;
    info!(records = %config.records_url(), blobs = %config.blobs_url(), "records and blobs");
    let settled = match tidying::check_records_last(config) {
        Ok(()) => tidying::settle_owner(&*records.upkeep, &blobs).await,
        Err(error) => Err(error),
    };
    if let Err(error) = settled {
        warn!(%error, "blobs are not swept");
    }
    Ok(Kept { records, blobs, removing: Removing::default() })
}

/// Serves the archive until the server is told to stop, the doors have finished, and the archive has what relay brought.
async fn serve(doors: &Doors<'_>, stop: Stop) -> anyhow::Result<()> {
    let config = doors.config;
    let listener = listen_for_rest(config).await?;
    let waku = doors.start_waku().await?;
    let served = match listener {
        Some(listener) => doors.serve_rest(listener, &waku, stop).await,
        None => {
            announce(config, None, &waku);
            stop.told().await;
            doors.live.hub.stop();
            Ok(())
        }
    };
    let limit = grace(config).mul_f64(RELAYED_SHARE);
    let (closed, ()) = tokio::join!(tokio::time::timeout(limit, waku.close()), doors.backups.end(limit));
    served.and(closed.context("the archive did not take in time what relay had brought"))
}

fn grace(config: &Config) -> Duration {
    Duration::from_secs(config.server.grace_seconds.get())
}

/// Lets the archive finish what it has taken.
async fn close(opened: &Opened, limit: Duration) -> anyhow::Result<()> {
    let closed = tokio::time::timeout(limit, opened.upkeep.close()).await;
    let closed =
        closed.with_context(|| format!("the archive was not closed within {} s", limit.as_secs_f64()))?;
    closed.context("can't close the archive")
}

async fn listen_for_rest(config: &Config) -> anyhow::Result<Option<TcpListener>> {
    if !config.rest.enabled {
        return Ok(None);
    }
    let address = SocketAddr::new(config.rest.address, config.rest.port);
    let listener = TcpListener::bind(address).await.with_context(|| port_taken(address, "--rest-port"))?;
    Ok(Some(listener))
}

/// libp2p shares a port with other programs of the same user that share it too, a second server among them. So each port is
/// held for a moment first, which no other program can share.
fn check_ports(config: &Config) -> anyhow::Result<()> {
    for (address, flag) in config.waku.node.ports() {
        BlockingListener::bind(address).with_context(|| port_taken(address, flag))?;
    }
    Ok(())
}

fn port_taken(address: SocketAddr, flag: &str) -> String {
    format!("can't listen on {address}: stop the program that holds the port, or choose another with {flag}")
}

/// What those count that keep something.
#[derive(Default)]
struct RoleMetrics {
    archive: Metrics,
    records: restante_records::Metrics,
    blobs: restante_blobs::Metrics,
    directory: DirectoryMetrics,
    sessions: SessionMetrics,
}

/// What the doors are made of.
struct Doors<'a> {
    effective: &'a Effective,
    config: &'a Config,
    opened: &'a Opened,
    kept: &'a Kept,
    directory: Directory,
    live: &'a Live,
    clock: Arc<dyn Clock>,
    rest: RestConfig,
    /// Where messages wait for REST clients.
    cache: Arc<MessageCache>,
    retention: RetentionState,
    set_log_level: SetLogLevel,
    backups: Turn,
    backup_metrics: BackupMetrics,
    role_metrics: RoleMetrics,
    connected_metrics: ConnectedMetrics,
    kept_metrics: KeptMetrics,
    size_metrics: SizeMetrics,
    tidy_metrics: TidyMetrics,
    waku_metrics: WakuMetrics,
    rest_metrics: RestMetrics,
    net_metrics: NetMetrics,
    http_metrics: HttpMetrics,
}

impl<'a> Doors<'a> {
    fn new(
        effective: &'a Effective,
        opened: &'a Opened,
        (kept, directory): (&'a Kept, Directory),
        live: &'a Live,
        role_metrics: RoleMetrics,
        set_log_level: SetLogLevel,
    ) -> Self {
        let config = &effective.config;
        let stop_timeout = grace(config).mul_f64(REQUESTS_SHARE);
        let rest = RestConfig {
            stop_timeout_ms: u64::try_from(stop_timeout.as_millis()).unwrap_or(u64::MAX),
            ..(&config.rest).into()
        };
        let rest_metrics = RestMetrics::default();
        let cache = Arc::new(MessageCache::new(&rest, &rest_metrics));
        Self {
            effective,
            config,
            opened,
            kept,
            directory,
            live,
            clock: archives::clock(),
            rest,
            cache,
            retention: retention::state(&config.archive),
            set_log_level,
            backups: Turn::default(),
            backup_metrics: BackupMetrics::of(&config.server.data_dir),
            role_metrics,
            connected_metrics: ConnectedMetrics::default(),
            kept_metrics: KeptMetrics::default(),
            size_metrics: SizeMetrics::default(),
            tidy_metrics: TidyMetrics::default(),
            waku_metrics: WakuMetrics::default(),
            rest_metrics,
            net_metrics: NetMetrics::default(),
            http_metrics: HttpMetrics::default(),
        }
    }

    async fn start_waku(&self) -> anyhow::Result<Waku> {
        let settings = &self.config.waku;
        let node = if settings.node.enabled { Some(node_config(self.config)?) } else { None };
        let config = WakuConfig {
            rules: settings.rules(),
            node,
            handover: (&settings.handover).into(),
            services: (&settings.protocols).into(),
            rates: (&settings.rates).into(),
            filter: (&settings.filter).into(),
            light_push: (&settings.lightpush).into(),
            peer_exchange: (&settings.peer_exchange).into(),
            sync: settings.sync.config(&self.config.server.data_dir, self.config.archive.retention),
        };
        let archive = self.opened.archive.clone();
        let listeners: Vec<Arc<dyn Listener>> = vec![self.cache.clone()];
        let started = Waku::start(
            config,
            archive,
            self.clock.clone(),
            self.live.clone(),
            listeners,
            &self.waku_metrics,
        )
        .await;
        started.context("can't start the Waku node")
    }

    /// Serves REST until the server is told to stop and the requests that were begun are finished.
    async fn serve_rest(&self, listener: TcpListener, waku: &Waku, stop: Stop) -> anyhow::Result<()> {
        let metrics = self.net_metrics.listener("rest");
        let listener = restante_net::Listener::new(listener, self.rest.limits(), metrics)
            .context("the REST listener failed")?;
        let address = listener.local_addr();
        let rest = Arc::new(self.open_rest(address, waku, &stop)?);
        announce(self.config, Some((address, rest.has_console())), waku);
        // Live streams would never end by themselves.
        let told = stop.clone().told();
        let stopped = async {
            told.await;
            self.live.hub.stop();
        };
        let router = rest::router(rest.clone());
        restante_http::serve(listener, router, rest.config.server_limits(), stopped).await;
        Ok(())
    }

    fn open_rest(&self, address: SocketAddr, waku: &Waku, stop: &Stop) -> anyhow::Result<Rest> {
        Ok(Rest {
            waku: waku.clone(),
            cache: self.cache.clone(),
            archive: self.opened.archive.clone(),
            upkeep: self.opened.upkeep.clone(),
            clock: self.clock.clone(),
            config: self.rest.clone(),
            operators: Arc::new(OperatorGuard::new(read_token(&self.config.rest.token_file)?, address)),
            operator_routes: self.operator_routes(stop),
            kept: self.kept.health(self.config),
            retention: self.retention.clone(),
            metrics: self.rest_metrics.clone(),
            http_metrics: self.http_metrics.of("rest"),
            metrics_text: telemetry::shown(self.registry()),
            version: VERSION,
            listen_addresses: vec![format!("http://{address}")],
            set_log_level: Some(self.set_log_level.clone()),
        })
    }

    /// What operators do over REST beside what the door has them do.
    fn operator_routes(&self, stop: &Stop) -> Vec<Route> {
        let (records, blobs) = (self.kept.records.upkeep.clone(), self.kept.blobs.upkeep.clone());
        let sources = Sources::new(
            self.effective,
            Some(records.clone()),
            Some(blobs),
            Some(self.opened.upkeep.clone()),
            self.kept.removing.clone(),
        )
        .counted_by(self.backup_metrics.clone());
        vec![
            backup::route(sources, stop.clone(), self.backups.clone()),
            commands::records::route(self.config.records_url().to_string(), records),
            commands::directory::route(
                self.directory.clone(),
                backup::real_path(&self.config.server.data_dir),
            ),
        ]
    }

    fn registry(&self) -> Registry {
        let mut registry = telemetry::registry(self.clock.now());
        let (config, roles) = (self.config, &self.role_metrics);
        let engine = config.archive_url().engine();
        roles.archive.register(&mut registry, engine);
        self.size_metrics.register(&mut registry, engine);
        roles.records.register(&mut registry);
        roles.blobs.register(&mut registry);
        roles.directory.register(&mut registry);
        let engines = (config.records_url().engine(), config.blobs_url().engine());
        self.kept_metrics.register(&mut registry, engines);
        self.tidy_metrics.register(&mut registry);
        self.backup_metrics.register(&mut registry);
        roles.sessions.register(&mut registry);
        self.connected_metrics.register(&mut registry, self.config.sessions.url.engine());
        self.waku_metrics.register(&mut registry);
        self.rest_metrics.register(&mut registry);
        self.net_metrics.register(&mut registry);
        self.http_metrics.register(&mut registry);
        registry
    }
}

/// Fails when the settings name a key or a token that can't be used: that is said before anything is opened.
fn check_secrets(effective: &Effective) -> anyhow::Result<()> {
    let config = &effective.config;
    let wrong = |key: &str, what: String| UsageError(format!("{}: {key}: {what}", effective.origin(key)));
    let key = &config.waku.node.key;
    key.check(&config.server.data_dir).map_err(|what| wrong("waku.node.key", what))?;
    read_token(&config.rest.token_file).map_err(|error| wrong("rest.token_file", format!("{error:#}")))?;
    Ok(())
}

/// The token of operators: the first line of its file. Without a file there is none.
pub(super) fn read_token(file: &Path) -> anyhow::Result<Option<Token>> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = secrets::read("token", file)?;
    let token = Token::new(&text).with_context(|| format!("can't use the token in {}", file.display()))?;
    Ok(Some(token))
}

fn node_config(config: &Config) -> anyhow::Result<NodeConfig> {
    check_ports(config)?;
    let (waku, node) = (&config.waku, &config.waku.node);
    Ok(NodeConfig {
        key: node.key.load(&config.server.data_dir)?,
        listen: node.listen(),
        tls: node.tls(),
        external_addresses: node.external_addresses.iter().map(Into::into).collect(),
        static_peers: node.static_peers.iter().map(Into::into).collect(),
        reserved_peers: Vec::new(),
        relay: waku.protocols.relay.then(|| waku.relay_topics()),
        max_message_bytes: waku.max_message_bytes.get(),
        limits: (&waku.limits).into(),
        agent: format!("restante/{VERSION}"),
    })
}

/// Logs where the server is, for people, and writes it to stdout, for scripts. Where both are one, as on a terminal, each
/// address stands there once.
fn announce(config: &Config, rest: Option<(SocketAddr, bool)>, waku: &Waku) {
    info!(version = VERSION, archive = %config.archive_url(), "serving");
    announce_archive(config);
    let is_one = logging::is_stdout();
    // A server whose stdout is closed has nobody to tell, and serves all the same.
    let mut out = std::io::stdout().lock();
    if let Some((address, has_console)) = rest {
        match (has_console, is_one) {
            (true, false) => info!(url = %format!("http://{address}/console"), "REST and console"),
            (true, true) => info!(path = "/console", "console"),
            (false, false) => info!(%address, "REST"),
            (false, true) => {}
        }
        if !address.ip().is_loopback() {
            warn!("everybody who reaches the REST address can publish and query");
            if config.rest.admin && config.rest.token_file.as_os_str().is_empty() {
                warn!("and do what is for operators: set rest.token_file, or leave rest.admin off");
            }
        }
        let _ = writeln!(out, "listening on http://{address}");
    }
    let Some(node) = &waku.node else { return };
    for address in node.addresses() {
        if !is_one {
            info!(%address, "Waku node");
        }
        let _ = writeln!(out, "listening on {address}");
    }
    if node.is_relay() && node.topics().is_empty() {
        let advice = "name the cluster with --cluster-id, or subscribe to pubsub topics by REST";
        warn!(advice, "no cluster is named, so nothing is relayed yet");
    }
}

fn announce_archive(config: &Config) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert_eq!(read_token(Path::new("")).unwrap(), None);
        std::fs::write(&file, "correct-horse-battery\nwhose it is\n").unwrap();
        assert_eq!(read_token(&file).unwrap(), Some(Token::new("correct-horse-battery").unwrap()));
    }

    #[test]
    fn a_token_that_can_not_be_used_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (text, problem) in [
            ("short\n", "a token has 16 to 512 characters, and not 5"),
            ("several words are no token", "a token has no spaces"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", read_token(&file).unwrap_err());
            assert!(error.contains(problem) && error.contains(&file.display().to_string()), "{error}");
        }
        assert!(read_token(&folder.path().join("missing")).is_err());
    }
}
