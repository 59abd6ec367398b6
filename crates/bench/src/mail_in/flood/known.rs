//! Known senders: mail servers that deliver to accounts, and users who submit. Each mail has a connection of its own.

use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use base64_simd::STANDARD;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::timeout};
use tokio_rustls::rustls::ClientConfig;

use super::{
    Scenario,
    setup::{PASSWORD, RECIPIENTS, Target, recipient, user},
    wire::Wire,
};
use crate::{jmap::corpus::Corpus, measure::Latencies, pace::Tickets};

/// Mail servers, each with an address of its own.
const SERVERS: u64 = 8;
/// Users, each with an account and an address.
pub(super) const SUBMITTERS: u64 = 3;
/// Mails a second of all servers, and of all users: within the limits of an address per minute, and of an account per hour.
const DELIVERED_PER_S: f64 = 32.0;
const SUBMITTED_PER_S: f64 = 5.0;
/// The numbers of submitted mails begin here.
const SUBMITTED_FROM: u64 = 1 << 20;
const MAIL_BYTES: usize = 4_096;
const TEXTS: u64 = 64;
/// How long every client waits for the greeting (the default of `smtp.greeting_delay_ms`). It is no part of the times.
const GREETING: Duration = Duration::from_millis(100);
/// A mail that takes longer counts as not accepted.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a mail is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// From a mail server, to an account.
    Smtp,
    /// From a user who logs in.
    Submission,
}

impl By {
    pub(super) const ALL: [Self; 2] = [Self::Smtp, Self::Submission];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Smtp => "smtp",
            Self::Submission => "submission",
        }
    }
}

/// The times of the mails of a phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) smtp: Latencies,
    pub(super) submission: Latencies,
}

impl Times {
    pub(super) fn of(&self, by: By) -> &Latencies {
        match by {
            By::Smtp => &self.smtp,
            By::Submission => &self.submission,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.smtp.add(&other.smtp);
        self.submission.add(&other.submission);
    }
}

/// The outcome of all mails of a scenario.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    pub(super) accepted: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Why the first one failed.
    pub(super) first_error: Mutex<Option<String>>,
}

/// The known senders of a scenario.
pub(super) struct Known {
    scenario: Scenario,
    smtp: std::net::SocketAddr,
    submission: std::net::SocketAddr,
    tls: Arc<ClientConfig>,
    corpus: Corpus,
    texts: Vec<String>,
    delivered: AtomicU64,
    submitted: AtomicU64,
    pub(super) outcomes: Outcomes,
}

impl Known {
    pub(super) fn new(scenario: Scenario, target: &Target, tls: Arc<ClientConfig>) -> Self {
        // No two scenarios have the same mails: a repeated mail would be stored only once.
        let corpus = Corpus { seed: scenario as u64 };
        Self {
            scenario,
            smtp: target.smtp,
            submission: target.submission,
            tls,
            corpus,
            texts: corpus.texts(TEXTS, MAIL_BYTES),
            delivered: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            outcomes: Outcomes::default(),
        }
    }

    /// Sends mails at an even rate for this long, and waits for the last of them. A slow one delays no other.
    pub(super) async fn send(self: &Arc<Self>, length: Duration) -> anyhow::Result<Times> {
        let begun = Instant::now();
        let all = |by, per_second| async move {
            let tickets = Tickets::new(begun, per_second, begun + length);
            let mut tasks = JoinSet::new();
            while let Some(ticket) = tickets.take().await {
                let known = self.clone();
                tasks.spawn(async move { known.send_one(by, ticket.from).await });
            }
            let mut times = Latencies::default();
            while let Some(done) = tasks.join_next().await {
                if let Some(time) = done? {
                    times.record(time);
                }
            }
            anyhow::Ok(times)
        };
        let (smtp, submission) =
            tokio::try_join!(all(By::Smtp, DELIVERED_PER_S), all(By::Submission, SUBMITTED_PER_S))?;
        Ok(Times { smtp, submission })
    }

