//! Makes a connection ready for messages: greeting, `EHLO`, TLS and log-in.

use std::sync::Arc;

use restante_mail::queue::Reply;
use restante_mail_wire::smtp::peer::{Extensions, PeerReply};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{
    config::Times,
    metrics::Protection,
    reply,
    wire::{Socket, Wire},
};

/// The credentials for a log-in.
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

/// The protection that a connection needs.
#[derive(Clone)]
pub(super) enum Demand {
    /// None: TLS failed before.
    Plain,
    /// TLS where the server has it, with any certificate.
    Opportunistic(Arc<ClientConfig>),
    /// TLS with a certificate for the name of the server.
    Verified(Arc<ClientConfig>),
}

/// Why a server can't be used.
pub(super) enum Failure {
    /// The reply for its recipients.
    Reply(Reply),
    /// TLS failed, before anything was sent.
    Tls(Reply),
}

impl From<Reply> for Failure {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

/// The parameters of a handshake.
pub(super) struct Handshake<'h> {
    /// The name of the server.
    pub(super) server: &'h str,
    /// The name of this server, for `EHLO`.
    pub(super) hostname: &'h str,
    pub(super) times: Times,
    pub(super) demand: Demand,
    /// Whether TLS begins before the greeting.
    pub(super) is_implicit: bool,
    pub(super) credentials: Option<&'h Credentials>,
}

/// A connection that is ready, and the extensions of its server.
pub(super) struct Ready {
    pub(super) wire: Wire,
    pub(super) extensions: Extensions,
    pub(super) protection: Protection,
}

impl Handshake<'_> {
    pub(super) async fn run(&self, socket: Box<dyn Socket>) -> Result<Ready, Failure> {
        let (mut wire, mut protection) = (Wire::new(socket), Protection::None);
        if self.is_implicit {
            (wire, protection) = Box::pin(self.encrypt(wire)).await?;
        }
        self.greeting(&mut wire).await?;
        let mut extensions = self.hello(&mut wire).await?;
        if protection == Protection::None {
            let is_started = self.start_tls(&mut wire, &extensions).await?;
            if is_started {
                (wire, protection) = Box::pin(self.encrypt(wire)).await?;
                extensions = self.hello(&mut wire).await?; // RFC 3207 §4.2: the earlier extensions are no longer valid
            }
        }
        if let Some(credentials) = self.credentials {
            self.log_in(&mut wire, &extensions, credentials).await?;
        }
        Ok(Ready { wire, extensions, protection })
    }

    async fn greeting(&self, wire: &mut Wire) -> Result<(), Failure> {
        let greeting =
            wire.reply(self.times.greeting).await.map_err(|error| error.reply("it was to greet"))?;
        if greeting.is_success() { Ok(()) } else { Err(reply::of(self.server, &greeting).into()) }
    }

    /// `EHLO`, or `HELO` for a server that does not know it.
    async fn hello(&self, wire: &mut Wire) -> Result<Extensions, Failure> {
        let ehlo = self.command(wire, &format!("EHLO {}\r\n", self.hostname)).await?;
        if ehlo.is_success() {
            return Ok(Extensions::of(&ehlo));
        }
        if ehlo.is_permanent() {
            let helo = self.command(wire, &format!("HELO {}\r\n", self.hostname)).await?;
            if helo.is_success() {
                let name = Extensions::of(&helo).name;
                return Ok(Extensions { name, ..Extensions::default() });
            }
            return Err(reply::of(self.server, &helo).into());
        }
        Err(reply::of(self.server, &ehlo).into())
    }

    /// Asks for TLS; returns whether its handshake follows.
    async fn start_tls(&self, wire: &mut Wire, extensions: &Extensions) -> Result<bool, Failure> {
        let is_demanded = matches!(self.demand, Demand::Verified(_));
        if matches!(self.demand, Demand::Plain) || !extensions.has_starttls && !is_demanded {
            return Ok(false);
        }
        if !extensions.has_starttls {
            let text = format!("the server {} has no TLS, which must be used", self.server);
            return Err(Reply::own(451, "4.7.10", text).into());
        }
        let started = self.command(wire, "STARTTLS\r\n").await?;
        match started.is_success() {
            true => Ok(true),
            false if is_demanded => Err(reply::temporary(self.server, &started, 451, "4.7.10").into()),
            false => Ok(false),
        }
    }

    /// The handshake of TLS.
    async fn encrypt(&self, wire: Wire) -> Result<(Wire, Protection), Failure> {
        let (config, protection) = match &self.demand {
            Demand::Verified(config) => (config, Protection::Verified),
            Demand::Opportunistic(config) => (config, Protection::Unverified),
            Demand::Plain => return Ok((wire, Protection::None)),
        };
        let failed = |what: &str| {
            Failure::Tls(Reply::own(451, "4.7.5", format!("TLS with {} failed: {what}", self.server)))
        };
        // Anything that was sent in the clear after the reply could be from anybody (CVE-2011-0411).
        let Some(socket) = wire.into_socket() else {
            return Err(failed("the server sent more than its reply before it"));
        };
        let literal = self.server.trim_start_matches('[').trim_end_matches(']');
        let name = literal.strip_prefix("IPv6:").unwrap_or(literal);
        let Ok(name) = ServerName::try_from(name.to_owned()) else { return Err(failed("its name is none")) };
        let connecting = Box::pin(TlsConnector::from(config.clone()).connect(name, socket));
        match timeout(self.times.command, connecting).await {
            Ok(Ok(stream)) => Ok((Wire::new(Box::new(stream)), protection)),
            Ok(Err(error)) => Err(failed(&error.to_string())),
            Err(_) => Err(failed("it took too long")),
        }
    }

    /// `AUTH` (RFC 4954). If the log-in fails, mail is delayed and not returned: the operator can correct it.
    async fn log_in(
        &self,
        wire: &mut Wire,
        extensions: &Extensions,
        credentials: &Credentials,
    ) -> Result<(), Failure> {
        let encode = |text: &str| base64_simd::STANDARD.encode_to_string(text);
        let Credentials { user, password } = credentials;
        let last = if extensions.has_auth_plain {
            let response = encode(&format!("\0{user}\0{password}"));
            self.command(wire, &format!("AUTH PLAIN {response}\r\n")).await?
        } else if extensions.has_auth_login {
            let mut last = self.command(wire, "AUTH LOGIN\r\n").await?;
            for answer in [user, password] {
                if last.code == 334 {
                    last = self.command(wire, &format!("{}\r\n", encode(answer))).await?;
                }
            }
            last
        } else {
            let text = format!("the server {} takes no log-in by PLAIN or LOGIN", self.server);
            return Err(Reply::own(454, "4.7.0", text).into());
        };
        if last.is_success() {
            Ok(())
        } else {
            Err(reply::temporary(self.server, &last, 454, "4.7.8").into())
        }
    }

    async fn command(&self, wire: &mut Wire, command: &str) -> Result<PeerReply, Failure> {
        let broken = |error: super::wire::WireError| error.reply("it said what it offers");
        wire.write(command.as_bytes(), self.times.command).await.map_err(broken)?;
        let found = wire.reply(self.times.command).await.map_err(broken)?;
        if found.code == 421 {
            return Err(reply::of(self.server, &found).into());
        }
        Ok(found)
    }
}
