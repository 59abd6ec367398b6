//! Starts the listeners, and stops them.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::UnixStream,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use restante_checks::SenderChecks;
use restante_core::{Clock, Error};
use restante_http::Route;
use restante_net::{
    Listener, LogThrottle, NetMetrics,
    tls::{Certificates, ServerTls},
};
use restante_operate::{self as operate, ComponentHealth, Door, Facts, Offer, Status};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinHandle,
};
use tracing::{debug, warn};

use crate::{
    Delivery, Forwards, Journal, LmtpAddress, LmtpConfig, Protocol, Quarantine, Recipients, SmtpConfig,
    SmtpMetrics, SubmissionParts, connection, limits::AddressRates, memory::MemoryBudget, refusal::Refusal,
    submission::Submission,
};

/// Who may connect to a Unix socket: everybody, as with a port of loopback. The permissions of its folder restrict this.
const SOCKET_MODE: u32 = 0o666;

/// What the door needs.
#[derive(Clone)]
pub struct Parts {
    /// Where mail goes.
    pub recipients: Arc<dyn Recipients>,
    /// Stores it.
    pub delivery: Arc<dyn Delivery>,
    /// Notes every delivery.
    pub journal: Option<Arc<dyn Journal>>,
    /// The certificates of `STARTTLS`; without them it is not offered.
    pub certificates: Option<Arc<Certificates>>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// Lets users submit mail; without it submission is disabled.
    pub submission: Option<SubmissionParts>,
    /// Forwards mail whose alias leads to other servers; without it such mail is refused.
    pub forwards: Option<Forwards>,
    /// Checks mail received by SMTP; without it none is checked.
    pub checks: Option<Arc<dyn SenderChecks>>,
    /// Stores mail for the operator; without it such mail goes to Junk.
    pub quarantine: Option<Arc<dyn Quarantine>>,
    /// The metrics of messages.
    pub metrics: SmtpMetrics,
    /// The metrics of connections.
    pub net: NetMetrics,
}

/// What all connections share.
pub(crate) struct Server {
    pub(crate) config: SmtpConfig,
    pub(crate) lmtp: LmtpConfig,
    pub(crate) recipients: Arc<dyn Recipients>,
    pub(crate) delivery: Arc<dyn Delivery>,
    pub(crate) journal: Option<Arc<dyn Journal>>,
    pub(crate) submission: Option<Submission>,
    pub(crate) forwards: Option<Forwards>,
    pub(crate) checks: Option<Arc<dyn SenderChecks>>,
    pub(crate) quarantine: Option<Arc<dyn Quarantine>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: SmtpMetrics,
    pub(crate) rates: AddressRates,
    pub(crate) memory: MemoryBudget,
    messages: AtomicU64,
    failures: LogThrottle,
}

impl Server {
    /// The id of a message.
    pub(crate) fn next_id(&self) -> String {
        let number = self.messages.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{number:x}", self.clock.now().0 / 1_000)
    }

    /// Logs a failure of the records, the blobs or the directory, at most one line a minute: every message fails then.
    pub(crate) fn log_failure(&self, what: &'static str, error: &Error) {
        match self.failures.count() {
            Some(times) => warn!(%error, times, "{what}: clients are asked to try again"),
            None => debug!(%error, "{what}"),
        }
    }

    pub(crate) fn over_quota(&self) -> Refusal {
        if self.config.quota_is_permanent { Refusal::OverQuotaForGood } else { Refusal::OverQuota }
    }

    pub(crate) fn message_timeout(&self) -> Duration {
        Duration::from_millis(self.config.message_timeout_ms.get())
    }
}

/// The running server.
pub struct SmtpDoor {
    server: Arc<Server>,
    smtp: Vec<SocketAddr>,
    lmtp: Vec<LmtpAddress>,
    submission: Vec<SocketAddr>,
    submissions: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl SmtpDoor {
    /// Listens on all addresses of the settings, and serves until [`Door::close`].
    ///
    /// # Errors
    /// `Invalid` if the settings can't work; `Unavailable` or `Conflict` if an address can't be listened on.
    pub fn start(
        parts: Parts,
        config: SmtpConfig,
        lmtp: LmtpConfig,
    ) -> BoxFuture<'static, Result<Self, Error>> {
        // Boxed here, so that this crate compiles the connections, and not each crate that starts a door.
        Box::pin(Self::listening(parts, config, lmtp))
    }

