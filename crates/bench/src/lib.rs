//! Workloads, load clients and reports: `restante bench NAME` measures on any machine what restante promises.
//!
//! Benches use public traits and doors only. Floors (copying the same bytes, syncing the same disk) are measured in the
//! same run, between the measurements that they are compared with; results are ratios to them.
//!
//! The data set, the report and the measuring of session tables are public for `tests/compare`, which measures other stores
//! beside ours.

mod answer;
mod args;
pub mod dataset;
mod directory;
mod engines;
mod history;
mod http;
mod ingest;
mod jmap;
mod location;
mod machine;
mod mail_in;
mod mail_out;
mod measure;
mod overhead;
mod pace;
mod pages;
mod peers;

mod progress;
mod random;
mod records;
mod relay;
mod report;
mod rest;
mod scrape;
mod server;
pub mod sessions;
mod soak;
mod stock;
mod store;
mod supply;
mod together;
mod upkeep;
mod waku_store;

use futures_util::future::LocalBoxFuture;

pub use args::{CommonArgs, EngineChoice, FreshEngine, OutputArgs, ParseSizesError, Sizes};
pub use directory::DirectoryArgs;
pub use engines::EnginesArgs;
pub use history::HistoryArgs;
pub use ingest::IngestArgs;
pub use jmap::{JmapArgs, Part as JmapPart, Profile as JmapProfile};
pub use machine::Machine;
pub use mail_in::MailInArgs;
pub use mail_out::MailOutArgs;
pub use measure::{median, ms, rounded, touch_all};
pub use overhead::OverheadArgs;
pub use pages::PagesArgs;
pub use records::{Part as RecordsPart, RecordsArgs, RecordsEngine};
pub use relay::RelayArgs;
pub use report::{Bars, Curves, Goal, Plot, Report, Series, Table, number, optional};
pub use rest::RestArgs;
pub use sessions::{Part as SessionsPart, SessionsArgs};
pub use soak::SoakArgs;
pub use upkeep::UpkeepArgs;
pub use waku_store::{Door, StoreArgs};

