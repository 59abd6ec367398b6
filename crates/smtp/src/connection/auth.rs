//! Log-ins: `AUTH` (RFC 4954).

use std::{io, sync::Arc, time::Duration};

use restante_directory::{
    AccountChange, AccountChanges, Directory, EmailAddress, Login, LoginError, Mechanism, Scope,
};
use restante_mail_wire::smtp::{AuthResponse, LineError, Reply, challenge_text};
use tokio::time::sleep;
use tracing::{debug, warn};

use super::{CLOSING, Client, Next, Read, envelope::delay_of, wire::Wire};

/// What `EHLO` offers.
pub(super) const MECHANISMS: &str = "PLAIN LOGIN SCRAM-SHA-256";

const LOGGED_IN: Reply<'_> = Reply::new(235, "2.7.0", "logged in");
const NOT_OFFERED: Reply<'_> = Reply::new(502, "5.5.1", "AUTH is not offered");
const NO_HELLO: Reply<'_> = Reply::new(503, "5.5.1", "introduce yourself with EHLO first");
const LOGGED_IN_ALREADY: Reply<'_> = Reply::new(503, "5.5.1", "you have logged in");
const IN_MESSAGE: Reply<'_> = Reply::new(503, "5.5.1", "a message has begun");
const NEEDS_TLS: Reply<'_> = Reply::new(538, "5.7.11", "logging in needs TLS");
const NO_MECHANISM: Reply<'_> = Reply::new(504, "5.5.4", "the mechanism is not offered");
const NOT_BASE64: Reply<'_> = Reply::new(501, "5.5.2", "the response is no base64");
const TOO_LONG: Reply<'_> = Reply::new(500, "5.5.6", "the response is too long");
const GIVEN_UP: Reply<'_> = Reply::new(501, "5.7.0", "the log-in was given up");
const REFUSED: Reply<'_> = Reply::new(535, "5.7.8", "the name or the password is wrong");
const BUSY: Reply<'_> = Reply::new(454, "4.7.0", "logging in is not possible now: try again later");
const LIMITED: Reply<'_> = Reply::new(454, "4.7.0", "too many log-ins have failed: try again later");

/// How long to wait before a log-in that could not be checked is checked again.
const RETRY: Duration = Duration::from_secs(1);

/// A client that has logged in.
pub(super) struct Session {
    pub(super) login: Arc<Login>,
    directory: Directory,
    changes: AccountChanges,
    /// Whether the account has changed since the log-in was last checked.
    is_doubtful: bool,
}

impl Session {
    /// Returns when the log-in is no longer valid. Cancel-safe.
    async fn over(&mut self) {
        loop {
            if self.is_doubtful {
                match self.directory.holds(&self.login).await {
                    Ok(true) => self.is_doubtful = false,
                    Ok(false) => return,
                    Err(error) => {
                        debug!(%error, "a log-in can't be checked");
                        sleep(RETRY).await;
                    }
                }
                continue;
            }
            match self.changes.next().await {
                Some(AccountChange::Account(account)) if account != self.login.account => {}
                Some(_) => self.is_doubtful = true,
                None => return, // the directory is gone
            }
        }
    }
}

/// Waits until the log-in of a client is no longer valid; for ever if it has none.
pub(super) async fn over(session: &mut Option<Session>) {
    match session {
        Some(session) => session.over().await,
        None => std::future::pending().await,
    }
}

