//! Sends messages to other servers by SMTP (RFC 5321).

mod config;
mod connection;
mod fit;
mod handshake;
mod metrics;
mod mta_sts;
mod policy;
mod reply;
mod trust;
mod wire;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use restante_mail::queue::Reply;
use restante_net::{
    dns::{Answer, Resolver},
    tls::{ClientTls, Roots, TlsError, Verify},
};
use rustls::ClientConfig;
use tokio::{io::AsyncReadExt, time::timeout};
use tracing::{debug, warn};

pub use config::RemoteConfig;
pub use metrics::RemoteMetrics;
pub use mta_sts::StsPolicies;
pub use policy::{NoPolicies, TlsPolicies, TlsPolicy};
pub use wire::{Network, Socket, TcpNetwork};

use crate::{
    Connection, Remote, Signer,
    route::{OwnHost, Route, Router, Server},
};
use config::Times;
use connection::{RemoteConnection, Session};
use handshake::{Credentials, Demand, Failure, Handshake};
use trust::TrustedTls;

/// The maximum length of the file of credentials.
const CREDENTIALS_BYTES_MAX: u64 = 4_096;

/// What sending needs in addition to its settings.
pub struct RemoteParts {
    /// Looks servers up.
    pub resolver: Arc<dyn Resolver>,
    /// Connects to them.
    pub network: Arc<dyn Network>,
    /// Knows what their domains demand of connections.
    pub policies: Arc<dyn TlsPolicies>,
    /// Signs messages.
    pub signer: Arc<dyn Signer>,
    /// This server; its first name is used for `EHLO`.
    pub own: OwnHost,
    /// Determines the order of equal servers.
    pub seed: u64,
    /// Metrics.
    pub metrics: RemoteMetrics,
}

/// Other servers, reached by SMTP: those of each domain, or a smarthost for all.
pub struct SmtpRemote(Arc<Origin>);

/// What all connections share.
struct Origin {
    router: Router,
    resolver: Arc<dyn Resolver>,
    network: Arc<dyn Network>,
    policies: Arc<dyn TlsPolicies>,
    signer: Arc<dyn Signer>,
    hostname: String,
    smarthost: Option<Smarthost>,
    times: Times,
    addresses_max: usize,
    any_certificate: Arc<ClientConfig>,
    trust: TrustedTls,
    metrics: RemoteMetrics,
}

/// A server that takes mail for all domains.
struct Smarthost {
    host: String,
    port: u16,
    credentials: PathBuf,
}

impl SmtpRemote {
    /// Sends with these settings, in which [`RemoteConfig::problem`] has found nothing wrong.
    ///
    /// # Errors
    /// TLS can't be set up.
    pub fn new(config: &RemoteConfig, parts: RemoteParts) -> Result<Self, TlsError> {
        let RemoteParts { resolver, network, policies, signer, own, seed, metrics } = parts;
        let any = ClientTls { verify: Verify::Nothing, roots: Roots::System, identity: None };
        let smarthost = config.smarthost_parts().map(|(host, port)| Smarthost {
            host,
            port,
            credentials: config.smarthost_credentials.clone(),
        });
        let hostname = own.names.first().cloned().unwrap_or_else(|| "localhost".to_owned());
        let addresses_max = config.addresses_max.get();
        Ok(Self(Arc::new(Origin {
            router: Router::new(resolver.clone(), own, config.port.get(), addresses_max, seed),
            resolver,
            network,
            policies,
            signer,
            hostname,
            smarthost,
            times: Times::of(config),
            addresses_max,
            any_certificate: Arc::new(any.config()?),
            trust: TrustedTls::new(&config.authorities),
            metrics,
        })))
    }
}

impl Origin {
    /// A connection that is ready for messages to a domain.
    async fn session(&self, domain: &str) -> Result<Session, Reply> {
        let connecting = async {
            match &self.smarthost {
                Some(smarthost) => Box::pin(self.to_smarthost(smarthost)).await,
                None => Box::pin(self.to_domain(domain)).await,
            }
        };
        let connected = timeout(self.times.session, connecting).await;
        let connected = connected.unwrap_or_else(|_| {
            Err(Reply::own(451, "4.4.1", format!("no server of {domain} was ready for a message in time")))
        });
        self.metrics.count_connect(connected.as_ref().err());
        connected
    }

