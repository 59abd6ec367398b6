//! The database stops under load and starts again: nothing acknowledged may be lost, and the server must report its state.

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use restante_core::{Clock, MessageHash, SystemClock};
use tokio::{task::JoinSet, time::timeout};

use super::{
    posts::Posts,
    publish::{Published, Publisher},
};
use crate::{
    answer::{beginning, hashes},
    http::{Connection, get},
    pace::Tickets,
    server::Server,
};

/// Messages a second, which the spool must store and later transfer.
const PER_SECOND: f64 = 100.0;
const PAYLOAD_BYTES: usize = 1_400;
/// Enough for a while without answers: a server may make a publisher wait for half a minute.
const PUBLISHERS: usize = 64;
const POLL: Duration = Duration::from_millis(100);
/// The time limit of one request for the server's state.
const LOOK: Duration = Duration::from_secs(45);
/// The time limit of transferring the spool.
const CATCHING_UP_MAX: Duration = Duration::from_secs(300);
/// Longer than any load: it is stopped explicitly.
const LOAD_MAX: Duration = Duration::from_secs(4 * 3_600);
/// The most recorded states of health.
const STATES_MAX: usize = 100;

/// How to stop and start the database.
pub(super) struct Plan {
    pub(super) stop_command: String,
    pub(super) start_command: String,
    /// How long it stays away.
    pub(super) outage: Duration,
    /// The time with load before and after.
    pub(super) around: Duration,
}

/// An answer of `/health`, and its start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct State {
    /// Seconds since the load began.
    pub(super) at_s: f64,
    /// `None` if there was no answer.
    pub(super) status: Option<u16>,
    pub(super) said: String,
}

/// The result.
pub(super) struct Outage {
    pub(super) posts: Arc<Posts>,
    pub(super) published: Published,
    /// When the database was stopped, and when it was started again, in seconds since the load began.
    pub(super) stopped_s: f64,
    pub(super) started_s: f64,
    /// From the restart until `/health` was good; `None` if it never was.
    pub(super) healthy_after_s: Option<f64>,
    /// From the restart until the last message that had been acknowledged by then could be read.
    pub(super) caught_up_after_s: f64,
    pub(super) states: Vec<State>,
    /// Whether the server's process was always running.
    pub(super) is_server_up: bool,
}

/// Stops and starts the database of a server while messages are published.
pub(super) async fn measure(server: &mut Server, plan: &Plan) -> anyhow::Result<Outage> {
    let address = server.address;
    let begun = Instant::now();
    let seconds = || begun.elapsed().as_secs_f64();
    let load = Load::start(address, begun);
    let watched = Arc::new(AtomicBool::new(true));
    let watcher = tokio::spawn(watch(address, begun, watched.clone()));

    tokio::time::sleep(plan.around).await;
    let stopped_s = seconds();
    let database = StoppedDatabase::stop(plan).await?;
    tokio::time::sleep(plan.outage).await;
    let before = load.last_acknowledged();
    database.start().await?;
    let started_s = seconds();

    wait_for(address, &load.posts, before).await?;
    let caught_up_after_s = seconds() - started_s;
    tokio::time::sleep(plan.around).await;
    let (posts, last) = (load.posts.clone(), load.last.clone());
    let published = load.end().await?;
    wait_for(address, &posts, acknowledged(&last)).await?;
    watched.store(false, Ordering::Relaxed);
    let states = watcher.await?;
    let healthy = states.iter().find(|state| state.at_s >= started_s && state.status == Some(200));
    let was_never_ill = states.iter().all(|state| state.status == Some(200));
    let healthy_after_s = if was_never_ill { Some(0.0) } else { healthy.map(|state| state.at_s - started_s) };
    Ok(Outage {
        posts,
        published,
        stopped_s,
        started_s,
        healthy_after_s,
        caught_up_after_s,
        states,
        is_server_up: server.is_running()?,
    })
}

/// The publishers.
struct Load {
    posts: Arc<Posts>,
    tickets: Arc<Tickets>,
    /// One more than the number of the last message that was acknowledged.
    last: Arc<AtomicU64>,
    publishers: JoinSet<Published>,
}

impl Load {
    fn start(address: SocketAddr, begun: Instant) -> Self {
        let posts = Arc::new(Posts::new(0, PAYLOAD_BYTES, SystemClock.now()));
        let tickets = Arc::new(Tickets::new(begun, PER_SECOND, begun + LOAD_MAX));
        let last = Arc::new(AtomicU64::new(0));
        let mut publishers = JoinSet::new();
        for _ in 0..PUBLISHERS {
            let (posts, tickets, last) = (posts.clone(), tickets.clone(), last.clone());
            publishers.spawn(async move {
                let mut publisher = Publisher::new(address);
                while let Some(ticket) = tickets.take().await {
                    let before = publisher.published.acknowledged.len();
                    publisher.send(&posts, ticket.number, ticket.from).await;
                    if publisher.published.acknowledged.len() > before {
                        last.fetch_max(ticket.number + 1, Ordering::Relaxed);
                    }
                }
                publisher.published
            });
        }
        Self { posts, tickets, last, publishers }
    }

    fn last_acknowledged(&self) -> Option<u64> {
        acknowledged(&self.last)
    }

    async fn end(mut self) -> anyhow::Result<Published> {
        self.tickets.end();
        let mut all = Published::default();
        while let Some(done) = self.publishers.join_next().await {
            all.add(done?);
        }
        Ok(all)
    }
}

fn acknowledged(last: &AtomicU64) -> Option<u64> {
    last.load(Ordering::Relaxed).checked_sub(1)
}

