//! Mail under load: JMAP and LMTP, by clients on the same machine.

mod caller;
pub(crate) mod corpus;
mod delivering;
mod fill;
mod load;
mod present;
mod pushing;
mod reading;
mod stores;

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use restante_archive::EngineUrl;
use serde::Serialize;
use serde_json::Value;

use crate::{
    args::{CommonArgs, OutputArgs, Sizes},
    machine::{Machine, resident_memory},
    measure::rounded,
    report::Report,
    scrape::Scrape,
    server::{self, Server, Settings},
    store::work_folder,
};
use caller::Caller;
use corpus::Corpus;
use delivering::{Post, Sender, deliver_all, senders, syncs_per_second};
use fill::{Filled, Plan, User, fill};
use load::{Client, Load, Pace};
use present::{Measured, Sizing};
use pushing::{Waiting, listeners};
use reading::{Op, readers};
use stores::Stores;

pub use stores::Profile;

/// The size of the inbox that most goals are set for.
const EMAILS: u64 = 100_000;
const EMAILS_QUICK: [u64; 2] = [50, 300];
const MAILBOXES: [u64; 2] = [20, 500];
const RECIPIENTS: u64 = 100;
const RECIPIENTS_QUICK: u64 = 10;
/// Connections of readers, of clients that change keywords and of mail servers, and idle ones while memory is measured.
const READERS: u64 = 16;
const WRITERS: u64 = 64;
const IDLE: u64 = 100;
/// Clients that wait for changes, of each kind.
const LISTENERS: u64 = 1_000;
const QUICK_CONNECTIONS: u64 = 4;
/// Requests a second of the open loop: what the listing must sustain.
const OPEN_PER_S: f64 = 3_000.0;
const OPEN_PER_S_QUICK: f64 = 50.0;
/// While memory is measured, three quarters as many emails are delivered as the largest inbox has.
const IMPORTED: (u64, u64) = (3, 4);
/// Emails that are delivered, and searched for at once.
const SEARCHED: u64 = 1_000;
const SEARCHED_QUICK: u64 = 20;
const LENGTH: Duration = Duration::from_secs(5);
const QUICK: Duration = Duration::from_millis(200);
/// How long the disk alone is measured, before and after one connection delivers.
const PROBE: Duration = Duration::from_secs(1);
/// The time limit for the search index to have all emails.
const INDEXING_MAX: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(50);

/// A part of the bench. Most are named like their row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Part {
    /// From a change to its push, and the memory of clients that wait: `push_events`, `push_sockets`, `memory_event_stream`, `memory_socket`
    Push,
    /// Pages of each inbox
    Query20,
    /// The same at a fixed rate
    Query20Open,
    /// Pages of threads
    ThreadChain,
    /// Email/changes with nothing new
    Changes,
    /// Searches
    Text,
    /// Changes of a keyword
    Flag,
    /// All mailboxes: `mailboxes_20`, `mailboxes_500`
    Mailboxes,
    /// The server's memory with idle connections: `memory_private`, `memory_resident`
    Memory,
    /// How much it grows while mail is delivered and indexed
    MemoryImport,
    /// Searches for an email that was just delivered: `text_new`, `text_new_missed`
    TextNew,
    /// Deliveries over many connections
    Lmtp,
    /// Deliveries over one connection, beside the disk alone: `lmtp_one`, `fdatasync`
    LmtpOne,
    /// Deliveries to many recipients: `lmtp_all`, `blobs_of_a_mail`
    LmtpAll,
}

/// Flags of `bench jmap`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Without --parts, everything is measured.

Examples:
  restante bench jmap --html jmap.html
  restante bench jmap --emails 1000,100000,1000000 --data /var/lib/restante
  restante bench jmap --emails 100000 --parts thread_chain,lmtp_one
  dev/services/with cassandra s3 opensearch -- restante bench jmap --profile distributed --emails 10000
  restante bench jmap --quick")]
