//! A server that does what a test specifies, and logs what it receives.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_mail_wire::smtp::{DataDecoder, Newlines};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::super::{Network, Socket};

/// What the server does where a reply is due.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Sends these bytes.
    Say(String),
    /// Sends nothing any more.
    Hang,
    /// Closes the connection.
    Close,
    /// Sends these bytes and closes the connection.
    SayAndClose(String),
    /// Sends lines of a reply that never ends.
    Endless,
    /// Sends a byte now and then.
    Drip,
    /// Waits so long, and then sends these bytes.
    Late(Duration, String),
}

/// What the server has received.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) connections: usize,
    pub(super) commands: Vec<String>,
    /// Messages, as they are after the dots were removed.
    pub(super) messages: Vec<Vec<u8>>,
    /// Whether the last command came over TLS.
    pub(super) is_tls: bool,
}

#[derive(Clone, Default)]
pub(super) struct Fake {
    offers: Vec<String>,
    actions: HashMap<String, Action>,
    tls: Option<Arc<ServerConfig>>,
    /// The message is not read: the server stops reading after so many bytes of it.
    reads_max: Option<usize>,
    /// After so many messages of a connection it closes it, with this reply to the next command or without any.
    messages_max: Option<(usize, Option<&'static str>)>,
    pub(super) log: Arc<Mutex<Log>>,
}

impl Fake {
    pub(super) fn new(offers: &[&str]) -> Self {
        Self { offers: offers.iter().map(ToString::to_string).collect(), ..Self::default() }
    }

    /// Sets the action at `connect`, for a command (the first word, or `RCPT bob@example.net`), or at the `end` of a message.
    pub(super) fn at(mut self, moment: &str, action: Action) -> Self {
        self.actions.insert(moment.to_owned(), action);
        self
    }

    pub(super) fn says(self, moment: &str, reply: &str) -> Self {
        self.at(moment, Action::Say(format!("{reply}\r\n")))
    }

    pub(super) fn with_tls(mut self, tls: Arc<ServerConfig>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Reads so much of a message, and then does the action that is set for `middle`.
    pub(super) fn reads(mut self, bytes: usize) -> Self {
        self.reads_max = Some(bytes);
        self
    }

    /// Accepts so many messages on a connection, and then sends this reply to the next command, or closes the connection at once.
    pub(super) fn takes(mut self, messages: usize, then: Option<&'static str>) -> Self {
        self.messages_max = Some((messages, then));
        self
    }

    pub(super) fn commands(&self) -> Vec<String> {
        self.log.lock().commands.clone()
    }

    /// Commands that begin with a word.
    pub(super) fn count(&self, word: &str) -> usize {
        self.log.lock().commands.iter().filter(|command| command.starts_with(word)).count()
    }

    pub(super) fn messages(&self) -> Vec<String> {
        let log = self.log.lock();
        log.messages.iter().map(|message| String::from_utf8_lossy(message).into_owned()).collect()
    }

    fn action(&self, command: &str) -> Action {
        let word = command.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        let path = command.split(['<', '>']).nth(1).unwrap_or_default();
        let default = match word.as_str() {
            "CONNECT" => "220 mx.example.net ESMTP".to_owned(),
            "EHLO" => {
                let lines: Vec<&str> =
                    std::iter::once("mx.example.net").chain(self.offers.iter().map(String::as_str)).collect();
                let last = lines.len() - 1;
                let line =
                    |(at, text): (usize, &&str)| format!("250{}{text}", if at == last { ' ' } else { '-' });
                lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\r\n")
            }
            "DATA" => "354 go on".to_owned(),
            "END" => "250 2.0.0 taken".to_owned(),
            "STARTTLS" => "220 2.0.0 go on".to_owned(),
            "QUIT" => "221 2.0.0 bye".to_owned(),
            _ => "250 2.1.5 ok".to_owned(),
        };
        let exact = self.actions.get(command).or_else(|| self.actions.get(&format!("{word} {path}")));
        let found = exact
            .or_else(|| self.actions.get(&word.to_ascii_lowercase()))
            .or_else(|| self.actions.get(&word));
        found.cloned().unwrap_or_else(|| Action::Say(format!("{default}\r\n")))
    }

    async fn serve(self, socket: Box<dyn Socket>) -> io::Result<()> {
        let mut session = Session { socket, buffer: Vec::new() };
        let (mut is_tls, mut messages) = (false, 0);
        if !session.act(self.action("CONNECT")).await? {
            return Ok(());
        }
        loop {
            let enough = self.messages_max.filter(|(max, _)| messages == *max).map(|(_, then)| then);
            if let Some(None) = enough {
                return Ok(());
            }
            let Some(line) = session.line().await? else { return Ok(()) };
            if let Some(Some(then)) = enough {
                session.act(Action::Say(format!("{then}\r\n"))).await?;
                return Ok(());
            }
            {
                let mut log = self.log.lock();
                log.commands.push(line.clone());
                log.is_tls = is_tls;
            }
            let action = self.action(&line);
            let begins_data = line == "DATA"
                && matches!(&action, Action::Say(reply) | Action::Late(_, reply) if reply.starts_with("354"));
            let begins_tls =
                line == "STARTTLS" && matches!(&action, Action::Say(reply) if reply.starts_with("220"));
            if !session.act(action).await? {
                return Ok(());
            }
            if begins_data {
                if self.reads_max.is_some() {
                    session.skip(self.reads_max.unwrap_or_default()).await?;
                    if !session.act(self.action("MIDDLE")).await? {
                        return Ok(());
                    }
                }
                let message = session.message().await?;
                self.log.lock().messages.push(message);
                messages += 1;
                if !session.act(self.action("END")).await? {
                    return Ok(());
                }
            }
            if begins_tls && let Some(tls) = &self.tls {
                let stream = TlsAcceptor::from(tls.clone()).accept(session.socket).await?;
                session = Session { socket: Box::new(stream), buffer: Vec::new() };
                is_tls = true;
            }
        }
    }
}

struct Session {
    socket: Box<dyn Socket>,
    buffer: Vec<u8>,
}

impl Session {
    async fn fill(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 1_024];
        let length = self.socket.read(&mut chunk).await?;
        self.buffer.extend_from_slice(&chunk[..length]);
        Ok(length > 0)
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return Ok(Some(String::from_utf8_lossy(&line[..end]).into_owned()));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    async fn skip(&mut self, bytes: usize) -> io::Result<()> {
        while self.buffer.len() < bytes && self.fill().await? {}
        self.buffer.drain(..bytes.min(self.buffer.len()));
        Ok(())
    }

