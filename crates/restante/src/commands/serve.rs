//! `restante serve`: opens the stores, starts the doors, and ends in order.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener as BlockingListener},
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use restante_archive::{Metrics, Opened};
use restante_core::Clock;
use restante_directory::{Directory, DirectoryMetrics};
use restante_http::{Front, HttpMetrics, MemoryBudget, OperatorGuard, Permits, RefusalFormat, Route, Token};
use restante_net::{NetMetrics, tls::ServerTls};
use restante_operate::{ArchiveHealth, Door, Listener, Offer, Operate, Parts, RetentionState, SetLogLevel};
use restante_sessions::{Live, SessionMetrics};
use restante_waku::{
    Waku, WakuConfig, WakuMetrics,
    live::Listener as MessageListener,
    node::NodeConfig,
    rest::{MessageCache, Rest, RestConfig, RestMetrics, WakuDoor},
};
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use crate::{
    backup::{self, BackupMetrics, BackupPermit, Removing, Sources},
    certificates::ServerCertificates,
    clock,
    commands::connected::{self, ConnectedMetrics},
    config::{Config, Effective, ServeFlags},
    doors::{
        mail::{
            blobs,
            logins::LoginGuard,
            records,
            stores::{self, Stores, StoresMetrics},
            tidying::{self, TidyMetrics, Tidying},
        },
        waku::{
            archives::{self, Access},
            retention,
            size::{self, SizeMetrics},
        },
    },
    exit::UsageError,
    live, logging, open_files, public, secrets,
    signals::{self, Stop},
    telemetry::{self, VERSION},
};

/// The parts of the grace time: for the requests that were begun, for the messages that relay has brought (and for a backup to
/// remove what it has copied), and the rest for the stores and the table of sessions, side by side.
const REQUESTS_SHARE: f64 = 0.5;
const RELAYED_SHARE: f64 = 0.3;
const KEPT_SHARE: f64 = 0.2;