/// Why a log-in failed.
enum Failed {
    /// The client gets this reply, and it counts as an error.
    Reply(Reply<'static>),
    /// The same, and the reply is delayed: the client may be guessing passwords.
    Wrong(Reply<'static>),
    /// The connection ends.
    Closed(Option<Reply<'static>>),
    Io(io::Error),
}

impl From<LoginError> for Failed {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::Refused | LoginError::Scram(_) => Self::Wrong(REFUSED),
            LoginError::Limited { .. } => Self::Wrong(LIMITED),
            LoginError::Failed(error) => {
                debug!(%error, "a log-in could not be checked");
                Self::Reply(BUSY)
            }
        }
    }
}

impl Client {
    /// `AUTH`.
    pub(super) async fn auth(
        &mut self,
        wire: &mut Wire,
        mechanism: &str,
        response: Option<&str>,
    ) -> io::Result<Next> {
        let Some(directory) = self.directory() else { return Ok(self.refuse(wire, NOT_OFFERED)) };
        if !self.hello.as_ref().is_some_and(|hello| hello.is_extended) {
            return Ok(self.refuse(wire, NO_HELLO));
        }
        if self.session.is_some() {
            return Ok(self.refuse(wire, LOGGED_IN_ALREADY));
        }
        if self.transaction.is_some() {
            return Ok(self.refuse(wire, IN_MESSAGE));
        }
        if !self.may_log_in() {
            return Ok(self.refuse(wire, NEEDS_TLS));
        }
        let changes = directory.changes(); // subscribed before the password is checked
        let mut stopping = self.stopping.clone();
        let logged_in = tokio::select! {
            biased;
            logged_in = Box::pin(self.exchange(wire, &directory, mechanism, response)) => logged_in,
            // Hundreds of passwords may wait to be checked, which takes longer than a stop may.
            () = stopping.begun() => Err(Failed::Closed(Some(CLOSING))),
        };
        let logged_in = match logged_in {
            Ok(login) => admitted(&directory, login).await,
            failed => failed,
        };
        match logged_in {
            Ok(login) => {
                self.session = Some(Session { login, directory, changes, is_doubtful: false });
                wire.reply(LOGGED_IN);
                Ok(Next::Command)
            }
            Err(Failed::Reply(reply)) => Ok(self.refuse(wire, reply)),
            Err(Failed::Wrong(reply)) => self.slow_down_login(wire, reply).await,
            Err(Failed::Closed(reply)) => {
                if let Some(reply) = reply {
                    wire.reply(reply);
                }
                Ok(Next::Close)
            }
            Err(Failed::Io(error)) => Err(error),
        }
    }

    /// Whether a client may log in on this connection: only where nobody on the network can read its password.
    pub(super) fn may_log_in(&self) -> bool {
        let Some(submission) = self.server.submission.as_ref().filter(|_| self.protocol.is_submission())
        else {
            return false;
        };
        let is_loopback = self.peer.ip().to_canonical().is_loopback();
        self.is_tls || (submission.config.allow_plaintext_loopback && is_loopback)
    }

    fn directory(&self) -> Option<Directory> {
        let submission = self.server.submission.as_ref().filter(|_| self.protocol.is_submission());
        submission.map(|submission| submission.directory.clone())
    }

    async fn exchange(
        &mut self,
        wire: &mut Wire,
        directory: &Directory,
        mechanism: &str,
        response: Option<&str>,
    ) -> Result<Arc<Login>, Failed> {
        let initial = match response {
            None => None,
            Some(text) => Some(AuthResponse::parse_initial(text).ok_or(Failed::Reply(NOT_BASE64))?),
        };
        let is = |name: &str| mechanism.eq_ignore_ascii_case(name);
        if is("PLAIN") {
            self.plain(wire, directory, initial).await
        } else if is("LOGIN") {
            self.login(wire, directory, initial).await
        } else if is("SCRAM-SHA-256") {
            self.scram(wire, directory, initial).await
        } else {
            Err(Failed::Reply(NO_MECHANISM))
        }
    }

    /// SASL PLAIN (RFC 4616): the identity to act as, the name and the password, with NUL between them.
    async fn plain(
        &mut self,
        wire: &mut Wire,
        directory: &Directory,
        initial: Option<Vec<u8>>,
    ) -> Result<Arc<Login>, Failed> {
        let message = match initial {
            Some(message) => message,
            None => self.challenge(wire, b"").await?,
        };
        let message = String::from_utf8(message).map_err(|_| Failed::Wrong(REFUSED))?;
        let mut parts = message.split('\0');
        let (Some(identity), Some(name), Some(password), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Failed::Wrong(REFUSED));
        };
        if !identity.is_empty() && !is_same(identity, name) {
            return Err(Failed::Wrong(REFUSED));
        }
        Ok(directory.check_password(self.peer.ip(), name, password).await?)
    }

