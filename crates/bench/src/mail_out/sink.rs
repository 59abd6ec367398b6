//! Servers that accept mail: one listener for all addresses of loopback, where the address selects how the server behaves.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::Servers;
use crate::measure::Latencies;

/// How long a slow server takes for each reply.
const SLOW: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(2);
/// The bench sends no longer lines or mails.
const LINE_BYTES_MAX: u64 = 4_096;
/// One in this many domains has a server that fails, and one a slow one.
const ONE_IN: u64 = 10;
/// The second byte of an address.
const WORKS: u8 = 1;
const IS_SLOW: u8 = 2;
const IS_DEAD: u8 = 3;

/// The address of the server of a domain.
pub(super) fn ip(domain: u64, servers: Servers) -> IpAddr {
    let kind = match (servers, domain % ONE_IN) {
        (Servers::SomeFail, 0) => IS_DEAD,
        (Servers::SomeFail, 1) => IS_SLOW,
        _ => WORKS,
    };
    let [.., high, low] = (domain as u32 + 1).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, kind, high, low))
}

/// Whether mails to a domain are measured: those to failing servers are not.
pub(super) fn is_measured(domain: u64, servers: Servers) -> bool {
    servers == Servers::AllWork || domain % ONE_IN > 1
}

/// When mails were queued and when they arrived, by their numbers.
pub(super) struct Arrivals {
    pub(super) servers: Servers,
    next: AtomicU64,
    mails: Mutex<Mails>,
}

#[derive(Default)]
struct Mails {
    /// Mails that were queued and have not arrived, and those that arrived before the queue had answered.
    waiting: std::collections::HashMap<u64, Instant>,
    times: Latencies,
    /// Mails that arrived more than once.
    repeated: u64,
}

impl Arrivals {
    pub(super) fn new(servers: Servers) -> Self {
        Self { servers, next: AtomicU64::new(0), mails: Mutex::default() }
    }

    /// The number of the next mail.
    pub(super) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// A mail is about to be queued: its time counts from here.
    pub(super) fn queued(&self, number: u64) {
        self.mails.lock().waiting.insert(number, Instant::now());
    }

    fn arrived(&self, number: u64) {
        let now = Instant::now();
        let mut mails = self.mails.lock();
        match mails.waiting.remove(&number) {
            Some(queued) => mails.times.record(now.saturating_duration_since(queued)),
            None => mails.repeated += 1,
        }
    }

