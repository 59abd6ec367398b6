//! `restante serve`: opens the stores of the doors, starts the doors, and shuts down in order.

use std::{fs::File, io::Write, net::SocketAddr, path::Path, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use futures_util::future::join_all;
use prometheus_client::registry::Registry;
use restante_backup::{BackupMetrics, BackupPermit, Sources};
use restante_http::{Front, Guard, HttpMetrics, OperatorGuard, Permits, RefusalFormat, Token};
use restante_net::{
    NetMetrics,
    tls::{Certificates, ServerTls},
};
use restante_operate::{Door, Listener, Offer, Operate, Parts, SetLogLevel};
use restante_sessions::SessionMetrics;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tracing::{info, warn};

use crate::{
    backups, certificates, clock,
    commands::connected::{self, ConnectedMetrics},
    config::{Config, Effective, ServeFlags},
    doors::{self, DoorListener, OpenDoor, Report, Shared, Started},
    exit::UsageError,
    live, logging, open_files, public, secrets,
    signals::{self, Stop},
    telemetry::{self, VERSION},
};

/// How the grace time is divided: one share for running requests, one for messages received by relay (and for a backup to remove what
/// it has copied), and the rest for the stores and the table of sessions, which are closed concurrently.
const REQUESTS_SHARE: f64 = 0.5;
const RELAYED_SHARE: f64 = 0.3;
const KEPT_SHARE: f64 = 0.2;

/// The lock file of the server that uses a data folder, in that folder.
pub(crate) const LOCK_FILE: &str = "server.lock";

pub(crate) async fn run(flags: &ServeFlags) -> anyhow::Result<ExitCode> {
    let effective = Arc::new(flags.load()?);
    let config = &effective.config;
    let set_log_level = logging::start(config);
    match &effective.file {
        Some(file) => info!(file = %file.display(), "settings"),
        None => info!("no settings file was found"),
    }
    for key in
        ["rest.admin", "rest.console", "rest.token_file"].into_iter().filter(|key| effective.is_set(key))
    {
        warn!(
            key,
            "this setting will be removed in the next version: operators have their own listener, see operate.listen"
        );
    }
    for (key, what) in doors::unused_listeners(config) {
        warn!(key, "{what}");
    }
    backups::check_not_halfway(config)?;
    let token = read_token(config.token_file()).map_err(|error| {
        let key = config.token_key();
        UsageError(format!("{}: {key}: {error:#}", effective.origin(key)))
    })?;
    open_files::raise(config);
    let stop = Stop::on_signals()?;
    let hangup = signals::hangup()?;
    let net_metrics = NetMetrics::default();
    let certificates = certificates::of_listeners(&effective, &net_metrics)?;
    let mut prepared = Vec::new();
    for door in doors::enabled(config) {
        prepared.push((door, door.prepare(&effective, &net_metrics)?));
    }

    let _data_folder = hold_data_folder(config)?;
    let (session_metrics, connected_metrics) = (SessionMetrics::default(), ConnectedMetrics::default());
    let live = live::open(config, session_metrics.clone()).await?;
    let mut bounds = doors::http_bounds(config);
    bounds.limits.stop_timeout = grace(config).mul_f64(REQUESTS_SHARE);
    let shared = Shared {
        effective: effective.clone(),
        live: live.clone(),
        clock: clock::system(),
        net: net_metrics.clone(),
        token,
        removing: Default::default(),
        memory: Arc::default(),
        permits: Permits::new(bounds.requests_max),
        bounds,
    };
    let all_certificates =
        certificates.iter().cloned().chain(prepared.iter().filter_map(|(_, own)| own.clone()));
    let current = certificates::keep_current(all_certificates.collect(), hangup);
    let mut tasks = vec![
        tokio::spawn(connected::run(live.clone(), connected_metrics.clone(), stop.clone())),
        tokio::spawn(current),
    ];
    let mut opened = Vec::new();
    for (door, certificates) in prepared {
        let mut door = door.open(&shared, certificates).await?;
        tasks.extend(door.spawn_upkeep(&stop));
        opened.push(door);
    }
    // A restore that has begun in the meantime would not know about stores that were created just now.
    backups::check_not_halfway(config)?;
    let server = Server {
        shared: &shared,
        doors: &opened,
        certificates,
        set_log_level,
        backups: BackupPermit::default(),
        backup_metrics: BackupMetrics::of(&config.server.data_dir),
        session_metrics,
        connected_metrics,
        net_metrics,
        http_metrics: HttpMetrics::default(),
    };
    let served = server.serve(stop).await;
    let limit = grace(config).mul_f64(KEPT_SHARE);
    end(tasks, limit).await;
    let closing = join_all(opened.iter().map(|door| door.close(limit)));
    let (closed, ()) = tokio::join!(closing, live::close(&live, limit));
    served.and(closed.into_iter().collect::<anyhow::Result<()>>())?;
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Locks the data folder for files that belong to no store: the node's key, and what was learned about senders. Commands need only the
/// stores.
fn hold_data_folder(config: &Config) -> Result<File, restante_core::Error> {
    let folder = &config.server.data_dir;
    restante_disk::create_folder(folder)?;
    let what = format!("the data folder {}", folder.display());
    restante_disk::hold(&folder.join(LOCK_FILE), &what, "stop it, or name another folder with --data")
}

/// Aborts tasks, so that none uses what is closed next. A busy task is awaited, within the limit.
async fn end(tasks: Vec<JoinHandle<()>>, limit: Duration) {
    let deadline = Instant::now() + limit;
    for task in &tasks {
        task.abort();
    }
    for task in tasks {
        let _ = timeout_at(deadline, task).await; // an error means that it was aborted, or is still busy
    }
}

fn grace(config: &Config) -> Duration {
    Duration::from_secs(config.server.grace_seconds.get())
}

/// Binds the sockets of all HTTP listeners, so that a port in use is reported before anything is served.
async fn listen(effective: &Effective) -> anyhow::Result<Vec<(Listener, TcpListener)>> {
    let config = &effective.config;
    let mut sockets = Vec::new();
    for DoorListener { kind, address, flag, .. } in doors::listeners(config) {
        let socket = TcpListener::bind(address).await.with_context(|| port_taken(address, flag))?;
        sockets.push((kind, socket));
    }
    if let Some(address) = config.operate.listen {
        match TcpListener::bind(address).await {
            Ok(socket) => sockets.push((Listener::Operate, socket)),
            // The port was not set explicitly: a second server on the machine runs without it.
            Err(error) if !effective.is_set("operate.listen") => {
                warn!(%address, %error, "no listener for operators: name another port with operate.listen");
            }
            Err(error) => return Err(error).with_context(|| port_taken(address, "operate.listen")),
        }
    }
    Ok(sockets)
}

/// The error when another program uses the port that `setting` sets.
pub(crate) fn port_taken(address: SocketAddr, setting: &str) -> String {
    format!(
        "can't listen on {address}: stop the program that holds the port, or choose another with {setting}"
    )
}

/// A server whose doors have opened their stores.
struct Server<'a> {
    shared: &'a Shared,
    doors: &'a [Box<dyn OpenDoor>],
    /// Those of listeners with TLS; `None` when no listener has TLS.
    certificates: Option<Arc<Certificates>>,
    set_log_level: SetLogLevel,
    backups: BackupPermit,
    backup_metrics: BackupMetrics,
    session_metrics: SessionMetrics,
    connected_metrics: ConnectedMetrics,
    net_metrics: NetMetrics,
    http_metrics: HttpMetrics,
}

impl Server<'_> {
    fn config(&self) -> &Config {
        &self.shared.effective.config
    }

    /// Serves until the server is stopped, the doors have finished, and the archive has stored the messages received by relay.
    async fn serve(&self, stop: Stop) -> anyhow::Result<()> {
        let sockets = listen(&self.shared.effective).await?;
        let (started, stopped_at) = self.serve_http(sockets, stop).await?;
        let limit = grace(self.config()).mul_f64(RELAYED_SHARE);
        // The doors' own requests were stopped at the same time, and may use the time that the HTTP requests have left.
        let until = stopped_at + grace(self.config()).mul_f64(REQUESTS_SHARE) + limit;
        let close = async |door: &Arc<dyn Door>| {
            let closed = timeout_at(until, door.close()).await;
            closed.with_context(|| format!("{} did not finish in time what it had taken", door.name()))
        };
        let (closed, ()) = tokio::join!(join_all(started.iter().map(close)), self.backups.end(limit));
        closed.into_iter().collect()
    }

    /// Serves HTTP until the server is stopped and the running requests are finished. Returns the doors, which still run, and the time
    /// of the stop.
    async fn serve_http(
        &self,
        mut sockets: Vec<(Listener, TcpListener)>,
        stop: Stop,
    ) -> anyhow::Result<(Vec<Arc<dyn Door>>, Instant)> {
        let mut addresses = Vec::new();
        for (kind, socket) in &sockets {
            addresses.push((*kind, socket.local_addr().context("a listener has no address")?));
        }
        // What the listener of a door offers to operators.
        let mut own_offer = Offer::default();
        let mut doors = Vec::new();
        for door in self.doors {
            for Started { door, offer } in door.start(&addresses).await? {
                own_offer.admin |= offer.admin;
                own_offer.console |= offer.console;
                doors.push(door);
            }
        }
        for (kind, socket) in public::bind(&self.config().public, &doors).await? {
            addresses.push((kind, socket.local_addr().context("a listener has no address")?));
            sockets.push((kind, socket));
        }
        let report = self.report();
        let (operators, accounts) = (report.operators.clone(), report.accounts.clone());
        let operate = Operate::new(self.parts(report, doors.clone(), &addresses, &stop));
        let mut servers = Vec::new();
        for (kind, socket) in sockets {
            let listener = self.listener(kind, socket)?;
            let mut guard = OperatorGuard::new(self.shared.token.clone(), listener.local_addr());
            if let Some(logins) = &operators {
                guard = guard.with_logins(logins.clone());
            }
            let offer = match kind {
                Listener::Rest => own_offer,
                Listener::Operate => Offer { admin: true, console: guard.is_safe() },
                Listener::Public => Offer::default(),
            };
            let front = self.front(kind, guard, accounts.clone());
            let limits = match kind {
                Listener::Public => public::server_limits(&self.config().public),
                Listener::Rest | Listener::Operate => self.shared.bounds.server,
            };
            let router = front.router(operate.routes(kind, offer));
            servers.push(restante_http::serve(listener, router, limits, stop.clone().requested()));
        }
        self.announce(&addresses);
        let ending = async {
            stop.requested().await;
            self.shared.live.hub.stop(); // live streams would never end by themselves
            doors.iter().for_each(|door| door.stop());
            Instant::now()
        };
        let (_, stopped_at) = tokio::join!(join_all(servers), ending);
        Ok((doors, stopped_at))
    }

    /// A listener on a socket, with its limits, proxies and certificates.
    fn listener(&self, kind: Listener, socket: TcpListener) -> anyhow::Result<restante_net::Listener> {
        let (limits, public) = (self.shared.bounds.limits, &self.config().public);
        let (limits, proxies) = match kind {
            Listener::Rest | Listener::Operate => {
                let own = doors::listeners(self.config()).into_iter().find(|own| own.kind == kind);
                (limits, own.map(|own| own.proxies).unwrap_or_default())
            }
            Listener::Public => (public::limits(public, limits.stop_timeout), public.proxies.clone()),
        };
        let metrics = self.net_metrics.listener(kind.as_str());
        let listener = restante_net::Listener::new(socket, limits, metrics);
        let mut listener = listener.context("a listener has no address")?.with_proxies(proxies);
        if let Some(certificates) = self.certificates.as_ref().filter(|_| self.config().has_tls(kind)) {
            listener = listener.with_tls(ServerTls::new(certificates.clone(), &["h2", "http/1.1"])?);
        }
        Ok(listener)
    }

    /// The guards and limits in front of the routes of a listener.
    fn front(&self, kind: Listener, operators: OperatorGuard, accounts: Option<Arc<dyn Guard>>) -> Front {
        let (sites, format) = match kind {
            Listener::Public => (public::sites(&self.config().public), RefusalFormat::Problem),
            Listener::Rest | Listener::Operate => (self.shared.bounds.sites.clone(), RefusalFormat::Text),
        };
        Front {
            metrics: self.http_metrics.of(kind.as_str()),
            memory: self.shared.memory.clone(),
            operators: Arc::new(operators),
            accounts,
            sites,
            format,
        }
    }

    /// The combined reports of the doors.
    fn report(&self) -> Report {
        let mut all = Report::default();
        for report in self.doors.iter().map(|door| door.report()) {
            all.roles.extend(report.roles);
            all.routes.extend(report.routes);
            all.facts.extend(report.facts);
            all.archive = all.archive.or(report.archive);
            all.operators = all.operators.or(report.operators);
            all.accounts = all.accounts.or(report.accounts);
        }
        all
    }

    fn parts(
        &self,
        report: Report,
        doors: Vec<Arc<dyn Door>>,
        addresses: &[(Listener, SocketAddr)],
        stop: &Stop,
    ) -> Parts {
        let mut routes = vec![restante_backup::route(self.sources(), stop.signal(), self.backups.clone())];
        routes.extend(report.routes);
        Parts {
            metrics_text: telemetry::shown(self.registry(&doors)),
            doors,
            roles: report.roles,
            archive: report.archive,
            facts: report.facts,
            live: self.shared.live.clone(),
            addresses: addresses
                .iter()
                .map(|(kind, address)| (*kind, self.config().url(*kind, *address)))
                .collect(),
            routes,
            set_log_level: Some(self.set_log_level.clone()),
            version: VERSION,
            clock: self.shared.clock.clone(),
            memory: self.shared.memory.clone(),
            permits: self.shared.permits.clone(),
            request_timeout: self.shared.bounds.request_timeout,
        }
    }

    /// What a backup copies.
    fn sources(&self) -> Sources {
        let stores = self.doors.iter().flat_map(|door| door.stores()).collect();
        let sources = backups::sources(&self.shared.effective, stores, self.shared.removing.clone());
        sources.counted_by(self.backup_metrics.clone())
    }

    fn registry(&self, doors: &[Arc<dyn Door>]) -> Registry {
        let mut registry = telemetry::registry(self.shared.clock.now());
        self.doors.iter().for_each(|door| door.register(&mut registry));
        self.backup_metrics.register(&mut registry);
        self.session_metrics.register(&mut registry);
        self.connected_metrics.register(&mut registry, self.config().sessions.url.engine());
        doors.iter().for_each(|door| door.register(&mut registry));
        self.net_metrics.register(&mut registry);
        self.http_metrics.register(&mut registry);
        registry
    }

    /// Logs the addresses of the server, for people, and writes them to stdout, for scripts. Where both go to the same place, as on a
    /// terminal, each address is written once.
    fn announce(&self, addresses: &[(Listener, SocketAddr)]) {
        info!(version = VERSION, "serving");
        let is_one = logging::is_stdout();
        // If stdout is closed, the addresses can't be written, but the server still runs.
        let mut out = std::io::stdout().lock();
        for door in self.doors {
            let _ = door.announce(addresses, is_one, &mut out);
        }
        for (kind, address) in addresses {
            let url = self.config().url(*kind, *address);
            let whom = match kind {
                Listener::Rest => continue, // its door has done that
                Listener::Operate => {
                    if !is_one {
                        info!(url, "console and administration");
                    }
                    "operators"
                }
                Listener::Public => {
                    public::announce(&self.config().public, *address, is_one);
                    "users"
                }
            };
            let _ = writeln!(out, "listening for {whom} on {url}");
        }
    }
}

/// The token of operators: the first line of its file; `None` without a file.
pub(super) fn read_token(file: &Path) -> anyhow::Result<Option<Token>> {
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = secrets::read("token", file)?;
    let token = Token::new(&text).with_context(|| format!("can't use the token in {}", file.display()))?;
    Ok(Some(token))
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