    async fn listening(parts: Parts, config: SmtpConfig, lmtp: LmtpConfig) -> Result<Self, Error> {
        if let Some((setting, advice)) = config.problem() {
            return Err(Error::invalid(format!("the setting smtp.{setting} can't be used: {advice}")));
        }
        let Parts { certificates, metrics, net, .. } = parts;
        let submission = match parts.submission {
            Some(parts) => Some(Submission::new(parts, certificates.is_some())?),
            None => None,
        };
        let tls = match certificates {
            Some(certificates) => Some(tls(certificates, config.session_tickets)?),
            None => None,
        };
        let memory_timeout = Duration::from_millis(config.memory_timeout_ms);
        let memory =
            MemoryBudget::new(config.memory_bytes_max.get(), memory_timeout, metrics.memory_bytes.clone());
        let (rates, messages, failures) =
            (AddressRates::new(&config, metrics.clone()), AtomicU64::new(0), LogThrottle::default());
        let server = Server {
            config,
            lmtp,
            recipients: parts.recipients,
            delivery: parts.delivery,
            journal: parts.journal,
            submission,
            forwards: parts.forwards,
            checks: parts.checks,
            quarantine: parts.quarantine,
            clock: parts.clock,
            metrics,
            rates,
            memory,
            messages,
            failures,
        };
        let mut door = Self {
            server: Arc::new(server),
            smtp: Vec::new(),
            lmtp: Vec::new(),
            submission: Vec::new(),
            submissions: Vec::new(),
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
        };
        door.listen(tls.as_ref(), &net).await?;
        Ok(door)
    }

    /// The addresses where SMTP is served.
    pub fn smtp_addresses(&self) -> &[SocketAddr] {
        &self.smtp
    }

    /// The addresses where LMTP is served.
    pub fn lmtp_addresses(&self) -> &[LmtpAddress] {
        &self.lmtp
    }

    /// The addresses where mail is submitted with STARTTLS.
    pub fn submission_addresses(&self) -> &[SocketAddr] {
        &self.submission
    }

    /// The addresses where mail is submitted with TLS from the first byte.
    pub fn submissions_addresses(&self) -> &[SocketAddr] {
        &self.submissions
    }

    async fn listen(&mut self, tls: Option<&ServerTls>, net: &NetMetrics) -> Result<(), Error> {
        let server = self.server.clone();
        for address in &server.config.listen {
            let limits = server.config.limits();
            let metrics = net.listener(Protocol::Smtp.as_str());
            let listener = Listener::new(bind(*address).await?, limits, metrics);
            let listener = listener.map_err(|error| Error::io("listen on", address, error))?;
            let listener = listener.with_proxies(server.config.proxies.iter().copied());
            self.smtp.push(listener.local_addr());
            self.serve(with_start_tls(listener, tls), Protocol::Smtp, None);
        }
        self.listen_for_users(tls, net).await?;
        for address in &server.lmtp.listen {
            let limits = server.lmtp.limits(&server.config);
            let metrics = net.listener(Protocol::Lmtp.as_str());
            match address {
                LmtpAddress::Tcp(address) => {
                    let listener = Listener::new(bind(*address).await?, limits, metrics);
                    let listener = listener.map_err(|error| Error::io("listen on", address, error))?;
                    self.lmtp.push(LmtpAddress::Tcp(listener.local_addr()));
                    self.serve(with_start_tls(listener, tls), Protocol::Lmtp, None);
                }
                LmtpAddress::Unix(path) => {
                    let listener = Listener::unix(bind_unix(path)?, limits, metrics);
                    self.lmtp.push(address.clone());
                    self.serve(listener, Protocol::Lmtp, Some(path));
                }
            }
        }
        Ok(())
    }

    async fn listen_for_users(&mut self, tls: Option<&ServerTls>, net: &NetMetrics) -> Result<(), Error> {
        let server = self.server.clone();
        let Some(submission) = &server.submission else { return Ok(()) };
        let starting = submission.config.listen.iter().map(|address| (address, Protocol::Submission));
        let immediate = submission.config.listen_tls.iter().map(|address| (address, Protocol::Submissions));
        for (address, protocol) in starting.chain(immediate) {
            let limits = submission.config.limits(&server.config);
            let metrics = net.listener(protocol.as_str());
            let listener = Listener::new(bind(*address).await?, limits, metrics);
            let listener = listener.map_err(|error| Error::io("listen on", address, error))?;
            let listener = listener.with_proxies(server.config.proxies.iter().copied());
            let bound = listener.local_addr();
            let listener = match (tls, protocol) {
                (Some(tls), Protocol::Submissions) => {
                    self.submissions.push(bound);
                    listener.with_tls(tls.clone())
                }
                _ => {
                    self.submission.push(bound);
                    with_start_tls(listener, tls)
                }
            };
            self.serve(listener, protocol, None);
        }
        Ok(())
    }