    /// The times of all mails, when all have arrived.
    pub(super) async fn all(&self, patience: Duration) -> anyhow::Result<Latencies> {
        let begun = Instant::now();
        loop {
            {
                let mails = self.mails.lock();
                let (missing, repeated) = (mails.waiting.len(), mails.repeated);
                ensure!(repeated == 0, "{repeated} mails arrived twice");
                if missing == 0 {
                    return Ok(mails.times.clone());
                }
                ensure!(begun.elapsed() < patience, "{missing} mails did not arrive");
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The listener. Dropping it stops it.
pub(super) struct Sink {
    port: u16,
    task: JoinHandle<()>,
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sink {
    pub(super) async fn start(arrivals: Arc<Arrivals>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("0.0.0.0:0").await.context("can't listen")?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            let mut serving = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let arrivals = arrivals.clone();
                // A closed connection is the sender's concern.
                serving.spawn(async move { drop(serve(stream, &arrivals).await) });
                while serving.try_join_next().is_some() {}
            }
        });
        Ok(Self { port, task })
    }

    /// The port of all servers.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// Serves a connection as its local address selects.
async fn serve(stream: TcpStream, arrivals: &Arrivals) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let kind = match stream.local_addr()? {
        SocketAddr::V4(address) => address.ip().octets()[1],
        SocketAddr::V6(_) => WORKS,
    };
    if kind == IS_DEAD {
        return std::future::pending().await;
    }
    let delay = if kind == IS_SLOW { SLOW } else { Duration::ZERO };
    let mut stream = BufReader::new(stream);
    reply(&mut stream, delay, "220 sink.example ESMTP\r\n").await?;
    let (mut line, mut mail) = (String::new(), Vec::new());
    let mut recipients: Vec<u64> = Vec::new();
    loop {
        line.clear();
        if (&mut stream).take(LINE_BYTES_MAX).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let verb = line.get(..4).unwrap_or_default().to_ascii_uppercase();
        let text = match verb.as_str() {
            "EHLO" => "250-sink.example\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 SIZE\r\n",
            "RCPT" => {
                recipients.extend(number(&line));
                "250 2.1.5 ok\r\n"
            }
            "DATA" => {
                reply(&mut stream, delay, "354 go on\r\n").await?;
                read_mail(&mut stream, &mut mail).await?;
                recipients.drain(..).for_each(|number| arrivals.arrived(number));
                "250 2.0.0 taken\r\n"
            }
            "QUIT" => {
                reply(&mut stream, delay, "221 2.0.0 bye\r\n").await?;
                return Ok(());
            }
            _ => "250 2.0.0 ok\r\n",
        };
        reply(&mut stream, delay, text).await?;
    }
}

async fn reply(stream: &mut BufReader<TcpStream>, delay: Duration, text: &str) -> anyhow::Result<()> {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    Ok(stream.get_mut().write_all(text.as_bytes()).await?)
}

/// Reads up to the line with a single dot.
async fn read_mail(stream: &mut BufReader<TcpStream>, mail: &mut Vec<u8>) -> anyhow::Result<()> {
    mail.clear();
    loop {
        let from = mail.len();
        ensure!(stream.read_until(b'\n', mail).await? > 0, "a mail was cut off");
        if mail.get(from..) == Some(b".\r\n") {
            return Ok(());
        }
    }
}

/// The number of a measured mail in the address of its recipient: `RCPT TO:<mail7@...>`.
fn number(line: &str) -> Option<u64> {
    line.split_once("<mail")?.1.split_once('@')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn say(stream: &mut BufReader<TcpStream>, line: &str) -> String {
        stream.get_mut().write_all(line.as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_line(&mut reply).await.unwrap();
        reply
    }

    #[tokio::test]
    async fn a_mail_arrives_once_and_a_dead_server_says_nothing() {
        let arrivals = Arc::new(Arrivals::new(Servers::SomeFail));
        let sink = Sink::start(arrivals.clone()).await.unwrap();
        let connect = async |domain| {
            let address = SocketAddr::new(ip(domain, Servers::SomeFail), sink.port());
            BufReader::new(TcpStream::connect(address).await.unwrap())
        };
        let mut stream = connect(7).await;
        arrivals.queued(3);
        assert!(say(&mut stream, "").await.starts_with("220"));
        assert!(say(&mut stream, "HELO x\r\n").await.starts_with("250"));
        assert!(say(&mut stream, "MAIL FROM:<a@b>\r\n").await.starts_with("250"));
        assert!(say(&mut stream, "RCPT TO:<mail3@d7.example>\r\n").await.starts_with("250"));
        assert!(say(&mut stream, "DATA\r\n").await.starts_with("354"));
        assert!(arrivals.all(Duration::ZERO).await.unwrap_err().to_string().contains("1 mails did not"));
        assert!(say(&mut stream, "Subject: x\r\n\r\n..\r\n.\r\n").await.starts_with("250"));
        assert_eq!(arrivals.all(Duration::ZERO).await.unwrap().len(), 1);
        arrivals.arrived(3);
        assert!(arrivals.all(Duration::ZERO).await.is_err(), "twice");

        let mut dead = connect(10).await;
        let greeting = tokio::time::timeout(Duration::from_millis(50), say(&mut dead, "")).await;
        assert!(greeting.is_err());
        assert!(!is_measured(10, Servers::SomeFail) && is_measured(10, Servers::AllWork));
    }
}
