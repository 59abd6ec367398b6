//! A connection from its greeting to its end.

mod auth;
mod checks;
mod commands;
mod entries;
mod envelope;
mod finish;
mod message;
mod pace;
mod submit;
mod wire;

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use restante_mail_wire::smtp::{LineError, LineReader, ReadLine, Reply};
use restante_net::{Activity, Connection, Stopping};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;

use self::{
    auth::Session, checks::ClientChecks, envelope::Transaction, message::TOO_SLOW, pace::Paces, wire::Wire,
};
use crate::{Protocol, door::Server, refusal::Refusal};

const CLOSING: Reply<'_> = Reply::new(421, "4.3.2", "the server is being stopped: try again later");
const TIMED_OUT: Reply<'_> = Reply::new(421, "4.4.2", "closed: nothing came in time");
const TOO_MANY_ERRORS: Reply<'_> = Reply::new(421, "4.7.0", "closed: too many errors");
const TOO_MANY_CONNECTS: Reply<'_> =
    Reply::new(421, "4.7.0", "too many connections from your address: try again later");
const TALKED_EARLY: Reply<'_> = Reply::new(554, "5.5.1", "closed: wait for the greeting before you send");
const BARE_NEWLINE: Reply<'_> = Reply::new(500, "5.5.2", "closed: a line must end with CRLF");
const LINE_TOO_LONG: Reply<'_> = Reply::new(500, "5.5.2", "the line is too long");
const TALKED_BEHIND_TLS: Reply<'_> =
    Reply::new(503, "5.5.1", "closed: nothing may follow STARTTLS before the handshake");

/// What the server knows of a client and its connection.
pub(crate) struct Client {
    server: Arc<Server>,
    protocol: Protocol,
    /// `None` on a Unix socket.
    address: Option<IpAddr>,
    /// The same with its port, or loopback for a Unix socket.
    peer: std::net::SocketAddr,
    /// Whether bare newlines are repaired and spam flags are trusted.
    is_trusted: bool,
    activity: Arc<Activity>,
    stopping: Stopping,
    lines: LineReader,
    is_tls: bool,
    /// Whether the listener offers TLS and the connection doesn't use it yet.
    offers_tls: bool,
    hello: Option<Hello>,
    transaction: Option<Transaction>,
    /// Errors since the last message.
    errors: u32,
    /// Unknown recipients since the beginning.
    unknown: u32,
    /// The log-in of the client, if there is one.
    session: Option<Session>,
    /// Failed log-ins since the beginning.
    failed_logins: u32,
    /// `None` where mail is not checked: submission, LMTP, and exempt clients.
    checks: Option<ClientChecks>,
    paces: Paces,
}

/// How the client has introduced itself.
#[derive(Clone, Debug)]
struct Hello {
    name: String,
    /// Whether it used the extended greeting, EHLO or LHLO.
    is_extended: bool,
}

/// How the dialogue continues after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Command,
    StartTls,
    Close,
}

/// What was read for the next command.
enum Read {
    Line(Result<Vec<u8>, LineError>),
    /// The reply that closes the connection.
    Close(Option<Reply<'static>>),
}

/// Serves a connection of a listener until its end.
pub(crate) async fn serve(connection: Connection, server: Arc<Server>, protocol: Protocol, is_unix: bool) {
    let Connection { stream, peer, start_tls, activity, mut stopping, .. } = connection;
    server.metrics.count_connection(protocol);
    let address = (!is_unix).then(|| peer.ip().to_canonical());
    let is_trusted = protocol == Protocol::Lmtp
        && address.is_none_or(|ip| server.lmtp.trusted.iter().any(|trusted| trusted.to_canonical() == ip));
    let mut client = Client {
        server,
        protocol,
        address,
        peer,
        is_trusted,
        activity,
        stopping: stopping.clone(),
        lines: LineReader::default(),
        is_tls: protocol == Protocol::Submissions,
        offers_tls: start_tls.is_some(),
        hello: None,
        transaction: None,
        errors: 0,
        unknown: 0,
        session: None,
        failed_logins: 0,
        checks: None,
        paces: Paces::default(),
    };
    let mut wire = Wire::new(stream);
    let mut start_tls = start_tls;
    let mut next = client.greet(&mut wire).await;
    loop {
        match next {
            Ok(Next::Command) => next = client.dialogue(&mut wire).await,
            Ok(Next::StartTls) => {
                let Some(start) = start_tls.take() else { return };
                let Some((stream, _)) = start.shake_hands(wire.into_stream()).await else { return };
                wire = Wire::new(stream);
                client.forget_before_tls();
                next = Ok(Next::Command);
            }
            Ok(Next::Close) => {
                client.note_missing_chunks();
                if wire.flush().await.is_ok() {
                    wire.into_stream().close(&mut stopping).await;
                }
                return;
            }
            Err(error) => {
                client.note_missing_chunks();
                return debug!(%error, "connection broke off");
            }
        }
    }
}

impl Client {
    /// Greets the client, or refuses it.
    async fn greet(&mut self, wire: &mut Wire) -> io::Result<Next> {
        if self.protocol != Protocol::Lmtp && !self.server.rates.admits_connection(self.peer) {
            return close(wire, TOO_MANY_CONNECTS);
        }
        self.begin_checks();
        if self.protocol == Protocol::Smtp {
            // RFC 5321 §3.1: a client must wait for the greeting. Programs that don't are spammers.
            let delay = Duration::from_millis(self.server.config.greeting_delay_ms);
            match timeout(delay, wire.fill()).await {
                Err(_) => {}
                Ok(Ok(0)) => return Ok(Next::Close),
                Ok(Ok(_)) => return close(wire, TALKED_EARLY),
                Ok(Err(error)) => return Err(error),
            }
        }
        let name = match self.protocol {
            Protocol::Smtp | Protocol::Submission | Protocol::Submissions => "ESMTP",
            Protocol::Lmtp => "LMTP",
        };
        wire.reply(Reply::new(220, "", &format!("{} {name}", self.server.config.hostname)));
        Ok(Next::Command)
    }