pub(crate) async fn run(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    let effective = flags.load()?;
    let config = &effective.config;
    let set_log_level = logging::start(config);
    match &effective.file {
        Some(file) => info!(file = %file.display(), "settings"),
        None => info!("no settings file was found"),
    }
    if effective.has_secret_flag() {
        warn!("everybody on this machine can read the node's key on the command line: put it into a file");
    }
    for key in
        ["rest.admin", "rest.console", "rest.token_file"].into_iter().filter(|key| effective.is_set(key))
    {
        warn!(
            key,
            "this setting will be removed in the next version: operators have their own listener, see operate.listen"
        );
    }
    backup::check_not_halfway(config)?;
    check_secrets(&effective)?;
    open_files::raise(config);
    let stop = Stop::on_signals()?;
    let hangup = signals::hangup()?;
    let net_metrics = NetMetrics::default();
    let certificates = ServerCertificates::load(&effective, &net_metrics)?;

    let metrics = RoleMetrics::default();
    let live = live::open(config, metrics.sessions.clone()).await?;
    let opened = archives::open(config, Access::Serve, metrics.archive.clone()).await?;
    let stores = open_stores(config, &metrics).await?;
    let settings = config.directory.clone();
    let opened_directory =
        Directory::open(&stores.records, settings, clock::system(), metrics.directory.clone()).await;
    let (directory, follower) = opened_directory.context("can't open the directory")?;
    let following = tokio::spawn(follower.run());
    let doors = Doors {
        net_metrics,
        ..Doors::new(&effective, &opened, (&stores, directory), &live, metrics, set_log_level)
    };
    let (schedule, noted) = ((&config.archive).into(), doors.retention.clone());
    let retention = tokio::spawn(retention::run(opened.upkeep.clone(), schedule, noted, stop.clone()));
    let size = tokio::spawn(size::run(opened.upkeep.clone(), doors.size_metrics.clone(), stop.clone()));
    let connected = tokio::spawn(connected::run(live.clone(), doors.connected_metrics.clone(), stop.clone()));
    let checks = stores.health(config);
    let asking =
        tokio::spawn(stores::run(stores.clone(), checks, doors.stores_metrics.clone(), stop.clone()));
    let tidying = Tidying::new(config, &stores, doors.tidy_metrics.clone());
    let tidying = tokio::spawn(tidying.run(stop.clone()));
    let current = tokio::spawn(certificates.clone().keep_current(hangup));
    let served = serve(&doors, &certificates, stop).await;
    let limit = grace(config).mul_f64(KEPT_SHARE);
    end([retention, size, connected, asking, tidying, current, following], limit).await;
    let (closed, stores_closed, ()) =
        tokio::join!(close(&opened, limit), stores.close(limit), live::close(&live, limit));
    served.and(closed).and(stores_closed)?;
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
async fn open_stores(config: &Config, metrics: &RoleMetrics) -> anyhow::Result<Stores> {
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
    Ok(Stores { records, blobs, removing: Removing::default() })
}

/// Serves the archive until the server stops, the doors have finished, and the archive has what relay brought.
async fn serve(doors: &Doors<'_>, certificates: &ServerCertificates, stop: Stop) -> anyhow::Result<()> {
    let config = doors.config;
    let sockets = listen(doors.effective).await?;
    let waku = doors.start_waku(certificates).await?;
    let started = doors.serve_http(sockets, certificates, waku, stop).await?;
    let limit = grace(config).mul_f64(RELAYED_SHARE);
    let close = async |door: &Arc<dyn Door>| {
        let closed = tokio::time::timeout(limit, door.close()).await;
        closed.with_context(|| format!("{} did not finish in time what it had taken", door.name()))
    };
    let (closed, ()) = tokio::join!(join_all(started.iter().map(close)), doors.backups.end(limit));
    closed.into_iter().collect()
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

/// Binds the sockets of all listeners of HTTP, so that a port that is taken is reported before anything is served.
async fn listen(effective: &Effective) -> anyhow::Result<Vec<(Listener, TcpListener)>> {
    let config = &effective.config;
    let mut sockets = Vec::new();
    if config.rest.enabled {
        let address = SocketAddr::new(config.rest.address, config.rest.port);
        let socket = TcpListener::bind(address).await.with_context(|| port_taken(address, "--rest-port"))?;
        sockets.push((Listener::Rest, socket));
    }
    if let Some(address) = config.operate.listen {
        match TcpListener::bind(address).await {
            Ok(socket) => sockets.push((Listener::Operate, socket)),
            // Nobody has asked for this port: a second server on the machine serves without it.
            Err(error) if !effective.is_set("operate.listen") => {
                warn!(%address, %error, "no listener for operators: name another port with operate.listen");
            }
            Err(error) => return Err(error).with_context(|| port_taken(address, "operate.listen")),
        }
    }
    Ok(sockets)
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
    stores: &'a Stores,
    directory: Directory,
    live: &'a Live,
    clock: Arc<dyn Clock>,
    rest: RestConfig,
    /// Where messages wait for REST clients.
    cache: Arc<MessageCache>,
    retention: RetentionState,
    set_log_level: SetLogLevel,
    backups: BackupPermit,
    backup_metrics: BackupMetrics,
    role_metrics: RoleMetrics,
    connected_metrics: ConnectedMetrics,
    stores_metrics: StoresMetrics,
    size_metrics: SizeMetrics,
    tidy_metrics: TidyMetrics,
    waku_metrics: WakuMetrics,
    rest_metrics: RestMetrics,
    net_metrics: NetMetrics,
    http_metrics: HttpMetrics,
    /// Memory for answers on all listeners.
    memory: Arc<MemoryBudget>,
    permits: Permits,
}

impl<'a> Doors<'a> {
    fn new(
        effective: &'a Effective,
        opened: &'a Opened,
        (stores, directory): (&'a Stores, Directory),
        live: &'a Live,
        role_metrics: RoleMetrics,
        set_log_level: SetLogLevel,
    ) -> Self {
        let config = &effective.config;
        let stop_timeout = grace(config).mul_f64(REQUESTS_SHARE);
        let rest = RestConfig {
            stop_timeout_ms: u64::try_from(stop_timeout.as_millis()).unwrap_or(u64::MAX),
            ..config.rest.door.clone()
        };
        let rest_metrics = RestMetrics::default();
        let permits = Permits::new(rest.requests_max.get());
        let cache = Arc::new(MessageCache::new(&rest, &rest_metrics));
        Self {
            effective,
            config,
            opened,
            stores,
            directory,
            live,
            clock: clock::system(),
            rest,
            cache,
            retention: retention::state(&config.archive),
            set_log_level,
            backups: BackupPermit::default(),
            backup_metrics: BackupMetrics::of(&config.server.data_dir),
            role_metrics,
            connected_metrics: ConnectedMetrics::default(),
            stores_metrics: StoresMetrics::default(),
            size_metrics: SizeMetrics::default(),
            tidy_metrics: TidyMetrics::default(),
            waku_metrics: WakuMetrics::default(),
            rest_metrics,
            net_metrics: NetMetrics::default(),
            http_metrics: HttpMetrics::default(),
            memory: Arc::default(),
            permits,
        }
    }

    async fn start_waku(&self, certificates: &ServerCertificates) -> anyhow::Result<Waku> {
        let settings = &self.config.waku;
        let node = if settings.node.enabled { Some(node_config(self.config, certificates)?) } else { None };
        let config = WakuConfig {
            rules: settings.rules.clone(),
            node,
            handover: settings.handover,
            services: settings.protocols.services,
            rates: settings.rates.clone(),
            filter: settings.filter,
            light_push: settings.lightpush,
            peer_exchange: settings.peer_exchange.clone(),
            sync: settings.sync(&self.config.server.data_dir, self.config.archive.retention),
        };
        let archive = self.opened.archive.clone();
        let listeners: Vec<Arc<dyn MessageListener>> = vec![self.cache.clone()];
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

    /// Serves HTTP until the server is stopped and the requests that were begun are finished. Returns the doors, which still run.
    async fn serve_http(
        &self,
        mut sockets: Vec<(Listener, TcpListener)>,
        certificates: &ServerCertificates,
        waku: Waku,
        stop: Stop,
    ) -> anyhow::Result<Vec<Arc<dyn Door>>> {
        let mut addresses = Vec::new();
        for (kind, socket) in &sockets {
            addresses.push((*kind, socket.local_addr().context("a listener has no address")?));
        }
        let health = self.archive_health();
        let rest = Arc::new(self.rest(&addresses, &waku, &health)?);
        let doors: Vec<Arc<dyn Door>> = vec![Arc::new(WakuDoor::new(rest.clone()))];
        for (kind, socket) in public::bind(&self.config.public, &doors).await? {
            addresses.push((kind, socket.local_addr().context("a listener has no address")?));
            sockets.push((kind, socket));
        }
        let operate = Operate::new(self.parts(doors.clone(), &addresses, health, &stop));
        let mut servers = Vec::new();
        for (kind, socket) in sockets {
            let listener = self.listener(kind, socket, certificates)?;
            let operators = OperatorGuard::new(self.token()?, listener.local_addr());
            let operators = Arc::new(operators.with_logins(Arc::new(self.logins(LoginGuard::of_operators))));
            let offer = match kind {
                Listener::Rest => rest.offer(),
                Listener::Operate => Offer { admin: true, console: operators.is_safe() },
                Listener::Public => Offer::default(),
            };
            let router = self.front(kind, operators).router(operate.routes(kind, offer));
            let limits = match kind {
                Listener::Public => public::server_limits(&self.config.public),
                Listener::Rest | Listener::Operate => self.rest.server_limits(),
            };
            servers.push(restante_http::serve(listener, router, limits, stop.clone().requested()));
        }
        announce(self.config, &addresses, rest.offer(), &waku);
        // Live streams would never end by themselves.
        let ending = async {
            stop.requested().await;
            self.live.hub.stop();
        };
        tokio::join!(join_all(servers), ending);
        Ok(doors)
    }

    /// A listener on a socket, with its limits, its proxies and its certificates.
    fn listener(
        &self,
        kind: Listener,
        socket: TcpListener,
        certificates: &ServerCertificates,
    ) -> anyhow::Result<restante_net::Listener> {
        let (rest, public) = (&self.config.rest, &self.config.public);
        let (limits, proxies) = match kind {
            Listener::Rest => (self.rest.limits(), &rest.proxies[..]),
            Listener::Operate => (self.rest.limits(), &[][..]),
            Listener::Public => {
                (public::limits(public, self.rest.limits().stop_timeout), &public.proxies[..])
            }
        };
        let metrics = self.net_metrics.listener(kind.as_str());
        let listener = restante_net::Listener::new(socket, limits, metrics);
        let mut listener =
            listener.context("a listener has no address")?.with_proxies(proxies.iter().copied());
        if let Some(certificates) = certificates.listeners.as_ref().filter(|_| self.config.has_tls(kind)) {
            listener = listener.with_tls(ServerTls::new(certificates.clone(), &["h2", "http/1.1"])?);
        }
        Ok(listener)
    }

    fn token(&self) -> anyhow::Result<Option<Token>> {
        read_token(self.config.token_file())
    }

    fn archive_health(&self) -> Arc<ArchiveHealth> {
        let Opened { archive, upkeep } = self.opened;
        let timeout = Duration::from_millis(self.rest.request_timeout_ms.get());
        let health = ArchiveHealth::new(archive.clone(), upkeep.clone(), timeout);
        Arc::new(health.with_retention(self.retention.clone()))
    }

    fn logins(&self, guard: fn(Directory, Arc<dyn Clock>) -> LoginGuard) -> LoginGuard {
        guard(self.directory.clone(), self.clock.clone())
    }

    /// What stands in front of the routes of a listener.
    fn front(&self, kind: Listener, operators: Arc<OperatorGuard>) -> Front {
        Front {
            metrics: self.http_metrics.of(kind.as_str()),
            memory: self.memory.clone(),
            operators,
            accounts: Some(Arc::new(self.logins(LoginGuard::of_accounts))),
            sites: if kind == Listener::Public { public::sites() } else { self.rest.sites() },
            format: match kind {
                Listener::Public => RefusalFormat::Problem,
                Listener::Rest | Listener::Operate => RefusalFormat::Text,
            },
        }
    }

    fn rest(
        &self,
        addresses: &[(Listener, SocketAddr)],
        waku: &Waku,
        health: &Arc<ArchiveHealth>,
    ) -> anyhow::Result<Rest> {
        let own = addresses.iter().find(|(kind, _)| *kind == Listener::Rest).map(|(_, address)| *address);
        let address = own.unwrap_or_else(|| SocketAddr::new(self.config.rest.address, self.config.rest.port));
        Ok(Rest {
            waku: waku.clone(),
            cache: self.cache.clone(),
            archive: self.opened.archive.clone(),
            health: health.clone(),
            clock: self.clock.clone(),
            config: self.rest.clone(),
            operators: Arc::new(OperatorGuard::new(self.token()?, address)),
            metrics: self.rest_metrics.clone(),
            waku_metrics: self.waku_metrics.clone(),
            memory: self.memory.clone(),
            permits: self.permits.clone(),
            version: VERSION,
            listen_addresses: own.iter().map(|address| self.config.url(Listener::Rest, *address)).collect(),
        })
    }

    fn parts(
        &self,
        doors: Vec<Arc<dyn Door>>,
        addresses: &[(Listener, SocketAddr)],
        health: Arc<ArchiveHealth>,
        stop: &Stop,
    ) -> Parts {
        Parts {
            metrics_text: telemetry::shown(self.registry(&doors)),
            doors,
            roles: self.stores.health(self.config),
            archive: Some(health),
            live: self.live.clone(),
            addresses: addresses
                .iter()
                .map(|(kind, address)| (*kind, self.config.url(*kind, *address)))
                .collect(),
            routes: self.operator_routes(stop),
            set_log_level: Some(self.set_log_level.clone()),
            version: VERSION,
            clock: self.clock.clone(),
            memory: self.memory.clone(),
            permits: self.permits.clone(),
            request_timeout: Duration::from_millis(self.rest.request_timeout_ms.get()),
        }
    }

    /// Routes for operators beside those of the doors.
    fn operator_routes(&self, stop: &Stop) -> Vec<Route> {
        let (records, blobs) = (self.stores.records.upkeep.clone(), self.stores.blobs.upkeep.clone());
        let sources = Sources::new(
            self.effective,
            Some(records.clone()),
            Some(blobs),
            Some(self.opened.upkeep.clone()),
            self.stores.removing.clone(),
        )
        .counted_by(self.backup_metrics.clone());
        let data = backup::real_path(&self.config.server.data_dir);
        let mut routes = vec![
            backup::route(sources, stop.clone(), self.backups.clone()),
            crate::doors::mail::commands::records::route(self.config.records_url().to_string(), records),
        ];
        routes.extend(crate::doors::mail::commands::directory::routes(&self.directory, data));
        routes
    }

    fn registry(&self, doors: &[Arc<dyn Door>]) -> Registry {
        let mut registry = telemetry::registry(self.clock.now());
        let (config, roles) = (self.config, &self.role_metrics);
        let engine = config.archive_url().engine();
        roles.archive.register(&mut registry, engine);
        self.size_metrics.register(&mut registry, engine);
        roles.records.register(&mut registry);
        roles.blobs.register(&mut registry);
        roles.directory.register(&mut registry);
        let engines = (config.records_url().engine(), config.blobs_url().engine());
        self.stores_metrics.register(&mut registry, engines);
        self.tidy_metrics.register(&mut registry);
        self.backup_metrics.register(&mut registry);
        roles.sessions.register(&mut registry);
        self.connected_metrics.register(&mut registry, self.config.sessions.url.engine());
        doors.iter().for_each(|door| door.register(&mut registry));
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
    read_token(config.token_file()).map_err(|error| wrong(config.token_key(), format!("{error:#}")))?;
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

fn node_config(config: &Config, certificates: &ServerCertificates) -> anyhow::Result<NodeConfig> {
    check_ports(config)?;
    let (waku, node) = (&config.waku, &config.waku.node);
    Ok(NodeConfig {
        key: node.key.load(&config.server.data_dir)?,
        listen: node.listen(),
        certificates: certificates.websocket.clone(),
        external_addresses: node.external_addresses.iter().map(Into::into).collect(),
        static_peers: node.static_peers.clone(),
        reserved_peers: Vec::new(),
        relay: waku.protocols.relay.then(|| waku.relay_topics()),
        max_message_bytes: waku.rules.max_message_bytes.get(),
        limits: waku.limits,
        agent: format!("restante/{VERSION}"),
    })
}

/// Logs where the server is, for people, and writes it to stdout, for scripts. Where both are one, as on a terminal, each
/// address stands there once.
fn announce(config: &Config, addresses: &[(Listener, SocketAddr)], offer: Offer, waku: &Waku) {
    info!(version = VERSION, archive = %config.archive_url(), "serving");
    announce_archive(config);
    let is_one = logging::is_stdout();
    // A server whose stdout is closed has nobody to write to, and serves all the same.
    let mut out = std::io::stdout().lock();
    for (kind, address) in addresses {
        let url = config.url(*kind, *address);
        let whom = match kind {
            Listener::Operate => {
                if !is_one {
                    info!(url, "console and administration");
                }
                " for operators"
            }
            Listener::Public => {
                public::announce(&config.public, *address, is_one);
                " for users"
            }
            Listener::Rest => {
                announce_rest(config, *address, &url, offer, is_one);
                ""
            }
        };
        let _ = writeln!(out, "listening{whom} on {url}");
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

fn announce_rest(config: &Config, address: SocketAddr, url: &str, offer: Offer, is_one: bool) {
    match (offer.console, is_one) {
        (true, false) => info!(url = %format!("{url}/console"), "REST and console"),
        (true, true) => info!(path = "/console", "console"),
        (false, false) => info!(url, "REST"),
        (false, true) => {}
    }
    if !address.ip().is_loopback() {
        warn!("everybody who reaches the REST address can publish and query");
        if config.rest.door.admin && config.token_file().as_os_str().is_empty() {
            warn!("and do what is for operators: set operate.token_file, or leave rest.admin off");
        }
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
