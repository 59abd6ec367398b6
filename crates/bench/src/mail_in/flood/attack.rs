//! Floods: clients that each do the same repeatedly, from many addresses.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_rustls::rustls::ClientConfig;

use super::{
    known::auth,
    setup::{DOMAIN, Target, VICTIMS, victim},
    wire::Wire,
};

/// Addresses of a flood, each in a network of its own.
const ADDRESSES: u64 = 1_000;
/// The time in which all clients of a flood connect, and how long a client whose connection has ended waits before the next one.
const RAMP: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(2);
/// The pause of a slow client after each byte.
const BYTE: Duration = Duration::from_secs(1);
/// Unknown recipients that a client sends at once.
const GUESSES: u64 = 20;
/// Passwords that a client tries on a connection.
const LOGINS: u64 = 3;

/// What the clients of a flood do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// They connect, introduce themselves and send no more.
    Connections,
    /// They send a byte a second: half of them of commands, half of a message.
    SlowTalkers,
    /// They send recipients that don't exist.
    UnknownRecipients,
    /// They log in with wrong passwords, half of them to accounts that exist.
    PasswordGuessing,
}

impl Kind {
    pub(super) const ALL: [Self; 4] =
        [Self::Connections, Self::SlowTalkers, Self::UnknownRecipients, Self::PasswordGuessing];

    /// Connections at once.
    pub(super) fn clients(self, is_quick: bool) -> u64 {
        match self {
            _ if is_quick => 20,
            Self::PasswordGuessing => 1_000,
            Self::Connections | Self::SlowTalkers | Self::UnknownRecipients => 2_000,
        }
    }

    /// The address of a client: 10.kind.x.y, different for each kind.
    fn address(self, number: u64) -> Ipv4Addr {
        let [.., high, low] = (number % ADDRESSES).to_be_bytes();
        Ipv4Addr::new(10 + self as u8, high, low, 1)
    }
}

/// What floods have done.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) attempts: AtomicU64,
    pub(super) refused: AtomicU64,
    /// Messages that were accepted; none should be.
    pub(super) accepted: AtomicU64,
}

impl Counts {
    fn attempt(&self, times: u64) {
        self.attempts.fetch_add(times, Ordering::Relaxed);
    }

    fn refuse(&self, times: u64) {
        self.refused.fetch_add(times, Ordering::Relaxed);
    }
}

/// A running flood.
pub(super) struct Flood(JoinSet<()>);

impl Flood {
    /// Starts the clients of these kinds.
    pub(super) fn start(
        kinds: &[Kind],
        is_quick: bool,
        target: &Target,
        tls: &Arc<ClientConfig>,
        counts: &Arc<Counts>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        for &kind in kinds {
            let clients = kind.clients(is_quick);
            for number in 0..clients {
                let server = match kind {
                    Kind::PasswordGuessing => target.submission,
                    Kind::Connections | Kind::SlowTalkers | Kind::UnknownRecipients => target.smtp,
                };
                let (tls, counts) = (tls.clone(), counts.clone());
                let client = Client { kind, number, server, tls, counts };
                let delay = RAMP.mul_f64(number as f64 / clients as f64);
                tasks.spawn(client.run(delay));
            }
        }
        Self(tasks)
    }

    /// Closes all connections.
    pub(super) async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

struct Client {
    kind: Kind,
    number: u64,
    server: SocketAddr,
    tls: Arc<ClientConfig>,
    counts: Arc<Counts>,
}

impl Client {
    async fn run(self, delay: Duration) {
        sleep(delay).await;
        for round in 0_u64.. {
            // The end of a connection is counted; a client of a flood goes on in any case.
            let _: io::Result<()> = match self.kind {
                Kind::Connections => self.hold().await,
                Kind::SlowTalkers => self.talk_slowly().await,
                Kind::UnknownRecipients => self.guess_recipients(round).await,
                Kind::PasswordGuessing => self.guess_passwords(round).await,
            };
            sleep(PAUSE).await;
        }
    }

