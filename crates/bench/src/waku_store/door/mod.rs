//! Store queries over libp2p: real clients, each a node of its own in this process, and a server in another.

mod floor;
mod present;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use restante_waku::Multiaddr;

use super::StoreArgs;
use crate::{
    args::EngineChoice,
    machine::Machine,
    peers::{
        history::{History, PAGE_MAX, hash_of, question},
        users::{self, Asked, Plan},
    },
    progress,
    relay::node_settings,
    report::Report,
    server::{self, Server},
    stock::{ABSENT_TOPIC, HOT_TOPIC, Stock, refuse_memory},
    store::work_folder,
};
use floor::{Floor, Question};

/// Messages of the archive, as in the measurements of nwaku.
const MESSAGES: u64 = 1_000_000;
const MESSAGES_QUICK: u64 = 5_000;
/// Users and page sizes, as in nwaku's measurement.
const USERS: [usize; 3] = [1, 10, 25];
const USERS_QUICK: [usize; 3] = [1, 2, 3];
const PAGES: [u64; 2] = [20, 100];
/// Length of a cell.
const SECONDS: u64 = 5;
const QUICK: Duration = Duration::from_millis(200);
/// The floors need less time: they vary little.
const FLOOR_SHARE: f64 = 0.4;
/// Pages that are compared with the messages in the archive.
const CHECKED_PAGES: usize = 20;

/// One cell: users, a page size and a topic.
#[derive(Clone, Debug)]
struct Cell {
    users: usize,
    page: u64,
    is_absent: bool,
    asked: Asked,
}

/// The results of one engine.
struct Measured {
    engine: &'static str,
    messages: u64,
    cells: Vec<Cell>,
    floors: Vec<Floor>,
    memory_bytes: Option<u64>,
}

/// Runs the bench.
pub(super) async fn measure(args: &StoreArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    refuse_memory(common, "bench store")?;
    ensure!(
        args.servers == 1 && args.outage.is_none(),
        "--servers and --outage are measured through REST: use --door rest"
    );
    let folder = work_folder(common)?;
    let title = "Store queries over libp2p: a backward walk by cursor with data, users of one node each.";
    let mut report = Report::new("store", title, Machine::look(folder.path()));
    let stock =
        Arc::new(Stock::new(common.seed, common.messages.unwrap_or(common.pick(MESSAGES, MESSAGES_QUICK))));
    let seconds = args.seconds.map_or(common.pick(Duration::from_secs(SECONDS), QUICK), Duration::from_secs);
    let bench = Bench {
        stock,
        length: seconds,
        users: common.pick(USERS, USERS_QUICK),
        program: server::program(args.server.as_deref())?,
    };
    for choice in &common.engines {
        let measured = bench.measure(choice, folder.path()).await?;
        present::present(&measured, &mut report)?;
    }
    present::note(&mut report);
    report.note_size_of(bench.stock.len(), MESSAGES, "messages");
    report.note_quick(common.quick);
    Ok(report)
}

struct Bench {
    stock: Arc<Stock>,
    length: Duration,
    users: [usize; 3],
    program: PathBuf,
}

impl Bench {
    async fn measure(&self, choice: &EngineChoice, folder: &std::path::Path) -> anyhow::Result<Measured> {
        let store = self.stock.lay_in(choice, folder).await?;
        let (url, engine) = (&store.location.url, store.engine());
        let name = format!("door-{engine}");
        let server = Server::start_with(&self.program, url, folder, &name, &node_settings(&[])).await?;
        let node = server.peer_address().await?;
        let load = Load { stock: &self.stock, node: &node, users: self.users, length: self.length };
        let measured = load.run(&|| server.worked()).await;
        let (cells, floors) =
            measured.with_context(|| format!("the last lines of the server: {}", server.log_tail()))?;
        let memory_bytes = server.private_memory();
        server.stop().await?;
        Ok(Measured { engine, messages: self.stock.len(), cells, floors, memory_bytes })
    }
}

/// Clients of a server that holds the stock.
struct Load<'a> {
    stock: &'a Stock,
    node: &'a Multiaddr,
    users: [usize; 3],
    length: Duration,
}