/// What to measure.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Ask for history by time and topics or bloom filter, in full and in pages
    ///
    /// Fills an archive with the data set of a Status mailserver (1,467,846 messages of 30 days over 9,606 topics, 1 GB) and asks for
    /// 3 topics (s), 256 topics (l) and nearly all messages (x) of a week (1w) or a month (1m), each as a list of topics
    /// and as a bloom filter, alone and 2, 4 and 8 at once. Prints published figures beside its own, and the ratio
    /// to copying the same bytes once. Takes about two minutes and 1.2 GB of disk.
    History(HistoryArgs),
    /// Append durably, in batches of 1 to 1,000 and by 1 to 64 appenders
    ///
    /// Measures messages a second, the time of an append, bytes written and bytes on disk by bytes of payload, and compares each
    /// with the disk below the folder alone: syncs after an append of 700 bytes, and one long write.
    /// Name a folder on the disk you mean with --data. Takes about a minute and a half and up to 2 GB of disk.
    Ingest(IngestArgs),
    /// Read pages of 100 at any depth, in archives of several sizes
    ///
    /// Fills archives of 150 thousand, 1.5 million and 15 million messages and reads pages of hot, rare and absent topics,
    /// by bloom filter and by hash, at the beginning, in the middle and deep in the past or future, in both directions. A
    /// page should cost the same in each of them. 15 million messages take 13 GB of disk at most and a few minutes;
    /// --sizes chooses others.
    Pages(PagesArgs),
    /// Start, remove the oldest day while messages arrive, measure memory
    ///
    /// Fills an archive with the data set, opens it repeatedly, reads the private memory of a process that has it open,
    /// and removes the oldest days one by one while an appender and a client with queries run: the time of each removal, the
    /// longest append meanwhile, the 99th percentile of appends and queries with and without, and the freed disk space.
    /// Takes about half a minute and 1.2 GB of disk. An archive of --engine loses up to its oldest twenty days.
    Upkeep(UpkeepArgs),
    /// Load the REST interface: pages, export, publishing
    ///
    /// Fills an archive with the data set, starts `restante serve` on it in a process of its own, and lets 25 clients page
    /// through it over kept-alive connections, one export everything, and 64 publish messages of 700 bytes: requests a
    /// second, times, the server's start-up and private memory. Takes about half a minute and 1.2 GB of disk.
    Rest(RestArgs),
    /// Query a server while messages are published to it; several servers on one database
    ///
    /// Fills an archive with the data set and starts `restante serve` on it. 1, 10 and 25 users page through it, each with a
    /// query a second and then without a pause, while 10 messages a second of 10 kB, and then 1,000 of 1.4 kB, are
    /// published. At the end every acknowledged message must be there. Takes about four minutes for each engine.
    ///
    /// --servers N starts N servers on one PostgreSQL database instead: each gets the same messages, and 50 and 100
    /// clients query them ten times a second each. --outage stops the database under load and starts it again.
    ///
    /// --door waku asks over libp2p instead, as light nodes do: a million messages of 1.4 kB, pages of 20 and 100, 1, 10 and 25
    /// nodes as fast as they can, and a topic without messages. Takes about two minutes and 2 GB of disk.
    Store(StoreArgs),
    /// Publish through relay by real nodes: what arrives, what is stored, what is lost
    ///
    /// Starts `restante serve` and 30 nodes that publish 300 messages of 1.4 kB each, at once and paced, and compares the
    /// server's history with what was published. Then the same with two servers, one of which is killed halfway and
    /// started again. Last, the time from publisher to subscriber, without and while 25 users query as fast as they
    /// can. Takes about three minutes and 300 MB of disk.
    Relay(RelayArgs),
    /// Run a server for ten minutes with all kinds of load: messages, queries, peers that come and go, retention
    ///
    /// 100 messages a second by relay, 20 users, a visitor every 300 ms, and a retention of one minute. At the end memory
    /// must be flat, the log without a warning, nothing lost and no request failed.
    Soak(SoakArgs),
    /// Measure the table of sessions: its info, look-ups, memory, Redis, live streams
    ///
    /// Repeats MongooseIM's micro-benchmark (finding and merging entries of a session's info) with its published figures;
    /// looks up, changes, opens and closes sessions in tables of 12,000 and 1,000,000 on one and two threads, compared with the
    /// cost of a cache miss; measures bytes per session, counting, 12,000 users that arrive and write to their
    /// neighbours, and 10,000 live streams over REST with 1,000 messages a second; with a Redis, also the redis engine.
    /// Takes about three minutes, 500 MB of memory and 100 MB of disk; --parts chooses. `make compare` measures other tables.
    Sessions(SessionsArgs),
    /// Measure records: KDE Sink's tables, bytes on disk and written, commits, reads
    ///
    /// Repeats the two tables of KDE Sink's authors (5,000 and 1,000 mails of 184 bytes) with their figures before and after their
    /// patches; puts 10 thousand, 100 thousand and a million mail-like records of 602 bytes into fresh stores, 1 to
    /// 1,000 in a commit, with and without the commit log, and counts bytes on disk and bytes written by bytes of records;
    /// changes flags; reads single records, the newest of a mailbox and changes since; commits one at a time and by 64
    /// committers, compared with the disk alone. Name a folder on the disk you mean with --data. Takes several minutes
    /// and 2.6 GB of disk; --parts and --records choose.
    Records(RecordsArgs),
    /// Look up addresses and log in, among 100,000 accounts
    ///
    /// Adds 100,000 accounts to a fresh directory and asks where mail for their addresses goes; logs in with passwords that are checked
    /// and with ones that are remembered; tries many wrong passwords at once and counts the processors that takes. Takes a minute
    /// or two and 300 MB of disk.
    Directory(DirectoryArgs),
    /// Read and change mail by JMAP, deliver it by LMTP
    ///
    /// Writes inboxes of 1,000 and 100,000 emails that are generated from a seed, starts `restante serve` on them, and lets clients ask for
    /// pages of the inbox, threads, mailboxes, changes and words, set keywords, and deliver mail of 4 KB: requests a second, times, processor
    /// time of server and clients, bytes on disk beyond the raw messages, memory. Figures of Cyrus and James stand beside them.
    /// Name a folder on the disk you mean with --data. Takes a few minutes and 1.5 GB of disk; --emails chooses other inboxes.
    Jmap(JmapArgs),
    /// Check incoming mail: who sends it; flood a server, and time known senders beside that
    ///
    /// --checks looks for SPF, signatures, chains and policies of mails of 4 KB and of 10 MB, all names in memory: messages a second, times, processor
    /// time of a message. Takes a quarter of a minute.
    ///
    /// --flood starts `restante serve` and floods it with 2,000 connections, clients that send a byte a second, 100,000 unknown recipients and
    /// guessed passwords, from 1,000 addresses, one after the other and all at once, while known senders deliver and submit mail: their times
    /// with and without the flood, and the memory of the server. Takes five minutes. Name a folder on the disk you mean with --data.
    MailIn(MailInArgs),
    /// Submit and send mail, with many domains and some that fail; open a queue of a million
    ///
    /// Clients submit mails of 4 KB into the queue while a sender sends them over 50 connections to servers in the same process: mails a
    /// second with 1, 100 and 10,000 domains, and times while some of the domains are dead or slow. A queue of a million recipients that
    /// are due later is opened by another process: its start, lists and memory.
    /// Name a folder on the disk you mean with --data. Takes some minutes and 4 GB of disk; --queued chooses a shorter queue.
    MailOut(MailOutArgs),
    /// Judge the engines that you run: are they as fast as they should be, and set up safely?
    ///
    /// Measures each engine that is named by a flag or by the environment, with what restante asks of it; compares with published
    /// figures and with what disk and network of the same run allow; says of each figure whether the engine is healthy; and names
    /// settings that lose data or cost speed, with their cure. Everything is created under a name of this run and removed at the end,
    /// also on Ctrl-C.
    Engines(Box<EnginesArgs>),
    /// What restante's engines take beside the same work by a raw client of the server
    ///
    /// Compares commits and pages of records, appends and pages of an archive, blobs, the queue of work and the search index with the least
    /// that a client of our own does on the same server for the same bytes, in pairs that alternate, and prints the median ratio with that of
    /// the smallest and the largest pair. Measures the servers that RESTANTE_CASSANDRA_URL, RESTANTE_POSTGRES_URL, RESTANTE_S3_URL,
    /// RESTANTE_RABBITMQ_URL and RESTANTE_OPENSEARCH_URL name. Everything is created under a name of this run and removed at the end,
    /// also on Ctrl-C. Takes a quarter of an hour with all of them.
    Overhead(OverheadArgs),
}