    async fn greeted(&self) -> io::Result<Wire> {
        let mut wire = Wire::connect(self.server, self.kind.address(self.number)).await?;
        wire.expect(220).await?;
        wire.ask("EHLO flood.example\r\n", 250).await?;
        Ok(wire)
    }

    /// Holds a connection until the server closes it.
    async fn hold(&self) -> io::Result<()> {
        self.counts.attempt(1);
        let held = async { self.greeted().await?.reply().await }.await;
        self.counts.refuse(1); // nothing else ends it
        held.map(drop)
    }

    async fn talk_slowly(&self) -> io::Result<()> {
        self.counts.attempt(1);
        let ended = match self.number % 2 {
            0 => self.drip_commands().await,
            _ => self.drip_message().await,
        };
        self.counts.refuse(1);
        ended
    }

    async fn drip_commands(&self) -> io::Result<()> {
        let mut wire = self.greeted().await?;
        drip(&mut wire, b"NOOP and some more text that takes a minute or two until its end comes\r\n").await
    }

    async fn drip_message(&self) -> io::Result<()> {
        let mut wire = self.greeted().await?;
        wire.ask("MAIL FROM:<slow@flood.example>\r\n", 250).await?;
        wire.ask(&format!("RCPT TO:<{}>\r\n", victim(self.number % VICTIMS)), 250).await?;
        wire.ask("DATA\r\n", 354).await?;
        drip(&mut wire, b"Subject: slow\r\n\r\nA line of a message that has no end\r\n").await
    }

    /// Sends unknown recipients without waiting for replies.
    async fn guess_recipients(&self, round: u64) -> io::Result<()> {
        self.counts.attempt(GUESSES);
        let mut left = GUESSES;
        let named = async {
            let mut wire = self.greeted().await?;
            let mut commands = "MAIL FROM:<>\r\n".to_owned();
            for guess in 0..GUESSES {
                commands.push_str(&format!("RCPT TO:<guess{}-{round}-{guess}@{DOMAIN}>\r\n", self.number));
            }
            wire.send(commands.as_bytes()).await?;
            wire.expect(250).await?;
            while left > 0 {
                match wire.reply().await? {
                    250 => self.counts.accepted.fetch_add(1, Ordering::Relaxed),
                    _ => self.counts.refused.fetch_add(1, Ordering::Relaxed),
                };
                left -= 1;
            }
            io::Result::Ok(())
        };
        let named = named.await;
        self.counts.refuse(left); // the connection ended before their replies
        named
    }

    async fn guess_passwords(&self, round: u64) -> io::Result<()> {
        self.counts.attempt(LOGINS);
        let mut left = LOGINS;
        let tried = async {
            let mut wire = self.greeted().await?.start_tls(&self.tls).await?;
            wire.ask("EHLO flood.example\r\n", 250).await?;
            while left > 0 {
                let name = match (self.number + left) % 2 {
                    0 => victim((self.number + round) % VICTIMS),
                    _ => format!("nobody{}-{round}-{left}@{DOMAIN}", self.number),
                };
                wire.send(auth(&name, &format!("guess {round}")).as_bytes()).await?;
                match wire.reply().await? {
                    235 => self.counts.accepted.fetch_add(1, Ordering::Relaxed),
                    _ => self.counts.refused.fetch_add(1, Ordering::Relaxed),
                };
                left -= 1;
            }
            io::Result::Ok(())
        };
        let tried = tried.await;
        self.counts.refuse(left);
        tried
    }
}

/// Sends a byte a second, repeatedly, until the server closes the connection.
async fn drip(wire: &mut Wire, text: &[u8]) -> io::Result<()> {
    loop {
        for byte in text {
            let until = Instant::now() + BYTE;
            while let Ok(reply) = timeout_at(until, wire.reply()).await {
                reply?;
            }
            wire.send(std::slice::from_ref(byte)).await?;
        }
    }
}
