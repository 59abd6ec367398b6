//! Live streams: many readers of one topic each, messages to all of them, the delivery time, and the server's memory per
//! reader.

mod events;
mod letters;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use restante_core::{Clock, SystemClock};
use serde::Serialize;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::{
    answer::beginning,
    args::{CommonArgs, EngineChoice},
    http::{Connection, get, post},
    location::Location,
    measure::{Latencies, rounded},
    pace::Tickets,
    progress,
    server::{Server, Settings, allow_open_files},
};
use events::Reader;
use letters::{Account, Heard, topic, write};

/// Messages a second, and how many are published.
pub(super) const RATE: f64 = 1_000.0;
const MESSAGES: u64 = 10_000;
const MESSAGES_QUICK: u64 = 200;
/// Messages before the first stream is opened, so that the memory that messages need is not attributed to
/// streams.
const WARM_MESSAGES: u64 = 2_000;
const WARM_MESSAGES_QUICK: u64 = 20;
/// Clients that send messages when they are due.
const PUBLISHERS: usize = 64;
/// Concurrent unacknowledged messages, each on a connection of its own. Messages are sent at their rate even while the disk
/// stalls, so many may be in flight: as many as are sent in a second. A connection is opened when all
/// others are busy; fewer than ten are while the disk keeps up.
const IN_FLIGHT_MAX: usize = 1_000;
/// Streams that are opened at the same time.
const OPENING: usize = 64;
/// Streams from one source address: Linux has 28,232 ports for outgoing connections of one.
const STREAMS_PER_ADDRESS: u64 = 20_000;
/// The time limit of opening streams, and of the arrival of messages.
const PATIENCE: Duration = Duration::from_secs(60);
const LATE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// Connections besides the streams: for messages in flight and for metrics.
const OTHER_CONNECTIONS: u64 = IN_FLIGHT_MAX as u64 + 256;
/// Bytes of one read from a stream.
const READ_BYTES: usize = 4_096;

/// The network's only shard, and its topic as in a path.
const CLUSTER: &str = "1";
const SHARD: &str = "0";
const PUBSUB_TOPIC_ESCAPED: &str = "%2Fwaku%2F2%2Frs%2F1%2F0";

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StreamsRow {
    part: &'static str,
    pub(super) engine: &'static str,
    pub(super) streams: u64,
    /// How long it took until all were open.
    pub(super) opening_s: f64,
    pub(super) messages_per_s: f64,
    pub(super) published: u64,
    pub(super) heard: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    /// Messages received by the wrong stream.
    pub(super) strays: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// From when a message was due until it was acknowledged as durable.
    pub(super) acknowledged_p50_ms: f64,
    pub(super) acknowledged_p99_ms: f64,
    pub(super) acknowledged_max_ms: f64,
    /// Growth of the server's private memory per stream.
    pub(super) bytes_per_stream: Option<f64>,
    /// Processor time of the server per message.
    pub(super) cpu_us_per_message: Option<f64>,
    /// Percentiles for the plot.
    #[serde(skip)]
    pub(super) curve: Vec<(f64, f64)>,
    #[serde(skip)]
    pub(super) acknowledged_curve: Vec<(f64, f64)>,
}

/// Starts a server on a fresh archive and measures it.
pub(super) async fn measure(
    program: &Path,
    folder: &Path,
    choice: &EngineChoice,
    streams: u64,
    common: &CommonArgs,
) -> anyhow::Result<StreamsRow> {
    allow_open_files(streams + OTHER_CONNECTIONS)?;
    let location = Location::fresh(choice, folder)?;
    let server = Server::start_with(
        program,
        &location.url,
        folder,
        &format!("streams-{}", location.url.engine()),
        &settings(streams),
    )
    .await?;
    let bench = Bench { server: &server, streams, common };
    let measured = bench.measure(location.url.engine()).await;
    let measured =
        measured.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
    server.stop().await?;
    Ok(measured)
}