    /// Answers commands until TLS begins or the connection ends.
    async fn dialogue(&mut self, wire: &mut Wire) -> io::Result<Next> {
        loop {
            let line = match self.read_line(wire).await? {
                Read::Line(line) => line,
                Read::Close(reply) => {
                    if let Some(reply) = reply {
                        wire.reply(reply);
                    }
                    return Ok(Next::Close);
                }
            };
            let next = match line {
                Ok(line) => self.command(wire, &line).await?,
                Err(LineError::TooLong) => self.refuse(wire, LINE_TOO_LONG),
                Err(LineError::BareNewline) => close(wire, BARE_NEWLINE)?,
            };
            match next {
                Next::Command => wire.flush_if_full().await?,
                // RFC 3207 §4.2: what a stranger may have injected after the command must not count as protected.
                Next::StartTls if !wire.unread().is_empty() => {
                    wire.drop_replies();
                    return close(wire, TALKED_BEHIND_TLS);
                }
                Next::StartTls => {
                    wire.flush().await?;
                    return Ok(Next::StartTls);
                }
                Next::Close => return Ok(Next::Close),
            }
        }
    }

    /// The next command line. Replies are sent before this waits for bytes (RFC 2920 §3.2).
    async fn read_line(&mut self, wire: &mut Wire) -> io::Result<Read> {
        let deadline = Instant::now() + self.server.config.command_timeout();
        loop {
            let ReadLine { consumed, line } = self.lines.next(wire.unread());
            let line = line.map(|line| line.map(<[u8]>::to_vec));
            wire.consume(consumed);
            if let Some(line) = line {
                return Ok(Read::Line(line));
            }
            wire.flush().await?;
            let begun = Instant::now();
            let check = begun + self.pace_interval();
            let filled = tokio::select! {
                filled = timeout_at(deadline.min(check), wire.fill()) => filled,
                () = self.stopping.begun() => return Ok(Read::Close(Some(CLOSING))),
                () = auth::over(&mut self.session) => {
                    return Ok(Read::Close(Some(Refusal::LoginOver.reply())));
                }
            };
            let bytes = filled.as_ref().ok().and_then(|read| read.as_ref().ok()).copied();
            self.note_pace(begun.elapsed(), bytes.unwrap_or_default());
            match filled {
                Ok(Ok(0)) => return Ok(Read::Close(None)),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) if self.is_in_the_way() => return Ok(Read::Close(Some(TOO_SLOW))),
                Err(_) if Instant::now() < deadline => {}
                Err(_) => return Ok(Read::Close(Some(TIMED_OUT))),
            }
        }
    }

    /// Notes in the journal a message whose chunks have begun but whose last one never came.
    fn note_missing_chunks(&self) {
        if let Some(transaction) = &self.transaction
            && let Some(incoming) = &transaction.incoming
        {
            self.note_unfinished(transaction, incoming, None);
        }
    }

    /// Whether the chunks of a message have stalled although others wait for its memory.
    fn is_in_the_way(&self) -> bool {
        let incoming = self.transaction.as_ref().and_then(|transaction| transaction.incoming.as_ref());
        incoming.is_some_and(|incoming| incoming.is_in_the_way(self.is_slow()))
    }

    /// Replies to a command that was wrong, and ends the connection after too many.
    fn refuse(&mut self, wire: &mut Wire, reply: Reply<'_>) -> Next {
        wire.reply(reply);
        self.errors += 1;
        if self.errors < self.server.config.errors_max.get() {
            return Next::Command;
        }
        wire.reply(TOO_MANY_ERRORS);
        Next::Close
    }

    /// RFC 3207 §4.2: both sides discard what was sent in the clear.
    fn forget_before_tls(&mut self) {
        self.lines = LineReader::default();
        self.is_tls = true;
        self.offers_tls = false;
        self.hello = None;
        self.session = None;
        self.transaction = None;
    }
}

/// Ends the connection with a reply.
fn close(wire: &mut Wire, reply: Reply<'_>) -> io::Result<Next> {
    wire.reply(reply);
    Ok(Next::Close)
}