impl Load<'_> {
    async fn run(
        &self,
        server_worked: &(dyn Fn() -> Option<Duration> + Sync),
    ) -> anyhow::Result<(Vec<Cell>, Vec<Floor>)> {
        let bytes = [self.check(PAGES[0]).await?, self.check(PAGES[1]).await?];
        let bar = progress::bar("store queries", (PAGES.len() * (self.users.len() + 3)) as u64);
        let (mut cells, mut floors) = (Vec::new(), Vec::new());
        for (page, answer_bytes) in PAGES.into_iter().zip(bytes) {
            for users in self.users {
                cells.push(self.cell(users, page, HOT_TOPIC, server_worked).await?);
                bar.inc(1);
            }
            let users = self.users.into_iter().max().unwrap_or(1);
            cells.push(self.cell(users, page, ABSENT_TOPIC, server_worked).await?);
            bar.inc(1);
            let question = Question { users, page, answer_bytes, length: self.length.mul_f64(FLOOR_SHARE) };
            floors.push(floor::plain(question).await?);
            floors.push(floor::encrypted(question).await?);
            bar.inc(2);
        }
        bar.finish_and_clear();
        Ok((cells, floors))
    }

    async fn cell(
        &self,
        users: usize,
        page: u64,
        topic: &str,
        server_worked: &(dyn Fn() -> Option<Duration> + Sync),
    ) -> anyhow::Result<Cell> {
        let plan = Plan {
            server: self.node.to_string(),
            users,
            page,
            content_topic: topic.to_owned(),
            seconds: self.length.as_secs_f64(),
        };
        let asked = users::ask(&plan, server_worked).await?;
        let is_absent = topic == ABSENT_TOPIC;
        ensure!(!is_absent || asked.messages == 0, "a topic without messages was answered with some");
        Ok(Cell { users, page, is_absent, asked })
    }

    /// Reads the last pages backward, compares them with the messages in the archive, and returns the bytes of an answer.
    async fn check(&self, page: u64) -> anyhow::Result<usize> {
        let history = History::start(self.node).await?;
        let mut expected = self.stock.newest(CHECKED_PAGES * page as usize).into_iter();
        let mut request = question(HOT_TOPIC, page);
        let mut bytes = 0;
        for _ in 0..CHECKED_PAGES {
            let answer = history.page(&request).await?;
            bytes = bytes.max(answer.messages.iter().map(bytes_of).sum());
            // A page is in ascending order, while the walk goes backward.
            for entry in answer.messages.iter().rev() {
                let hash = hash_of(entry.message_hash.as_deref())?;
                ensure!(Some(hash) == expected.next(), "a page of {page} holds a message out of its order");
            }
            match answer.pagination_cursor {
                Some(cursor) => request.pagination_cursor = Some(cursor),
                None => break,
            }
        }
        ensure!(expected.next().is_none(), "the pages of {page} ended too early");
        history.close().await;
        Ok(bytes)
    }
}

/// Approximate bytes of an entry in an answer, without the message.
fn bytes_of(entry: &restante_waku_wire::rpc::store::KeyValue) -> usize {
    const AROUND: usize = 16; // keys and lengths
    let parts = [
        entry.message_hash.as_ref().map_or(0, bytes::Bytes::len),
        entry.message.as_ref().map_or(0, bytes::Bytes::len),
        entry.pubsub_topic.as_ref().map_or(0, String::len),
    ];
    parts.into_iter().sum::<usize>() + AROUND
}

const _: () = assert!(PAGES[1] <= PAGE_MAX, "no store returns larger pages");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::Served;

    #[tokio::test(flavor = "multi_thread")]
    async fn clients_read_the_stored_messages_over_libp2p() {
        let served = Served::start().await;
        let stock = Arc::new(Stock::new(0, 4_000));
        stock.append_to(&*served.opened.archive).await.unwrap();
        let load = Load { stock: &stock, node: &served.node, users: USERS_QUICK, length: QUICK };
        let (cells, floors) = load.run(&|| None).await.unwrap();
        assert_eq!((cells.len(), floors.len()), (8, 4));
        for cell in &cells {
            assert_eq!((cell.asked.errors, &cell.asked.first_error), (0, &None));
            assert!(cell.asked.pages.len() >= cell.users as u64);
            assert_eq!(cell.asked.messages == 0, cell.is_absent);
        }
        assert!(floors.iter().all(|floor| floor.answer_bytes > 1_400 * floor.page as usize));
        served.stop().await;
    }

    /// A store with wrong content is an error.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_archive_without_the_messages_is_an_error() {
        let served = Served::start().await;
        let stock = Arc::new(Stock::new(0, 4_000));
        let load = Load { stock: &stock, node: &served.node, users: USERS_QUICK, length: QUICK };
        let error = load.run(&|| None).await.err().unwrap().to_string();
        assert!(error.contains("ended too early"), "{error}");
        served.stop().await;
    }
}