/// Waits until a message can be read.
async fn wait_for(address: SocketAddr, posts: &Posts, number: Option<u64>) -> anyhow::Result<()> {
    let Some(number) = number else { return Ok(()) };
    let begun = Instant::now();
    let hash = posts.hash(number);
    loop {
        let is_there = timeout(LOOK, can_be_read(address, hash)).await;
        if matches!(is_there, Ok(Ok(true))) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < CATCHING_UP_MAX,
            "the last acknowledged message could not be read within {} s",
            CATCHING_UP_MAX.as_secs()
        );
        tokio::time::sleep(POLL).await;
    }
}

async fn can_be_read(address: SocketAddr, hash: MessageHash) -> anyhow::Result<bool> {
    let (status, body) = look(address, &format!("/store/v3/messages?hashes={hash}")).await?;
    Ok(status == 200 && hashes(&body).any(|found| found == hash))
}

async fn look(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let mut connection = Connection::open(address).await?;
    let mut body = Vec::new();
    let status = connection.ask(get(path).as_bytes(), |piece| body.extend_from_slice(piece)).await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Polls the server's health and records the answers that differ in more than numbers.
async fn watch(address: SocketAddr, begun: Instant, watched: Arc<AtomicBool>) -> Vec<State> {
    let mut states: Vec<State> = Vec::new();
    while watched.load(Ordering::Relaxed) {
        let answer = timeout(LOOK, look(address, "/health")).await;
        let (status, said) = match answer {
            Ok(Ok((status, body))) => (Some(status), beginning(body.as_bytes())),
            Ok(Err(error)) => (None, format!("{error:#}")),
            Err(_) => (None, "no answer".to_owned()),
        };
        let is_new = states
            .last()
            .is_none_or(|last| last.status != status || without_digits(&last.said) != without_digits(&said));
        if is_new && states.len() < STATES_MAX {
            states.push(State { at_s: begun.elapsed().as_secs_f64(), status, said });
        }
        tokio::time::sleep(POLL).await;
    }
    states
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// A stopped database. On drop it is started again, also when the bench fails.
struct StoppedDatabase {
    start_command: Option<String>,
}

impl StoppedDatabase {
    async fn stop(plan: &Plan) -> anyhow::Result<Self> {
        let stopped = Self { start_command: Some(plan.start_command.clone()) };
        run(plan.stop_command.clone()).await?;
        Ok(stopped)
    }

    async fn start(mut self) -> anyhow::Result<()> {
        match self.start_command.take() {
            Some(command) => run(command).await,
            None => Ok(()),
        }
    }
}

impl Drop for StoppedDatabase {
    fn drop(&mut self) {
        if let Some(command) = self.start_command.take()
            && let Err(error) = run_now(&command)
        {
            eprintln!("warning: the database is still stopped: {error:#}");
        }
    }
}

async fn run(command: String) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || run_now(&command)).await?
}

/// Runs a shell command. Processes that it starts may remain, so it does not wait for the end of their output.
fn run_now(command: &str) -> anyhow::Result<()> {
    let status = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("can't run '{command}'"))?;
    if !status.success() {
        bail!("'{command}' ended with {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::http::tests::{serve, sized};

    fn plan(stop_command: String, start_command: String) -> Plan {
        let (outage, around) = (Duration::from_millis(1), Duration::from_millis(1));
        Plan { stop_command, start_command, outage, around }
    }

    #[tokio::test]
    async fn a_database_is_started_again_whatever_happens() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("started");
        let start = format!("touch {}", mark.display());
        assert!(StoppedDatabase::stop(&plan("exit 3".to_owned(), start.clone())).await.is_err());
        assert!(mark.exists());
        std::fs::remove_file(&mark).unwrap();
        let stopped = StoppedDatabase::stop(&plan("true".to_owned(), start)).await.unwrap();
        stopped.start().await.unwrap();
        assert!(mark.exists());
    }

    #[tokio::test]
    async fn changed_states_are_recorded() {
        let answers = Arc::new(Mutex::new(0));
        let watched = Arc::new(AtomicBool::new(true));
        let (counted, ended) = (answers.clone(), watched.clone());
        let address = serve(move |_, _| {
            let mut count = counted.lock().unwrap();
            *count += 1;
            ended.store(*count < 4, Ordering::Relaxed);
            match *count {
                1 => sized("200 OK", "Ready"),
                2 => sized("503 Service Unavailable", "1 message waits"),
                _ => sized("503 Service Unavailable", "2 message waits"),
            }
        })
        .await;
        let states = watch(address, Instant::now(), watched).await;
        let statuses: Vec<_> = states.iter().map(|state| state.status).collect();
        assert_eq!(statuses, [Some(200), Some(503)]);
    }

    #[tokio::test]
    async fn a_message_is_polled_until_it_can_be_read() {
        let posts = Posts::new(0, 100, restante_core::Timestamp(1));
        let (hash, asked) = (posts.hash(7), Arc::new(Mutex::new(0)));
        let count = asked.clone();
        let address = serve(move |line, _| {
            assert!(line.contains(&hash.to_string()), "{line}");
            *count.lock().unwrap() += 1;
            let is_there = *count.lock().unwrap() == 3;
            let messages = if is_there { format!("{{\"messageHash\":\"{hash}\"}}") } else { String::new() };
            sized("200 OK", &format!("{{\"messages\":[{messages}]}}"))
        })
        .await;
        wait_for(address, &posts, Some(7)).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), 3);
        wait_for(address, &posts, None).await.unwrap();
    }
}