/// A node without peers, with limits for all streams and for all messages in flight.
fn settings(streams: u64) -> Settings {
    let flags = ["--cluster-id", CLUSTER, "--shard", SHARD].map(str::to_owned).to_vec();
    let limit = (streams + OTHER_CONNECTIONS).to_string();
    let in_flight = (IN_FLIGHT_MAX + PUBLISHERS).to_string();
    let variables = vec![
        ("RESTANTE_REST__REQUESTS_MAX", in_flight),
        ("RESTANTE_REST__CONNECTIONS_MAX", limit.clone()),
        ("RESTANTE_REST__LIVE_STREAMS_MAX", limit.clone()),
        ("RESTANTE_SESSIONS__HUB__SUBSCRIPTIONS_MAX", limit),
    ];
    Settings { flags, variables }
}

struct Bench<'a> {
    server: &'a Server,
    streams: u64,
    common: &'a CommonArgs,
}

impl Bench<'_> {
    async fn measure(&self, engine: &'static str) -> anyhow::Result<StreamsRow> {
        let account = Arc::new(Account::new());
        let warm = self.common.pick(WARM_MESSAGES, WARM_MESSAGES_QUICK);
        publish(self.server.address, self.streams, warm, &account).await?;
        let memory_before = self.server.private_memory();
        let opened = open_streams(self.server.address, self.streams, &account).await?;
        let messages = self.common.messages.unwrap_or(self.common.pick(MESSAGES, MESSAGES_QUICK));
        account.begin(messages);
        let worked_before = self.server.worked();
        let Published { took, acknowledged } =
            publish(self.server.address, self.streams, messages, &account).await?;
        wait_for(messages, &account).await;
        let heard = account.heard();
        opened.check()?;
        let memory = self.server.private_memory();
        let worked = self.server.worked();
        let per = |after: Option<f64>, before: Option<f64>, by: u64| {
            Some(rounded((after? - before?).max(0.0) / by as f64))
        };
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let micros = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1e6);
        Ok(StreamsRow {
            bytes_per_stream: per(bytes(memory), bytes(memory_before), self.streams),
            cpu_us_per_message: per(micros(worked), micros(worked_before), messages),
            acknowledged_p50_ms: rounded(acknowledged.median_ms()),
            acknowledged_p99_ms: rounded(acknowledged.p99_ms()),
            acknowledged_max_ms: rounded(acknowledged.max_ms()),
            acknowledged_curve: acknowledged.curve(),
            ..row(engine, self.streams, &opened, messages, took, &heard)
        })
    }
}

fn row(
    engine: &'static str,
    streams: u64,
    opened: &Opened,
    published: u64,
    took: Duration,
    heard: &Heard,
) -> StreamsRow {
    StreamsRow {
        part: "streams",
        engine,
        streams,
        opening_s: rounded(opened.took.as_secs_f64()),
        messages_per_s: rounded(published as f64 / took.as_secs_f64()),
        published,
        heard: heard.messages(),
        lost: published - heard.messages(),
        repeated: heard.repeated(),
        strays: heard.strays,
        p50_ms: rounded(heard.times.median_ms()),
        p99_ms: rounded(heard.times.p99_ms()),
        max_ms: rounded(heard.times.max_ms()),
        acknowledged_p50_ms: 0.0,
        acknowledged_p99_ms: 0.0,
        acknowledged_max_ms: 0.0,
        bytes_per_stream: None,
        cpu_us_per_message: None,
        curve: heard.times.curve(),
        acknowledged_curve: Vec::new(),
    }
}

/// Open streams. They are closed when this goes out of scope.
struct Opened {
    _readers: JoinSet<()>,
    took: Duration,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
}

impl Opened {
    /// Whether all are still open.
    fn check(&self) -> anyhow::Result<()> {
        match self.failure.lock().take() {
            Some(error) => Err(error.context("a stream has ended")),
            None => Ok(()),
        }
    }
}