    fn serve(&self, listener: Listener, protocol: Protocol, socket: Option<&Path>) {
        let (server, is_unix) = (self.server.clone(), socket.is_some());
        let handler = move |connection| connection::serve(connection, server.clone(), protocol, is_unix);
        let (mut stopping, socket) = (self.stop.subscribe(), socket.map(Path::to_owned));
        let task = tokio::spawn(async move {
            let stop = async move {
                let _ = stopping.wait_for(|is_stopping| *is_stopping).await; // fails when the door was dropped
            };
            listener.serve(handler, stop).await;
            if let Some(path) = socket
                && let Err(error) = remove_socket(&path)
            {
                warn!(%error, "a Unix socket stays");
            }
        });
        self.tasks.lock().push(task);
    }

    fn component(&self, protocol: Protocol, is_on: bool) -> ComponentHealth {
        let is_stopped = self.tasks.lock().iter().any(JoinHandle::is_finished);
        let problem = is_stopped.then(|| "a listener of mail has stopped: restart the server".to_owned());
        let health = ComponentHealth::new(protocol.as_str(), problem.filter(|_| is_on));
        if is_on { health } else { ComponentHealth { status: Status::NotMounted, ..health } }
    }
}

#[async_trait]
impl Door for SmtpDoor {
    fn name(&self) -> &'static str {
        "SMTP and LMTP"
    }

    async fn health(&self) -> Vec<ComponentHealth> {
        vec![
            self.component(Protocol::Smtp, !self.smtp.is_empty()),
            self.component(Protocol::Lmtp, !self.lmtp.is_empty()),
            self.component(Protocol::Submission, !self.submission.is_empty()),
            self.component(Protocol::Submissions, !self.submissions.is_empty()),
        ]
    }

    fn facts(&self, _metrics: &str) -> Facts {
        let texts = |addresses: Vec<String>| Value::from(addresses);
        let smtp = texts(self.smtp.iter().map(ToString::to_string).collect());
        let lmtp = texts(self.lmtp.iter().map(ToString::to_string).collect());
        let submission = texts(self.submission.iter().map(ToString::to_string).collect());
        let submissions = texts(self.submissions.iter().map(ToString::to_string).collect());
        let services = vec![
            json!({"name": "SMTP", "isOn": !self.smtp.is_empty(), "addresses": smtp}),
            json!({"name": "LMTP", "isOn": !self.lmtp.is_empty(), "addresses": lmtp}),
            json!({"name": "submission", "isOn": !self.submission.is_empty(), "addresses": submission}),
            json!({"name": "submissions", "isOn": !self.submissions.is_empty(), "addresses": submissions}),
        ];
        Facts { services, ..Facts::default() }
    }

    fn register(&self, registry: &mut Registry) {
        self.server.metrics.register(registry);
    }

    fn routes(&self, _listener: operate::Listener, _offer: Offer) -> Vec<Route> {
        Vec::new()
    }

    fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Lets clients finish the message that they are sending, within the listeners' stop timeout from the beginning of the stop.
    async fn close(&self) {
        self.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                warn!(%error, "a listener of mail broke off");
            }
        }
    }
}

fn tls(certificates: Arc<Certificates>, has_tickets: bool) -> Result<ServerTls, Error> {
    let tls = match has_tickets {
        true => ServerTls::new(certificates, &[]),
        false => ServerTls::without_tickets(certificates),
    };
    tls.map_err(|error| Error::internal(error.to_string()))
}

fn with_start_tls(listener: Listener, tls: Option<&ServerTls>) -> Listener {
    match tls {
        Some(tls) => listener.with_start_tls(tls.clone()),
        None => listener,
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| Error::io("listen on", address, error))
}

/// Binds a Unix socket at a path. One that an earlier server has left there is replaced.
fn bind_unix(path: &Path) -> Result<UnixListener, Error> {
    let failed = |error| Error::io("listen on", path.display(), error);
    match UnixStream::connect(path) {
        Ok(_) => {
            let path = path.display();
            return Err(Error::conflict(format!(
                "another process listens on {path}: stop it, or use another path"
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            remove_socket(path)?; // a connection to a file that is no socket is refused, too
        }
        Err(_) => {} // nothing is there, or binding reports what is wrong
    }
    let socket = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    Ok(socket)
}

/// Removes a socket, and nothing else that may be at its path.
fn remove_socket(path: &Path) -> Result<(), Error> {
    let failed = |error| Error::io("remove the Unix socket", path.display(), error);
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        let path = path.display();
        return Err(Error::invalid(format!("{path} is no socket: remove it, or use another path for LMTP")));
    }
    fs::remove_file(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any file at the path was replaced by the socket.
    #[tokio::test]
    async fn only_a_socket_that_nobody_serves_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lmtp");
        fs::write(&path, "notes").unwrap();
        let error = bind_unix(&path).unwrap_err();
        assert!(error.to_string().contains("is no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"notes");
        fs::remove_file(&path).unwrap();
        drop(bind_unix(&path).unwrap());
        let served = bind_unix(&path).unwrap();
        assert_eq!(bind_unix(&path).unwrap_err().kind(), restante_core::ErrorKind::Conflict);
        drop(served);
    }
}
