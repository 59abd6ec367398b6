//! Delivery by LMTP.

use std::{
    fs::File,
    io::{self, Write},
    mem,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

use super::{corpus::Corpus, load::Client};
use crate::random::Random;

/// Bytes of an email.
pub(super) const MAIL_BYTES: usize = 4_096;
const TEXTS: u64 = 64;

/// What is delivered, and to which addresses. No two emails are equal, as equal ones would be stored once.
pub(super) struct Post {
    corpus: Corpus,
    texts: Vec<String>,
    recipients: Vec<String>,
    next: AtomicU64,
}

impl Post {
    pub(super) fn new(corpus: Corpus, recipients: Vec<String>) -> Self {
        Self { corpus, texts: corpus.texts(TEXTS, MAIL_BYTES), recipients, next: AtomicU64::new(0) }
    }

    /// A new email.
    fn write(&self) -> String {
        self.corpus.plain(self.next.fetch_add(1, Ordering::Relaxed), &self.texts, MAIL_BYTES)
    }
}

/// A mail server that delivers over one connection.
pub(super) struct Sender {
    replies: BufReader<OwnedReadHalf>,
    commands: OwnedWriteHalf,
    post: Arc<Post>,
    random: Random,
    line: String,
    /// The next email. A mail server has a queue, so the client writes this one while the server stores the one before.
    next: String,
    is_to_all: bool,
}

/// Connections of mail servers.
pub(super) async fn senders(
    address: SocketAddr,
    post: &Arc<Post>,
    count: u64,
) -> anyhow::Result<Vec<Sender>> {
    let mut senders = Vec::new();
    for number in 0..count {
        let stream =
            TcpStream::connect(address).await.with_context(|| format!("can't connect to {address}"))?;
        stream.set_nodelay(true)?;
        let (replies, commands) = stream.into_split();
        let mut sender = Sender {
            replies: BufReader::new(replies),
            commands,
            random: post.corpus.terms(number),
            line: String::new(),
            next: post.write(),
            is_to_all: false,
            post: post.clone(),
        };
        sender.expect("220").await?;
        sender.commands.write_all(b"LHLO client.example\r\n").await?;
        sender.expect("250").await?;
        senders.push(sender);
    }
    Ok(senders)
}

impl Client for Sender {
    async fn once(&mut self) -> anyhow::Result<Duration> {
        let post = self.post.clone();
        let recipients = self.choose(&post)?;
        let mail = mem::take(&mut self.next);
        self.deliver(recipients, mail).await
    }
}

/// Delivers this many emails over all these connections.
pub(super) async fn deliver_all(senders: Vec<Sender>, emails: u64) -> anyhow::Result<()> {
    let count = senders.len() as u64;
    let mut tasks = JoinSet::new();
    for (number, mut sender) in senders.into_iter().enumerate() {
        let share = emails / count + u64::from((number as u64) < emails % count);
        tasks.spawn(async move {
            for _ in 0..share {
                sender.once().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

impl Sender {
    /// Sends each mail to all recipients.
    pub(super) fn with_all_recipients(mut self) -> Self {
        self.is_to_all = true;
        self
    }

    /// The recipients of the next mail.
    fn choose<'p>(&mut self, post: &'p Post) -> anyhow::Result<&'p [String]> {
        if self.is_to_all {
            return Ok(&post.recipients);
        }
        let chosen = self.random.below(post.recipients.len() as u64) as usize;
        post.recipients.get(chosen..=chosen).context("there are no recipients")
    }

    /// Delivers an email with a word in its text that no other has.
    pub(super) async fn deliver_with(&mut self, word: &str) -> anyhow::Result<Duration> {
        let post = self.post.clone();
        let mail = mem::take(&mut self.next);
        let recipients = post.recipients.get(..1).context("there are no recipients")?;
        self.deliver(recipients, format!("{mail}\r\n{word}")).await
    }

    /// Delivers an email, and returns the time until it is accepted; for one to all recipients, from its end to the last reply.
    /// Commands are pipelined where they may be (RFC 2920), as mail servers do.
    async fn deliver(&mut self, recipients: &[String], mut mail: String) -> anyhow::Result<Duration> {
        let mut commands = "MAIL FROM:<bench@example.net>\r\n".to_owned();
        for recipient in recipients {
            commands.push_str(&format!("RCPT TO:<{recipient}>\r\n"));
        }
        commands.push_str("DATA\r\n");
        mail.push_str("\r\n.\r\n");
        let mut begun = Instant::now();
        self.commands.write_all(commands.as_bytes()).await?;
        for _ in 0..=recipients.len() {
            self.expect("250").await?;
        }
        self.expect("354").await?;
        if self.is_to_all {
            begun = Instant::now();
        }
        self.commands.write_all(mail.as_bytes()).await?;
        self.next = self.post.write();
        for _ in recipients {
            self.expect("250").await?;
        }
        Ok(begun.elapsed())
    }

    /// Reads a reply, which must have this code.
    async fn expect(&mut self, code: &str) -> anyhow::Result<()> {
        loop {
            self.line.clear();
            let bytes = self.replies.read_line(&mut self.line).await?;
            ensure!(bytes > 0, "the server closed the connection where {code} was expected");
            ensure!(self.line.starts_with(code), "expected {code}, got: {}", self.line.trim_end());
            if self.line.as_bytes().get(code.len()) != Some(&b'-') {
                return Ok(());
            }
        }
    }
}

/// How many appends of an email to a file in the folder, each synced, are done in a second.
pub(super) fn syncs_per_second(folder: &Path, patience: Duration) -> io::Result<f64> {
    let path = folder.join("sync-probe");
    let mut bytes = [0; MAIL_BYTES];
    Random::new(0, 0).fill(&mut bytes);
    let mut file = File::create(&path)?;
    let begun = Instant::now();
    let mut syncs = 0;
    while syncs == 0 || begun.elapsed() < patience {
        file.write_all(&bytes)?;
        file.sync_data()?;
        syncs += 1;
    }
    let per_second = f64::from(syncs) / begun.elapsed().as_secs_f64();
    std::fs::remove_file(path)?;
    Ok(per_second)
}