/// Opens all streams and waits until the server has accepted each.
async fn open_streams(server: SocketAddr, streams: u64, account: &Arc<Account>) -> anyhow::Result<Opened> {
    let bar = progress::bar("streams: opening them", streams);
    let begun = Instant::now();
    let permits = Arc::new(Semaphore::new(OPENING));
    let open = Arc::new(AtomicU64::new(0));
    let failure = Arc::new(Mutex::new(None));
    let mut readers = JoinSet::new();
    for stream in 0..streams {
        let (permits, open, failure) = (permits.clone(), open.clone(), failure.clone());
        let account = account.clone();
        readers.spawn(async move {
            let reader = read_stream(server, stream, &permits, &open, &account);
            if let Err(error) = reader.await {
                failure.lock().get_or_insert(error);
            }
        });
    }
    let mut opened = Opened { _readers: readers, took: Duration::ZERO, failure };
    while open.load(Ordering::Relaxed) < streams {
        opened.check()?;
        ensure!(
            begun.elapsed() < PATIENCE,
            "{} of {streams} streams opened within a minute",
            open.load(Ordering::Relaxed)
        );
        bar.set_position(open.load(Ordering::Relaxed));
        tokio::time::sleep(LOOK).await;
    }
    opened.took = begun.elapsed();
    bar.finish_and_clear();
    Ok(opened)
}