    async fn message(&mut self) -> io::Result<Vec<u8>> {
        let (mut decoder, mut message) = (DataDecoder::new(Newlines::Strict), Vec::new());
        loop {
            let consumed = decoder.decode(&self.buffer, &mut message);
            self.buffer.drain(..consumed);
            if decoder.is_done() {
                assert_eq!(decoder.error(), None, "a bare CR or LF, or a long line");
                return Ok(message);
            }
            if !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Returns whether the connection stays open.
    async fn act(&mut self, action: Action) -> io::Result<bool> {
        match action {
            Action::Say(text) => self.socket.write_all(text.as_bytes()).await?,
            Action::Late(time, text) => {
                sleep(time).await;
                self.socket.write_all(text.as_bytes()).await?;
            }
            Action::Hang => std::future::pending().await,
            Action::Close => return Ok(false),
            Action::SayAndClose(text) => {
                self.socket.write_all(text.as_bytes()).await?;
                return Ok(false);
            }
            Action::Endless => loop {
                self.socket.write_all(b"250-and more\r\n").await?;
            },
            Action::Drip => loop {
                self.socket.write_all(b"2").await?;
                sleep(Duration::from_secs(100)).await;
            },
        }
        self.socket.flush().await?;
        Ok(true)
    }
}

/// Servers by their addresses. Nobody listens at others.
pub(super) struct FakeNetwork(HashMap<SocketAddr, Fake>);

impl FakeNetwork {
    pub(super) fn of(servers: &[(&str, &Fake)]) -> Self {
        Self(servers.iter().map(|(address, fake)| (address.parse().unwrap(), (*fake).clone())).collect())
    }
}

#[async_trait]
impl Network for FakeNetwork {
    async fn connect(&self, address: SocketAddr) -> io::Result<Box<dyn Socket>> {
        let fake = self.0.get(&address).cloned().ok_or(io::ErrorKind::ConnectionRefused)?;
        if let Some(Action::Hang) = fake.actions.get("socket") {
            std::future::pending::<()>().await;
        }
        fake.log.lock().connections += 1;
        let (here, there) = duplex(8_192);
        tokio::spawn(fake.serve(Box::new(there)));
        Ok(Box::new(here))
    }
}