    /// A connection to a server of a domain.
    async fn to_domain(&self, domain: &str) -> Result<Session, Reply> {
        let Route { servers, missing } = self.router.route(domain).await?;
        let policy = self.policies.policy_of(domain).await;
        let demand = match &policy {
            TlsPolicy::Opportunistic => Demand::Opportunistic(self.any_certificate.clone()),
            TlsPolicy::Verified { .. } => Demand::Verified(self.verifying().await?),
        };
        let mut refusals = Refusals::default();
        for server in servers {
            if !policy.allows(&server.name) {
                let text = format!("the policy of {domain} does not name the server {}", server.name);
                refusals.add(Reply::own(451, "4.7.0", text));
                continue;
            }
            match self.open(&server, &demand, false, None).await {
                Ok(connection) if self.is_own(&connection) => {
                    refusals.add(Reply::own(554, "5.4.6", format!("the server {} is this one", server.name)));
                }
                Ok(connection) => return Ok(connection),
                Err(reply) => refusals.add(reply),
            }
        }
        let reply = refusals.result();
        Err(match missing {
            Some(missing) if reply.is_permanent() => not_all_tried(&missing, reply),
            _ => reply,
        })
    }

    /// Whether a connection has led to this server: the other side has the same name.
    fn is_own(&self, connection: &Session) -> bool {
        self.router.own().is_name(&connection.extensions.name)
    }

    /// A connection to the smarthost.
    async fn to_smarthost(&self, smarthost: &Smarthost) -> Result<Session, Reply> {
        let credentials = smarthost.credentials().await?;
        let is_implicit = smarthost.port == 465;
        // RFC 8314 §3: passwords are sent only to a server that was verified.
        let demand = match &credentials {
            Some(_) => Demand::Verified(self.verifying().await?),
            None => Demand::Opportunistic(self.any_certificate.clone()),
        };
        let mut refusals = Refusals::default();
        for ip in self.addresses_of(&smarthost.host).await? {
            let server =
                Server { name: smarthost.host.clone(), address: SocketAddr::new(ip, smarthost.port) };
            match self.open(&server, &demand, is_implicit, credentials.as_ref()).await {
                Ok(connection) => return Ok(connection),
                // A refusal before there is a message is about this server, and not about the recipients.
                Err(reply) => refusals.add(made_temporary(reply)),
            }
        }
        Err(refusals.result())
    }

    async fn addresses_of(&self, host: &str) -> Result<Vec<IpAddr>, Reply> {
        if let Ok(ip) = host.parse() {
            return Ok(vec![ip]);
        }
        match self.resolver.addresses(host).await {
            Answer::Found(mut addresses) => {
                addresses.truncate(self.addresses_max);
                Ok(addresses)
            }
            Answer::NoSuchName | Answer::NoRecords => {
                Err(Reply::own(450, "4.4.4", format!("the smarthost {host} has no address")))
            }
            Answer::Temporary(why) => {
                Err(Reply::own(450, "4.4.3", format!("the smarthost {host} can't be looked up now: {why}")))
            }
        }
    }

    /// A connection to one server. If TLS fails and is not demanded, another connection without TLS (RFC 7435 §3).
    async fn open(
        &self,
        server: &Server,
        demand: &Demand,
        is_implicit: bool,
        credentials: Option<&Credentials>,
    ) -> Result<Session, Reply> {
        match Box::pin(self.open_once(server, demand.clone(), is_implicit, credentials)).await {
            Ok(connection) => Ok(connection),
            Err(Failure::Reply(reply)) => Err(reply),
            Err(Failure::Tls(reply)) if matches!(demand, Demand::Verified(_)) || is_implicit => Err(reply),
            Err(Failure::Tls(reply)) => {
                debug!(server = %server.name, why = %reply.text, "TLS failed: trying without");
                let plain = Box::pin(self.open_once(server, Demand::Plain, false, None)).await;
                plain.map_err(|failure| match failure {
                    Failure::Reply(reply) | Failure::Tls(reply) => reply,
                })
            }
        }
    }