pub struct JmapArgs {
    /// Emails in the inboxes, one inbox for each number
    #[arg(long, value_name = "N,N", default_value = "1000,100000")]
    pub emails: Sizes,
    /// Seed of the emails
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// What to measure, separated by commas
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// On which engines records, blobs and the search index are
    #[arg(long, value_name = "PROFILE", value_enum, default_value_t)]
    pub profile: Profile,
    /// Program to run as the server; by default this one
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// Where files and results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A row of JSON: a load.
#[derive(Clone, Debug, Serialize)]
struct LoadRow {
    op: String,
    /// Emails in the account, or of all accounts where mail is delivered.
    emails: u64,
    connections: u64,
    requests: u64,
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// Processor time of the server, and of the clients, by requests.
    server_cpu_us: Option<f64>,
    client_cpu_us: Option<f64>,
}

/// A row of JSON: another figure.
#[derive(Clone, Debug, Serialize)]
struct FigureRow {
    op: &'static str,
    emails: u64,
    value: f64,
    unit: &'static str,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &JmapArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.output.common(args.seed))
}

async fn measure(args: &JmapArgs) -> anyhow::Result<Report> {
    let common = args.output.common(args.seed);
    let folder = work_folder(&common)?;
    let corpus = Corpus { seed: args.seed };
    let plan = Plan {
        corpus,
        inboxes: common.pick(args.emails.0.clone(), EMAILS_QUICK.to_vec()),
        mailboxes: MAILBOXES.to_vec(),
        recipients: common.pick(RECIPIENTS, RECIPIENTS_QUICK),
    };
    let stores = Stores::new(args.profile, folder.path())?;
    let measured = measure_on(args, &stores, &plan, folder.path()).await;
    let left = stores.clean_up().await;
    let (mut report, left) = (measured?, left?);
    report.notes.extend(left);
    report.note_debug_build();
    report.note_quick(args.output.quick);
    Ok(report)
}

async fn measure_on(args: &JmapArgs, stores: &Stores, plan: &Plan, folder: &Path) -> anyhow::Result<Report> {
    let title = format!("Mail: JMAP and LMTP, durable, in {}; clients on this machine.", stores.engines());
    let mut report = Report::new("jmap", title, Machine::look(folder));
    let filled = fill(stores, plan).await?;
    let program = server::program(args.server.as_deref())?;
    let mail_server = MailServer::start(&program, folder, stores).await?;
    let common = args.output.common(args.seed);
    let bench = Bench { mail_server, corpus: plan.corpus, common, folder, parts: &args.parts };
    let mut measured = bench.measure(&filled).await?;
    bench.mail_server.server.stop().await?;
    measured.figures.extend(on_disk(&filled, stores.search_bytes()?));
    let sizing = Sizing { main: main_inbox(&filled)?.emails, set_for: EMAILS };
    present::present(&measured, sizing, &mut report)?;
    Ok(report)
}

/// The inbox of the size that goals are set for, or the largest.
fn main_inbox(filled: &Filled) -> anyhow::Result<&User> {
    let of_size = filled.inboxes.iter().find(|user| user.emails == EMAILS);
    of_size.or(filled.inboxes.last()).context("there is no inbox")
}

/// Kilobytes of an email on disk beyond its raw message, and in the search index, if they are on this disk.
fn on_disk(filled: &Filled, search_bytes: Option<u64>) -> impl Iterator<Item = FigureRow> {
    let emails = filled.emails;
    let beyond = filled.bytes.map(|bytes| bytes as f64 - filled.raw_bytes as f64);
    let row = move |op, bytes: f64| FigureRow {
        op,
        emails,
        value: rounded(bytes / 1e3 / emails.max(1) as f64),
        unit: "kB",
    };
    let beyond = beyond.map(|bytes| row("disk_beyond_raw", bytes));
    let search = search_bytes.map(|bytes| row("disk_search", bytes as f64));
    beyond.into_iter().chain(search)
}

/// A server with the doors of mail.
struct MailServer {
    server: Server,
    jmap: SocketAddr,
    lmtp: SocketAddr,
}

impl MailServer {
    async fn start(program: &Path, folder: &Path, stores: &Stores) -> anyhow::Result<Self> {
        let [jmap, lmtp] = free_addresses()?;
        let flags = [("--jmap-listen", jmap.to_string()), ("--lmtp-listen", lmtp.to_string())];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let mut variables = vec![
            // All connections of a load belong to one user.
            ("RESTANTE_JMAP__REQUESTS_PER_USER_MAX", "128".to_owned()),
            ("RESTANTE_JMAP__CONNECTIONS_PER_USER_MAX", (2 * LISTENERS).to_string()),
            // The metrics are asked for where REST is.
            ("RESTANTE_OPERATE__LISTEN", String::new()),
        ];
        variables.extend(stores.variables());
        let settings = Settings { flags, variables };
        let server = Server::start_with(program, &EngineUrl::Memory, folder, "server", &settings).await?;
        Ok(Self { server, jmap, lmtp })
    }
}

/// Addresses whose ports are free now.
fn free_addresses() -> anyhow::Result<[SocketAddr; 2]> {
    let bind = || TcpListener::bind("127.0.0.1:0");
    let (one, other) = (bind()?, bind()?);
    Ok([one.local_addr()?, other.local_addr()?])
}

struct Bench<'a> {
    mail_server: MailServer,
    corpus: Corpus,
    common: CommonArgs,
    folder: &'a Path,
    /// What to measure; everything when it is empty.
    parts: &'a [Part],
}