/// Runs a bench, prints its report and writes the requested files. On Ctrl-C it removes its files and ends the processes
/// that it started.
///
/// # Errors
/// When an engine fails or answers wrongly, a file can't be written, or the bench was interrupted.
pub fn run(command: BenchCommand) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    // Boxed here, so that this crate compiles the benches, and not the program as well.
    Box::pin(run_or_interrupt(command))
}

async fn run_or_interrupt(command: BenchCommand) -> anyhow::Result<()> {
    if let BenchCommand::Engines(args) = &command {
        return engines::run(args).await; // an engine on another machine keeps what is not removed
    }
    if let BenchCommand::Overhead(args) = &command {
        return Box::pin(overhead::run(args)).await; // the same
    }
    tokio::select! {
        result = Box::pin(run_to_end(command)) => result,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("the bench was interrupted"),
    }
}

async fn run_to_end(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::History(args) => history::run(&args).await,
        BenchCommand::Ingest(args) => ingest::run(&args).await,
        BenchCommand::Pages(args) => pages::run(&args).await,
        BenchCommand::Upkeep(args) => upkeep::run(&args).await,
        BenchCommand::Rest(args) => rest::run(&args).await,
        BenchCommand::Store(args) => waku_store::run(&args).await,
        BenchCommand::Relay(args) => relay::run(&args).await,
        BenchCommand::Soak(args) => soak::run(&args).await,
        BenchCommand::Sessions(args) => sessions::run(&args).await,
        BenchCommand::Records(args) => records::run(&args).await,
        BenchCommand::Directory(args) => directory::run(&args).await,
        BenchCommand::Jmap(args) => jmap::run(&args).await,
        BenchCommand::MailIn(args) => mail_in::run(&args).await,
        BenchCommand::MailOut(args) => mail_out::run(&args).await,
        BenchCommand::Engines(args) => engines::run(&args).await,
        BenchCommand::Overhead(args) => overhead::run(&args).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of a small run without a disk.
    pub(crate) fn quick(engine: &str) -> CommonArgs {
        CommonArgs {
            messages: Some(5_000),
            engines: vec![engine.parse().unwrap()],
            data: Some(std::env::temp_dir()),
            seed: 0,
            json: None,
            html: None,
            quick: true,
        }
    }
}