/// Opens one stream, and records its messages until it ends.
async fn read_stream(
    server: SocketAddr,
    stream: u64,
    permits: &Semaphore,
    open: &AtomicU64,
    account: &Account,
) -> anyhow::Result<()> {
    let mut permit = Some(permits.acquire().await?);
    let mut connection = connect(server, stream).await.context("can't connect")?;
    connection.write_all(get(&format!("/live?contentTopics={}", topic(stream))).as_bytes()).await?;
    let mut reader = Reader::new();
    loop {
        connection.readable().await?;
        // On the stack during a read only, because ten thousand readers would need as many buffers.
        let mut buffer = [0; READ_BYTES];
        match connection.try_read(&mut buffer) {
            Ok(0) => bail!("the server closed the stream of topic {stream}"),
            Ok(count) => {
                reader.take(buffer.get(..count).unwrap_or_default(), |line| account.note(stream, line))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => (),
            Err(error) => return Err(error.into()),
        }
        if reader.is_open() && permit.take().is_some() {
            open.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Connects from an address with free ports.
async fn connect(server: SocketAddr, stream: u64) -> anyhow::Result<TcpStream> {
    let block = u8::try_from(stream / STREAMS_PER_ADDRESS).context("too many streams for one machine")?;
    let socket = TcpSocket::new_v4()?;
    if block > 0 {
        let [.., last] = Ipv4Addr::LOCALHOST.octets();
        let source = Ipv4Addr::new(127, 0, block, last);
        socket.bind(SocketAddr::from((source, 0)))?;
    }
    let connection = socket.connect(server).await?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// The result of publishing.
struct Published {
    took: Duration,
    /// From when each was due until it was acknowledged.
    acknowledged: Latencies,
}

/// Publishes this many messages at an even rate, over all topics in turn.
async fn publish(
    server: SocketAddr,
    streams: u64,
    messages: u64,
    account: &Arc<Account>,
) -> anyhow::Result<Published> {
    let bar = progress::bar("streams: publishing", messages);
    let begun = Instant::now();
    let until = begun + Duration::from_secs_f64(messages as f64 / RATE);
    let tickets = Arc::new(Tickets::new(begun, RATE, until));
    let senders = Arc::new(Senders::new(server));
    let mut publishers = JoinSet::new();
    for _ in 0..PUBLISHERS {
        let (tickets, senders, account, bar) =
            (tickets.clone(), senders.clone(), account.clone(), bar.clone());
        publishers.spawn(async move {
            let mut on_their_way = JoinSet::new();
            while let Some(ticket) = tickets.take().await.filter(|ticket| ticket.number < messages) {
                let sent = ticket.from.saturating_duration_since(account.base);
                // A step that has no divisor in common with the number of streams, so that neighbours in time are not
                // neighbours in the table.
                let stream = ticket.number.wrapping_mul(TOPIC_STEP) % streams;
                let message = write(stream, ticket.number, sent, SystemClock.now());
                on_their_way.spawn(senders.clone().send(ticket.from, message, bar.clone()));
                while let Some(sent) = on_their_way.try_join_next() {
                    sent??;
                }
            }
            while let Some(sent) = on_their_way.join_next().await {
                sent??;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = publishers.join_next().await {
        done??;
    }
    bar.finish_and_clear();
    let acknowledged = std::mem::take(&mut *senders.acknowledged.lock());
    Ok(Published { took: begun.elapsed(), acknowledged })
}

/// Sends each message without waiting for its acknowledgement, so that the next one is not delayed.
struct Senders {
    server: SocketAddr,
    idle: Mutex<Vec<Connection>>,
    in_flight: Semaphore,
    acknowledged: Mutex<Latencies>,
}

impl Senders {
    fn new(server: SocketAddr) -> Self {
        let (idle, acknowledged) = Default::default();
        Self { server, idle, in_flight: Semaphore::new(IN_FLIGHT_MAX), acknowledged }
    }

    async fn send(self: Arc<Self>, due: Instant, message: String, bar: ProgressBar) -> anyhow::Result<()> {
        let _room = self.in_flight.acquire().await?;
        // The most recently used one: connections that were opened during a stall remain idle.
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection::open(self.server).await?,
        };
        publish_one(&mut connection, &message).await?;
        self.acknowledged.lock().record(due.elapsed());
        self.idle.lock().push(connection);
        bar.inc(1);
        Ok(())
    }
}

/// A prime.
const TOPIC_STEP: u64 = 7_919;

async fn publish_one(connection: &mut Connection, message: &str) -> anyhow::Result<()> {
    let request = post(&format!("/relay/v1/messages/{PUBSUB_TOPIC_ESCAPED}"), message);
    let mut body = Vec::new();
    let status = connection.ask(request.as_bytes(), |piece| body.extend_from_slice(piece)).await?;
    ensure!(status == 200, "a message was answered with status {status}: {}", beginning(&body));
    Ok(())
}

/// Waits until all messages have arrived, or the time limit.
async fn wait_for(messages: u64, account: &Account) {
    let begun = Instant::now();
    while account.arrived() < messages && begun.elapsed() < LATE {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    /// A server that sends every stream one message of its topic, and acknowledges every message.
    async fn serve(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut asked = vec![0; 4_096];
                loop {
                    let count = stream.read(&mut asked).await.unwrap_or(0);
                    if count == 0 {
                        return;
                    }
                    let asked = String::from_utf8_lossy(&asked[..count]).into_owned();
                    let answer = match asked
                        .split_once("/stream-")
                        .and_then(|(_, rest)| rest.split_once("/proto"))
                    {
                        Some((number, _)) if asked.starts_with("GET") => {
                            let number = number.parse().unwrap();
                            let event = format!(
                                "data: {}\n\n",
                                write(number, number, Duration::ZERO, SystemClock.now())
                            );
                            format!(
                                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
                                event.len()
                            )
                        }
                        _ => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nOK".to_owned(),
                    };
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_stream_receives_its_message() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener));
        let account = Arc::new(Account::new());
        account.begin(100);
        let opened = open_streams(address, 100, &account).await.unwrap();
        publish(address, 100, 50, &account).await.unwrap();
        wait_for(100, &account).await;
        opened.check().unwrap();
        let row = row("log", 100, &opened, 100, Duration::from_secs(1), &account.heard());
        assert_eq!((row.heard, row.lost, row.repeated, row.strays), (100, 0, 0, 0));
    }

    #[tokio::test]
    async fn a_stream_that_is_refused_is_an_error() {
        let address = crate::http::tests::serve(|_, _| crate::http::tests::sized("503 Full", "full")).await;
        let error = open_streams(address, 1, &Arc::new(Account::new())).await.err().unwrap();
        assert!(format!("{error:#}").contains("503"), "{error:#}");
    }
}