impl Bench<'_> {
    fn has(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    async fn measure(&self, filled: &Filled) -> anyhow::Result<Measured> {
        let mut measured = Measured::default();
        let indexing = self.wait_for_index(filled.emails).await?;
        measured.figure("index_all", filled.emails, indexing.as_secs_f64(), "s");
        let main = main_inbox(filled)?;
        // First: memory that other loads have freed would hide what a client uses.
        if self.has(Part::Push) {
            self.push(&mut measured, main).await?;
        }
        if self.has(Part::Query20) {
            for user in &filled.inboxes {
                self.read(&mut measured, user, Op::Query20).await?;
            }
        }
        if self.has(Part::Query20Open) {
            self.read_at_rate(&mut measured, main).await?;
        }
        let loads = [
            (Part::ThreadChain, Op::ThreadChain),
            (Part::Changes, Op::Changes),
            (Part::Text, Op::Text),
            (Part::Flag, Op::Flag),
        ];
        for (_, op) in loads.into_iter().filter(|(part, _)| self.has(*part)) {
            self.read(&mut measured, main, op).await?;
        }
        if self.has(Part::Mailboxes) {
            for user in &filled.mailboxes {
                self.read(&mut measured, user, Op::Mailboxes).await?;
            }
        }
        if self.has(Part::Memory) {
            self.memory(&mut measured, main).await?;
        }
        if self.has(Part::MemoryImport) {
            self.memory_of_import(&mut measured, filled).await?;
        }
        if self.has(Part::TextNew) {
            self.search_for_new(&mut measured, &filled.searcher).await?;
        }
        self.deliver(&mut measured, filled).await?;
        Ok(measured)
    }

    fn connections(&self, real: u64) -> u64 {
        self.common.pick(real, QUICK_CONNECTIONS)
    }

    /// Emails that no other part of the bench delivers: a repeated delivery would store nothing.
    fn other_corpus(&self, number: u64) -> Corpus {
        Corpus { seed: self.corpus.seed.wrapping_add(number) }
    }

    async fn run<C: Client>(&self, clients: Vec<C>, pace: Pace) -> anyhow::Result<Load> {
        load::run(&self.mail_server.server, clients, pace, self.common.pick(LENGTH, QUICK)).await
    }

    /// Waits until the search index has all emails, as indexing would use processor time under load.
    async fn wait_for_index(&self, emails: u64) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        while Scrape::of(self.mail_server.server.address).await?.sum("restante_indexer_emails_total") < emails
        {
            ensure!(begun.elapsed() < INDEXING_MAX, "the search index did not take all emails");
            tokio::time::sleep(POLL).await;
        }
        Ok(begun.elapsed())
    }

    async fn read(&self, measured: &mut Measured, user: &User, op: Op) -> anyhow::Result<()> {
        let count = self.connections(if op == Op::Flag { WRITERS } else { READERS });
        let name = match op {
            Op::Mailboxes => format!("{}_{}", op.name(), user.mailboxes),
            _ => op.name().to_owned(),
        };
        let clients = readers(self.mail_server.jmap, user, op, self.corpus, count).await?;
        let load = self.run(clients, Pace::Closed).await.with_context(|| format!("{name} failed"))?;
        measured.load(name, user.emails, load);
        Ok(())
    }

    /// The listing at a fixed rate.
    async fn read_at_rate(&self, measured: &mut Measured, user: &User) -> anyhow::Result<()> {
        let pace = Pace::Open(self.common.pick(OPEN_PER_S, OPEN_PER_S_QUICK));
        let count = self.connections(WRITERS);
        let clients = readers(self.mail_server.jmap, user, Op::Query20, self.corpus, count).await?;
        let load = self.run(clients, pace).await.context("query20 at a fixed rate failed")?;
        measured.load("query20_open".to_owned(), user.emails, load);
        Ok(())
    }

    /// Clients that wait for changes: the memory of each, and the time until all have received one.
    async fn push(&self, measured: &mut Measured, user: &User) -> anyhow::Result<()> {
        let (address, server) = (self.mail_server.jmap, &self.mail_server.server);
        let count = self.connections(LISTENERS);
        // One writer: a second one would set keywords that are already set, which is no change.
        let mut writer = readers(address, user, Op::Flag, self.corpus, 1).await?;
        let writer = writer.first_mut().context("there is no writer")?;
        // All stay connected: memory that is freed in between would hide what the next clients use.
        let mut connected = Vec::new();
        for waiting in [Waiting::EventStream, Waiting::WebSocket] {
            let before = server.private_memory();
            let clients = listeners(address, &user.token, waiting, count).await?;
            if let Some((before, after)) = before.zip(server.private_memory()) {
                let of_one = after.saturating_sub(before) as f64 / count.max(1) as f64;
                measured.figure(waiting.names().1, user.emails, of_one / 1e3, "kB");
            }
            connected.push((waiting.names().0, clients));
        }
        let length = self.common.pick(LENGTH, QUICK);
        while let Some((name, mut clients)) = connected.pop() {
            let load = pushing::push(server, writer, &mut clients, length).await;
            measured.load(name.to_owned(), user.emails, load.with_context(|| format!("{name} failed"))?);
        }
        Ok(())
    }

    /// The server's memory with connections that have each sent one request.
    async fn memory(&self, measured: &mut Measured, user: &User) -> anyhow::Result<()> {
        let mut clients =
            readers(self.mail_server.jmap, user, Op::Query20, self.corpus, self.connections(IDLE)).await?;
        for client in &mut clients {
            client.once().await?;
        }
        let server = &self.mail_server.server;
        let resident = resident_memory(&server.id().to_string());
        for (op, bytes) in [("memory_private", server.private_memory()), ("memory_resident", resident)] {
            if let Some(bytes) = bytes {
                measured.figure(op, user.emails, bytes as f64 / 1e6, "MB");
            }
        }
        Ok(())
    }

    /// How much the server's memory grows while emails are delivered over many connections and indexed.
    async fn memory_of_import(&self, measured: &mut Measured, filled: &Filled) -> anyhow::Result<()> {
        let emails = main_inbox(filled)?.emails * IMPORTED.0 / IMPORTED.1;
        let post = Arc::new(Post::new(self.other_corpus(1), filled.recipients.clone()));
        let clients = senders(self.mail_server.lmtp, &post, self.connections(WRITERS)).await?;
        let memory = || self.mail_server.server.private_memory();
        let (before, mut most) = (memory(), memory());
        let mut done = pin!(deliver_all(clients, emails));
        loop {
            tokio::select! {
                done = &mut done => break done.context("deliveries failed")?,
                () = tokio::time::sleep(POLL) => most = most.max(memory()),
            }
        }
        if let Some((before, most)) = before.zip(most) {
            measured.figure("memory_import", emails, most.saturating_sub(before) as f64 / 1e6, "MB");
        }
        Ok(())
    }

    /// Delivers emails by LMTP, and searches for each as soon as it is accepted.
    async fn search_for_new(&self, measured: &mut Measured, user: &User) -> anyhow::Result<()> {
        let post = Arc::new(Post::new(self.other_corpus(2), vec![user.address.clone()]));
        let mut senders = senders(self.mail_server.lmtp, &post, 1).await?;
        let sender = senders.first_mut().context("there is no connection")?;
        let mut caller = Caller::open(self.mail_server.jmap, &user.token).await?;
        let (begun, emails) = (Instant::now(), self.common.pick(SEARCHED, SEARCHED_QUICK));
        let mut load = Load { connections: 1, ..Load::default() };
        let mut missed = 0;
        for number in 0..emails {
            let word = format!("needle{number}");
            sender.deliver_with(&word).await?;
            let asked = Instant::now();
            let arguments = format!(",\"filter\":{{\"text\":\"{word}\"}},\"limit\":20");
            let found = caller.call("Email/query", &arguments).await?;
            load.times.record(asked.elapsed());
            let is_found = found.get("ids").and_then(Value::as_array).is_some_and(|ids| ids.len() == 1);
            missed += u64::from(!is_found);
        }
        load.duration = begun.elapsed();
        measured.load("text_new".to_owned(), emails, load);
        measured.figure("text_new_missed", emails, missed as f64, "emails");
        Ok(())
    }

    /// Delivers over many connections, over one, and to many recipients.
    async fn deliver(&self, measured: &mut Measured, filled: &Filled) -> anyhow::Result<()> {
        let post = Arc::new(Post::new(self.corpus, filled.recipients.clone()));
        if self.has(Part::Lmtp) {
            let clients = senders(self.mail_server.lmtp, &post, self.connections(WRITERS)).await?;
            let load = self.run(clients, Pace::Closed).await.context("deliveries failed")?;
            measured.load("lmtp".to_owned(), 0, load);
        }
        if self.has(Part::LmtpOne) {
            self.deliver_over_one(measured, filled, &post).await?;
        }
        if self.has(Part::LmtpAll) {
            self.deliver_to_all(measured, &post).await?;
        }
        Ok(())
    }

    /// Delivers over one connection, and measures the disk alone. Before that it waits until the search index has all emails: its
    /// syncs would be measured too.
    async fn deliver_over_one(
        &self,
        measured: &mut Measured,
        filled: &Filled,
        post: &Arc<Post>,
    ) -> anyhow::Result<()> {
        let delivered = self.count("restante_mail_deliveries_total").await?;
        self.wait_for_index(filled.emails + delivered).await?;
        let before = self.probe().await?;
        let clients = senders(self.mail_server.lmtp, post, 1).await?;
        let load = self.run(clients, Pace::Closed).await.context("deliveries over one connection failed")?;
        measured.load("lmtp_one".to_owned(), 0, load);
        measured.figure("fdatasync", 0, f64::midpoint(before, self.probe().await?), "/s");
        Ok(())
    }

    /// Delivers mails that each go to all recipients, and counts the blobs that are stored for them.
    async fn deliver_to_all(&self, measured: &mut Measured, post: &Arc<Post>) -> anyhow::Result<()> {
        let senders = senders(self.mail_server.lmtp, post, 1).await?;
        let senders = senders.into_iter().map(Sender::with_all_recipients).collect();
        let before = self.count("restante_blobs_put_blobs_total").await?;
        let load = self.run(senders, Pace::Closed).await.context("deliveries to many recipients failed")?;
        let blobs = self.count("restante_blobs_put_blobs_total").await? - before;
        measured.figure("blobs_of_a_mail", 0, blobs as f64 / load.times.len().max(1) as f64, "");
        measured.load("lmtp_all".to_owned(), 0, load);
        Ok(())
    }

    /// What a metric has counted with the result `new` since the server started.
    async fn count(&self, metric: &str) -> anyhow::Result<u64> {
        Ok(Scrape::of(self.mail_server.server.address).await?.sum_with(metric, "result", "new"))
    }

    /// Syncs a second of the disk alone.
    async fn probe(&self) -> anyhow::Result<f64> {
        let (folder, patience) = (self.folder.to_owned(), self.common.pick(PROBE, QUICK));
        let probe = tokio::task::spawn_blocking(move || syncs_per_second(&folder, patience));
        probe.await?.context("can't measure the disk")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn stores_that_were_filled_hold_what_was_planned() {
        let folder = tempfile::tempdir().unwrap();
        let stores = Stores::new(Profile::Embedded, folder.path()).unwrap();
        let corpus = Corpus { seed: 1 };
        let plan = Plan { corpus, inboxes: vec![3, 300], mailboxes: vec![20], recipients: 2 };
        let filled = fill(&stores, &plan).await.unwrap();
        let counts: Vec<_> = filled.inboxes.iter().map(|user| (user.emails, user.mailboxes)).collect();
        assert_eq!(counts, [(3, 6), (300, 6)]);
        assert_eq!((filled.emails, filled.recipients.len(), filled.mailboxes[0].mailboxes), (303, 2, 20));
        let raw: usize = (0..3).chain(0..300).map(|n| corpus.email(n).len()).sum();
        assert_eq!(filled.raw_bytes, raw as u64);
        let bytes = filled.bytes.unwrap();
        assert!(bytes > filled.raw_bytes);
        assert_eq!(
            main_inbox(&filled).unwrap().emails,
            300,
            "the largest, where none has the size of the goals"
        );

        let [beyond, search] = on_disk(&filled, Some(303_000)).collect::<Vec<_>>().try_into().unwrap();
        let expected = bytes as f64 - raw as f64;
        assert!((beyond.value - expected / 303_000.0).abs() < 1e-6);
        assert_eq!((search.value, search.unit), (1.0, "kB"));
    }

    #[test]
    fn servers_that_are_not_named_are_asked_for() {
        if std::env::var_os("RESTANTE_CASSANDRA_URL").is_none() {
            let error = Stores::new(Profile::Distributed, Path::new("x")).err().unwrap().to_string();
            assert!(error.starts_with("RESTANTE_CASSANDRA_URL is not set: "), "{error}");
        }
        let stores = Stores::new(Profile::Embedded, Path::new("x")).unwrap();
        assert_eq!(
            stores.engines(),
            "records of the engine lmdb, blobs of the engine files and an index of the engine tantivy"
        );
        let variables = stores.variables();
        assert!(variables.contains(&("RESTANTE_RECORDS__URL", "lmdb:x/records".to_owned())), "{variables:?}");
        assert_eq!(variables.len(), 3, "nothing of S3");
    }
}