    /// LOGIN, which has no standard but is all that some clients support: the name, then the password. Those clients recognize
    /// the prompts by their texts.
    async fn login(
        &mut self,
        wire: &mut Wire,
        directory: &Directory,
        initial: Option<Vec<u8>>,
    ) -> Result<Arc<Login>, Failed> {
        let name = match initial {
            Some(name) => name,
            None => self.challenge(wire, b"Username:").await?,
        };
        let password = self.challenge(wire, b"Password:").await?;
        let (Ok(name), Ok(password)) = (String::from_utf8(name), String::from_utf8(password)) else {
            return Err(Failed::Wrong(REFUSED));
        };
        Ok(directory.check_password(self.peer.ip(), &name, &password).await?)
    }

    /// SCRAM-SHA-256 (RFC 7677). Its `-PLUS` form is not offered: clients fail when they use it behind a proxy.
    async fn scram(
        &mut self,
        wire: &mut Wire,
        directory: &Directory,
        initial: Option<Vec<u8>>,
    ) -> Result<Arc<Login>, Failed> {
        let first = match initial {
            Some(first) => first,
            None => self.challenge(wire, b"").await?,
        };
        let (peer, mechanism) = (self.peer.ip(), Mechanism::ScramSha256);
        let exchange = directory.begin_scram(peer, mechanism, &first, (&[], false)).await?;
        let identity = exchange.authorization().map(str::to_owned);
        let last = self.challenge(wire, exchange.message().as_bytes()).await?;
        let (login, message) = exchange.finish(&last).await?;
        if identity.is_some_and(|identity| !is_same(&identity, &login.address.to_string())) {
            return Err(Failed::Wrong(REFUSED));
        }
        // RFC 4954 §4: additional data at the end of an exchange is sent as one more challenge, to which the response is empty.
        match self.challenge(wire, message.as_bytes()).await?.as_slice() {
            [] => Ok(login),
            _ => Err(Failed::Wrong(REFUSED)),
        }
    }

    /// Sends a challenge, and waits for the response to it.
    async fn challenge(&mut self, wire: &mut Wire, challenge: &[u8]) -> Result<Vec<u8>, Failed> {
        wire.reply(Reply::new(334, "", &challenge_text(challenge)));
        let line = match self.read_line(wire).await.map_err(Failed::Io)? {
            Read::Line(Ok(line)) => line,
            Read::Line(Err(LineError::TooLong)) => return Err(Failed::Reply(TOO_LONG)),
            Read::Line(Err(LineError::BareNewline)) => return Err(Failed::Closed(Some(super::BARE_NEWLINE))),
            Read::Close(reply) => return Err(Failed::Closed(reply)),
        };
        match AuthResponse::parse(&line) {
            Some(AuthResponse::Bytes(bytes)) => Ok(bytes),
            Some(AuthResponse::Cancel) => Err(Failed::Reply(GIVEN_UP)),
            None => Err(Failed::Reply(NOT_BASE64)),
        }
    }

    /// Replies to a failed log-in; from the third of a connection on, each reply is delayed longer.
    async fn slow_down_login(&mut self, wire: &mut Wire, reply: Reply<'static>) -> io::Result<Next> {
        self.failed_logins = self.failed_logins.saturating_add(1);
        let delay = delay_of(self.failed_logins, Duration::from_millis(self.server.config.unknown_delay_ms));
        if !delay.is_zero() {
            wire.flush().await?;
            tokio::select! {
                () = sleep(delay) => {}
                () = self.stopping.begun() => {}
            }
        }
        Ok(self.refuse(wire, reply))
    }
}

/// Checks that a login may send, and that it is still valid although the account may have changed while it was checked.
async fn admitted(directory: &Directory, login: Arc<Login>) -> Result<Arc<Login>, Failed> {
    if !login.allows(Scope::Send) {
        return Err(Failed::Wrong(REFUSED));
    }
    match directory.holds(&login).await {
        Ok(true) => Ok(login),
        Ok(false) => Err(Failed::Wrong(REFUSED)),
        Err(error) => {
            warn!(%error, "a log-in could not be checked");
            Err(Failed::Reply(BUSY))
        }
    }
}

/// Whether two names are the same address.
fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<EmailAddress>(), other.parse::<EmailAddress>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