    /// Sends a mail. Returns how long that took; `None` if it was not accepted.
    async fn send_one(&self, by: By, from: Instant) -> Option<Duration> {
        // No two mails have the same number: those that are submitted start at a higher one.
        let sent = match by {
            By::Smtp => {
                let number = self.delivered.fetch_add(1, Ordering::Relaxed);
                timeout(PATIENCE, self.deliver(number)).await
            }
            By::Submission => {
                let number = self.submitted.fetch_add(1, Ordering::Relaxed);
                timeout(PATIENCE, self.submit(number)).await
            }
        };
        match sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(accepted) => {
                self.outcomes.accepted.fetch_add(1, Ordering::Relaxed);
                let time = accepted.saturating_duration_since(from);
                Some(if by == By::Smtp { time.saturating_sub(GREETING) } else { time })
            }
            Err(error) => {
                self.outcomes.failed.fetch_add(1, Ordering::Relaxed);
                self.outcomes.first_error.lock().get_or_insert_with(|| format!("{}: {error}", by.name()));
                None
            }
        }
    }

    async fn deliver(&self, number: u64) -> io::Result<Instant> {
        let client = Ipv4Addr::new(198, 51, 100, (number % SERVERS) as u8 + 1);
        let mut wire = Wire::connect(self.smtp, client).await?;
        wire.expect(220).await?;
        wire.ask("EHLO mail.example.net\r\n", 250).await?;
        self.mail(&mut wire, "sender@example.net", number).await
    }

    async fn submit(&self, number: u64) -> io::Result<Instant> {
        let client = Ipv4Addr::new(203, 0, 113, (number % SUBMITTERS) as u8 + 1);
        let user = user(self.scenario, number % SUBMITTERS);
        let mut wire = Wire::connect(self.submission, client).await?;
        wire.expect(220).await?;
        wire.ask("EHLO laptop.example.net\r\n", 250).await?;
        let mut wire = wire.start_tls(&self.tls).await?;
        wire.ask("EHLO laptop.example.net\r\n", 250).await?;
        wire.ask(&auth(&user, PASSWORD), 235).await?;
        self.mail(&mut wire, &user, SUBMITTED_FROM + number).await
    }

    /// Sends a mail on a connection that is ready for it. Returns when it was accepted.
    async fn mail(&self, wire: &mut Wire, from: &str, number: u64) -> io::Result<Instant> {
        let to = recipient(number % RECIPIENTS);
        wire.send(format!("MAIL FROM:<{from}>\r\nRCPT TO:<{to}>\r\nDATA\r\n").as_bytes()).await?;
        wire.expect(250).await?;
        wire.expect(250).await?;
        wire.expect(354).await?;
        // A submitter must be the author.
        let mail = with_author(&self.corpus.plain(number, &self.texts, MAIL_BYTES - 2), from);
        wire.send(format!("{mail}\r\n.\r\n").as_bytes()).await?;
        wire.expect(250).await?;
        let accepted = Instant::now();
        let _ = wire.ask("QUIT\r\n", 221).await; // the mail is accepted, whatever the reply is
        Ok(accepted)
    }
}

/// A mail with another address in its `From` field.
fn with_author(mail: &str, author: &str) -> String {
    let Some((before, from)) = mail.split_once("\r\nFrom: ") else { return mail.to_owned() };
    let after = from.split_once("\r\n").map_or("", |(_, after)| after);
    format!("{before}\r\nFrom: {author}\r\n{after}")
}

/// The command of a log-in (RFC 4616).
pub(super) fn auth(user: &str, password: &str) -> String {
    format!("AUTH PLAIN {}\r\n", STANDARD.encode_to_string(format!("\0{user}\0{password}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_has_the_author_that_sends_it_and_nothing_else_is_changed() {
        let corpus = Corpus { seed: 1 };
        let mail = corpus.plain(7, &corpus.texts(TEXTS, MAIL_BYTES), MAIL_BYTES);
        let changed = with_author(&mail, "anna@example.org");
        let lines = |mail: &str| mail.lines().map(str::to_owned).collect::<Vec<_>>();
        let (before, after) = (lines(&mail), lines(&changed));
        let differ: Vec<_> = before.iter().zip(&after).filter(|(one, other)| one != other).collect();
        assert_eq!((before.len(), differ.len()), (after.len(), 1));
        assert_eq!(differ[0].1, "From: anna@example.org");
    }
}