    async fn open_once(
        &self,
        server: &Server,
        demand: Demand,
        is_implicit: bool,
        credentials: Option<&Credentials>,
    ) -> Result<Session, Failure> {
        let name = &server.name;
        let connecting = self.network.connect(server.address);
        let socket = match timeout(self.times.connect, connecting).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => {
                let text = format!("no connection to {name} ({}): {}", server.address, error.kind());
                return Err(Reply::own(451, "4.4.1", text).into());
            }
            Err(_) => {
                let text = format!("no connection to {name} ({}): it took too long", server.address);
                return Err(Reply::own(451, "4.4.1", text).into());
            }
        };
        let hostname = &self.hostname;
        let handshake =
            Handshake { server: name, hostname, times: self.times, demand, is_implicit, credentials };
        let ready = handshake.run(socket).await?;
        self.metrics.count_tls(ready.protection);
        Ok(Session {
            wire: ready.wire,
            extensions: ready.extensions,
            server: name.clone(),
            times: self.times,
            signer: self.signer.clone(),
            is_open: true,
            needs_reset: false,
            has_replied: false,
        })
    }

    /// The configuration of TLS that checks certificates.
    async fn verifying(&self) -> Result<Arc<ClientConfig>, Reply> {
        self.trust.config().await.map_err(|error| {
            warn!(error, "certificates of other servers can't be checked: mail that needs it waits");
            Reply::own(451, "4.7.5", "certificates of other servers can't be checked now")
        })
    }
}

#[async_trait]
impl Remote for SmtpRemote {
    async fn connect(&self, domain: &str) -> Result<Box<dyn Connection>, Reply> {
        let session = self.0.session(domain).await?;
        Ok(Box::new(RemoteConnection::new(self.0.clone(), domain, session)))
    }
}

impl Smarthost {
    /// The credentials, from their file.
    async fn credentials(&self) -> Result<Option<Credentials>, Reply> {
        if self.credentials.as_os_str().is_empty() {
            return Ok(None);
        }
        let wrong = |what: String| {
            warn!(file = %self.credentials.display(), what, "the credentials of the smarthost can't be used");
            Reply::own(451, "4.7.8", "this server has no credentials for its smarthost now")
        };
        let mut text = String::new();
        let file =
            tokio::fs::File::open(&self.credentials).await.map_err(|error| wrong(error.to_string()))?;
        let mut file = file.take(CREDENTIALS_BYTES_MAX);
        file.read_to_string(&mut text).await.map_err(|error| wrong(error.to_string()))?;
        let line = text.lines().next().unwrap_or_default();
        match line.split_once(':') {
            Some((user, password)) if !user.is_empty() && !line.contains('\0') => {
                Ok(Some(Credentials { user: user.to_owned(), password: password.to_owned() }))
            }
            _ => Err(wrong("expected one line user:password".to_owned())),
        }
    }
}

/// What servers of one domain replied before they were ready.
#[derive(Default)]
struct Refusals(Option<Reply>);

impl Refusals {
    /// The first temporary refusal takes precedence over permanent ones: another server may take the mail later.
    fn add(&mut self, reply: Reply) {
        let is_better = self.0.as_ref().is_none_or(|first| first.is_permanent() && !reply.is_permanent());
        if is_better {
            self.0 = Some(reply);
        }
    }

    fn result(self) -> Reply {
        self.0.unwrap_or_else(|| Reply::own(451, "4.4.1", "no server could be tried"))
    }
}

fn made_temporary(reply: Reply) -> Reply {
    if !reply.is_permanent() {
        return reply;
    }
    let enhanced = reply.enhanced.get(1..).map_or_else(|| "4.0.0".to_owned(), |rest| format!("4{rest}"));
    Reply::own(451, &enhanced, quoted(reply))
}

/// The reply for a permanent refusal if not all servers of the domain were tried: another one may take the mail later (RFC 5321 §5.1).
fn not_all_tried(missing: &str, reply: Reply) -> Reply {
    Reply::own(450, "4.4.3", format!("{missing}; {}", quoted(reply)))
}

/// A reply quoted in a text of this server: it gets another code, so it is no longer the reply of the other server.
fn quoted(reply: Reply) -> String {
    let who = reply.from.map(|server| format!("the server {server} replied ")).unwrap_or_default();
    format!("{who}{} {}", reply.code, reply.text)
}

#[cfg(test)]
mod tests;
