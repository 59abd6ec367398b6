//! What the engine `opensearch` does when OpenSearch is busy, slow, broken or away: on a fake server whose responses the tests choose.
#![cfg(feature = "opensearch")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_core::{ErrorKind, nonzero};
use restante_search::{
    AccountId, Batch, Config, Document, Filter, Hit, Opened, Query, RecordId, Revision, Series, open,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::sleep,
};

const A: AccountId = AccountId(7);

/// How one request is answered.
#[derive(Clone)]
enum Reply {
    /// Like an OpenSearch with an empty index.
    Usual,
    With(u16, Value),
    Text(u16, &'static str),
    /// The connection ends in the middle of the answer.
    Half,
    /// No response arrives.
    Silence,
    /// The outcomes of the items of a bulk request, in their order; further ones succeed.
    Items(Vec<(u16, &'static str)>),
}

#[derive(Clone, Debug)]
struct Asked {
    method: String,
    path: String,
    body: String,
    authorization: Option<String>,
}

impl Asked {
    fn is(&self, what: &str) -> bool {
        self.path.contains(what)
    }

    /// The ids of the documents of a bulk request.
    fn ids(&self) -> Vec<String> {
        let lines = self.body.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let actions = lines.filter_map(|line| line.as_object()?.values().next().cloned());
        actions.filter_map(|action| Some(action.get("_id")?.as_str()?.to_owned())).collect()
    }

    /// What a step of a commit does.
    fn step(&self) -> String {
        let name = self.path.split('?').next().unwrap().rsplit('/').next().unwrap();
        if name != "_bulk" {
            return name.to_owned();
        }
        let mut step = self.ids().join(" ");
        if self.body.contains("unfinished") {
            step.push_str(" unfinished");
        }
        if self.is("refresh=true") {
            step.push_str(" shown");
        }
        step
    }
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    /// The responses for the next requests whose path contains the text.
    replies: VecDeque<(&'static str, Reply)>,
    has_index: bool,
}

/// A server whose responses a test chooses.
struct Server {
    state: Arc<Mutex<State>>,
    address: String,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn on(listener: TcpListener) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let address = listener.local_addr().unwrap().to_string();
        let shared = state.clone();
        let serve = async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, shared.clone()));
            }
        };
        Self { state, address, task: tokio::spawn(serve).abort_handle() }
    }

    fn config(&self) -> Config {
        let mut config = Config::new(format!("opensearch://{}", self.address).parse().unwrap());
        config.opensearch.commit_ms = 3_600_000;
        config.opensearch.prefix = "t".to_owned();
        config
    }

    async fn open(&self) -> Opened {
        open(self.config()).await.unwrap()
    }

    fn reply(&self, to: &'static str, reply: Reply) {
        self.state.lock().unwrap().replies.push_back((to, reply));
    }

    fn always(&self, to: &'static str, reply: &Reply) {
        (0..1_000).for_each(|_| self.reply(to, reply.clone()));
    }

    fn usual(&self) {
        self.state.lock().unwrap().replies.clear();
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    fn take_of(&self, what: &str) -> Vec<Asked> {
        self.take().into_iter().filter(|asked| asked.is(what)).collect()
    }
}

async fn serve(socket: TcpStream, state: Arc<Mutex<State>>) {
    let mut socket = BufReader::new(socket);
    while let Some(asked) = read(&mut socket).await {
        let reply = {
            let mut state = state.lock().unwrap();
            state.asked.push(asked.clone());
            let place = state.replies.iter().position(|(to, _)| asked.is(to));
            let reply =
                place.and_then(|place| state.replies.remove(place)).map_or(Reply::Usual, |(_, reply)| reply);
            match reply {
                Reply::Usual => usual(&asked, &mut state),
                Reply::Items(outcomes) => Reply::With(200, items(&asked, &outcomes)),
                reply => reply,
            }
        };
        let (status, body) = match reply {
            Reply::With(status, body) => (status, body.to_string()),
            Reply::Text(status, text) => (status, text.to_owned()),
            Reply::Half => {
                socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"took\":1,").await.ok();
                return;
            }
            Reply::Silence => {
                sleep(Duration::from_secs(3_600)).await;
                return;
            }
            Reply::Usual | Reply::Items(_) => unreachable!("they were made above"),
        };
        let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\n\r\n", body.len());
        if socket.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn read(socket: &mut BufReader<TcpStream>) -> Option<Asked> {
    let mut line = String::new();
    socket.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        socket.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await.ok()?;
    Some(Asked { method, path, body: String::from_utf8(body).ok()?, authorization })
}

/// Responds like an OpenSearch that has an empty index once one was created.
fn usual(asked: &Asked, state: &mut State) -> Reply {
    let shards = json!({"total": 1, "successful": 1, "failed": 0});
    let found = match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", path) if path.starts_with("/t,t-next,t-old") => match state.has_index {
            true => {
                json!({"t-1": {"aliases": {"t": {}}, "mappings": {"_meta": {"restante": {"format": 2}}}}})
            }
            false => json!({}),
        },
        ("PUT", path) if path.starts_with("/t-") && !path.contains("_doc") => {
            state.has_index = true;
            json!({"acknowledged": true, "shards_acknowledged": true})
        }
        ("GET", path) if path.contains("/_doc/meta") => {
            return Reply::With(404, json!({"_id": "meta", "found": false}));
        }
        (_, path) if path.contains("_bulk") => items(asked, &[]),
        (_, path) if path.contains("_mget") => {
            let asked: Value = serde_json::from_str(&asked.body).unwrap();
            let none: Vec<Value> =
                asked["docs"].as_array().unwrap().iter().map(|_| json!({"found": false})).collect();
            json!({ "docs": none })
        }
        (_, path) if path.contains("_search") => {
            json!({"timed_out": false, "_shards": shards, "hits": {"hits": []}})
        }
        (_, path) if path.contains("_delete_by_query") => {
            json!({"deleted": 0, "version_conflicts": 0, "failures": []})
        }
        _ => json!({ "_shards": shards }),
    };
    Reply::With(200, found)
}

fn items(asked: &Asked, outcomes: &[(u16, &'static str)]) -> Value {
    let mut outcomes = outcomes.iter();
    let mut item = || match outcomes.next() {
        Some((status, kind)) if !kind.is_empty() => {
            json!({"index": {"status": status, "error": {"type": kind, "reason": "because"}}})
        }
        Some((status, _)) => json!({"index": {"status": status}}),
        None => json!({"index": {"status": 201}}),
    };
    let items: Vec<Value> = asked.ids().iter().map(|_| item()).collect();
    json!({ "items": items })
}

fn email(number: u64) -> Document {
    Document { id: RecordId(number), body: vec!["word".to_owned()], ..Document::default() }
}

fn batch(numbers: impl IntoIterator<Item = u64>, revision: u64) -> Batch {
    let documents = numbers.into_iter().map(email).collect();
    Batch { removed: Vec::new(), documents, revision: Some(Revision(revision)) }
}

async fn begin(opened: &Opened) -> Series {
    opened.index.begin().await.unwrap().series
}

async fn query(opened: &Opened) -> Result<Vec<Hit>, restante_search::Error> {
    opened.search.query(A, &Query::new(Filter::And(vec![]))).await.map(|page| page.hits)
}

fn metric(config: &Config, line: &str) -> u64 {
    let mut registry = Registry::default();
    config.metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text.lines().find_map(|known| known.strip_prefix(line)).unwrap().trim().parse().unwrap()
}

fn without_revision(numbers: impl IntoIterator<Item = u64>) -> Batch {
    Batch { revision: None, ..batch(numbers, 0) }
}

const BUSY: (u16, &str) = (429, "rejected_execution_exception");
const REFUSED: (u16, &str) = (400, "mapper_parsing_exception");

#[tokio::test]
async fn items_for_which_it_is_too_busy_are_written_again_and_no_others() {
    let server = Server::start().await;
    let config = server.config();
    let opened = open(config.clone()).await.unwrap();
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1, 2, 3], 1)).await.unwrap();
    server.take();
    server.reply("_bulk", Reply::Items(vec![BUSY, (201, ""), (503, "unavailable_shards_exception")]));
    opened.index.commit(series).await.unwrap();
    let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    assert_eq!(ids, [vec!["7-1", "7-2", "7-3"], vec!["7-1", "7-3"], vec!["state-7"]]);
    assert_eq!(metric(&config, "restante_search_retried_total "), 2);
}

#[tokio::test]
async fn requests_that_fail_as_a_whole_are_sent_again() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1, 2], 1)).await.unwrap();
    let busy = json!({"error": {"type": "circuit_breaking_exception", "reason": "too large"}, "status": 429});
    let replies = [
        Reply::With(429, busy),
        Reply::Half,
        Reply::Text(503, "no backend"),
        Reply::With(200, json!({"items": [{"index": {"status": 201}}]})),
        Reply::Text(200, "<html>"),
    ];
    for (count, reply) in replies.into_iter().enumerate() {
        opened.index.write(series, A, batch([1, 2], count as u64 + 1)).await.unwrap();
        server.take();
        server.reply("_bulk", reply);
        let outcome = opened.index.commit(series).await;
        if count == 4 {
            // It is another server.
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
            return;
        }
        outcome.unwrap();
        let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
        assert_eq!(ids, [vec!["7-1", "7-2"], vec!["7-1", "7-2"], vec!["state-7"]], "{count}");
    }
}

#[tokio::test]
async fn a_request_that_is_too_long_is_split() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1, 2, 3], 1)).await.unwrap();
    server.take();
    server.reply("_bulk", Reply::Text(413, "too long"));
    server.reply("_bulk", Reply::Text(413, "too long"));
    opened.index.commit(series).await.unwrap();
    let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    // The first document alone is too long: it is left out.
    assert_eq!(ids, [vec!["7-1", "7-2", "7-3"], vec!["7-1"], vec!["7-2", "7-3"], vec!["state-7"]]);
}

#[tokio::test]
async fn an_opensearch_that_stays_busy_ends_the_series_with_its_revision_unwritten() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1], 1)).await.unwrap();
    server.take();
    server.always("_bulk", &Reply::Items(vec![BUSY]));
    let error = opened.index.commit(series).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    opened.index.ended(series).await;
    let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    assert!(ids.len() < 20 && ids.iter().all(|ids| *ids == ["7-1"]), "{ids:?}");
    server.usual();
    let series = begin(&opened).await;
    opened.upkeep.health().unwrap();
    assert_eq!(opened.index.revisions(series, &[A]).await.unwrap(), [Revision(0)]);
}

#[tokio::test]
async fn a_full_disk_is_reported_as_one() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1], 1)).await.unwrap();
    server.always("_bulk", &Reply::Items(vec![(403, "cluster_block_exception")]));
    let error = opened.index.commit(series).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("disk"), "{error}");
}

#[tokio::test]
async fn documents_that_are_refused_are_counted_and_left_out_up_to_a_bound() {
    let server = Server::start().await;
    let config = server.config();
    let opened = open(config.clone()).await.unwrap();
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1, 2, 3], 4)).await.unwrap();
    server.take();
    server.reply("_bulk", Reply::Items(vec![(201, ""), REFUSED]));
    opened.index.commit(series).await.unwrap();
    assert_eq!(server.take_of("_bulk").len(), 2, "the documents and the revision");
    assert_eq!(metric(&config, "restante_search_rejected_total "), 1);
    assert_eq!(opened.index.revisions(series, &[A]).await.unwrap(), [Revision(4)]);

    opened.index.write(series, A, batch(1..=120, 5)).await.unwrap();
    server.reply("_bulk", Reply::Items(vec![REFUSED; 120]));
    let error = opened.index.commit(series).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("mapper_parsing_exception"), "{error}");
    opened.index.ended(series).await;
    assert!(server.take_of("_bulk").iter().all(|asked| !asked.ids().contains(&"state-7".to_owned())));
}

#[tokio::test]
async fn a_refused_revision_is_an_error() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([], 1)).await.unwrap();
    server.reply("_bulk", Reply::Items(vec![REFUSED]));
    assert_eq!(opened.index.commit(series).await.unwrap_err().kind(), ErrorKind::Internal);
}

#[tokio::test]
async fn what_is_not_shown_keeps_the_checkpoint_back() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, without_revision([1])).await.unwrap();
    opened.index.save(series, "position".into()).await.unwrap();
    server.take();
    server
        .reply("_refresh", Reply::With(200, json!({"_shards": {"total": 2, "successful": 1, "failed": 1}})));
    assert_eq!(opened.index.commit(series).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    assert_eq!(ids, [["7-1"]]);
    // A shard that can't refresh fails the request that should have made the writes visible.
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1], 1)).await.unwrap();
    opened.index.save(series, "position".into()).await.unwrap();
    server.take();
    server.always("refresh=true", &Reply::Items(vec![(503, "engine_closed_exception")]));
    assert_eq!(opened.index.commit(series).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let mut ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    ids.dedup();
    assert_eq!(ids, [["7-1"], ["state-7"]]);
}

#[tokio::test]
async fn revisions_that_are_written_again_are_shown_as_well() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    for account in [7, 8, 9] {
        opened.index.write(series, AccountId(account), batch([1], 1)).await.unwrap();
    }
    server.take();
    server.reply("refresh=true", Reply::Items(vec![BUSY, (201, ""), BUSY]));
    server.reply("refresh=true", Reply::Text(413, "too long"));
    opened.index.commit(series).await.unwrap();
    let asked = server.take();
    let shown: Vec<Vec<String>> = asked.iter().filter(|one| one.is("refresh=true")).map(Asked::ids).collect();
    assert_eq!(
        shown,
        [vec!["state-7", "state-8", "state-9"], vec!["state-7", "state-9"], vec!["state-7"], vec!["state-9"]]
    );
    assert!(!asked.iter().any(|one| one.is("_refresh")));
}

#[tokio::test]
async fn accounts_without_a_revision_are_shown_by_a_refresh_of_the_index() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.write(series, A, batch([1], 1)).await.unwrap();
    opened.index.write(series, AccountId(8), without_revision([1])).await.unwrap();
    server.take();
    opened.index.commit(series).await.unwrap();
    let steps: Vec<String> = server.take().iter().map(Asked::step).collect();
    assert_eq!(steps, ["7-1 8-1", "state-7", "_refresh"]);
}

#[tokio::test]
async fn revisions_of_several_requests_are_shown_by_one_refresh_of_the_index() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    for account in 1..=501 {
        opened.index.write(series, AccountId(account), batch([], 1)).await.unwrap();
    }
    server.take();
    opened.index.commit(series).await.unwrap();
    let asked = server.take();
    assert!(!asked.iter().any(|one| one.is("refresh=true")));
    let lengths: Vec<usize> = asked.iter().map(|one| one.ids().len()).collect();
    assert_eq!(lengths, [500, 1, 0]);
    assert!(asked[2].is("_refresh"));
}

#[tokio::test]
async fn queries_that_are_answered_in_part_are_unavailable() {
    let server = Server::start().await;
    let opened = server.open().await;
    let part = json!({"timed_out": false, "_shards": {"failed": 1}, "hits": {"hits": []}});
    let late = json!({"timed_out": true, "_shards": {"failed": 0}, "hits": {"hits": []}});
    let wrong = json!({"error": {"type": "query_shard_exception", "reason": "no mapping"}, "status": 400});
    let replies = [
        Reply::Half,
        Reply::With(200, part),
        Reply::With(200, late),
        Reply::With(400, wrong),
        Reply::With(
            200,
            json!({"timed_out": false, "_shards": {"failed": 0}, "hits": {"hits": [{"sort": ["x"]}]}}),
        ),
        Reply::With(200, json!({})),
        Reply::Text(200, "welcome"),
    ];
    for (count, reply) in replies.into_iter().enumerate() {
        server.reply("_search", reply);
        assert_eq!(query(&opened).await.unwrap_err().kind(), ErrorKind::Unavailable, "{count}");
        assert_eq!(query(&opened).await.unwrap(), [], "{count}");
    }
    // An index that is just being replaced: the query is sent again.
    let gone =
        Reply::With(503, json!({"error": {"type": "search_phase_execution_exception", "reason": "x"}}));
    server.reply("_search", gone.clone());
    assert_eq!(query(&opened).await.unwrap(), []);
    (0..3).for_each(|_| server.reply("_search", gone.clone()));
    assert_eq!(query(&opened).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn queries_that_are_not_answered_end_in_their_time_and_later_ones_do_not_wait() {
    let server = Server::start().await;
    let mut config = server.config();
    config.opensearch.timeout_ms = nonzero!(100);
    let opened = open(config).await.unwrap();
    server.take();
    server.always("_search", &Reply::Silence);
    for _ in 0..20 {
        assert_eq!(query(&opened).await.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    let asked = server.take().len();
    assert!((3..20).contains(&asked), "{asked}");
    server.usual();
    while query(&opened).await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_opensearch_that_is_away_is_no_error_of_opening_and_is_used_when_it_is_back() {
    let place = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let mut config = Config::new(format!("opensearch://{address}").parse().unwrap());
    config.opensearch.prefix = "t".to_owned();
    let opened = open(config).await.unwrap();
    assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(query(&opened).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(opened.index.begin().await.unwrap_err().kind(), ErrorKind::Unavailable);
    let server = Server::on(TcpListener::bind(address).await.unwrap());
    let series = begin(&opened).await;
    opened.upkeep.health().unwrap();
    assert!(server.state.lock().unwrap().has_index, "the series makes the index");
    opened.index.write(series, A, batch([1], 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    assert_eq!(query(&opened).await.unwrap(), []);
}

#[tokio::test]
async fn a_wrong_password_is_reported_on_opening_and_not_shown() {
    let server = Server::start().await;
    let url = format!("opensearch://me:secret@{}", server.address);
    server.reply("/", Reply::Text(401, "Unauthorized"));
    let error = open(Config::new(url.parse().unwrap())).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("password") && !error.to_string().contains("secret"), "{error}");
    let asked = server.take();
    assert_eq!(asked[0].authorization.as_deref(), Some("Basic bWU6c2VjcmV0"));
    let mut config = Config::new(url.parse().unwrap());
    config.opensearch.prefix = "Not a name".to_owned();
    assert_eq!(open(config).await.err().unwrap().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn revisions_and_checkpoints_alone_write_nothing_and_are_known_to_queries() {
    let server = Server::start().await;
    let mut config = server.config();
    config.opensearch.commit_ms = 1;
    let opened = open(config).await.unwrap();
    let series = begin(&opened).await;
    assert_eq!(opened.index.revisions(series, &[A]).await.unwrap(), [Revision(0)]);
    server.take();
    for revision in 1..=50 {
        opened.index.write(series, A, batch([], revision)).await.unwrap();
        opened.index.save(series, "position".into()).await.unwrap();
    }
    sleep(Duration::from_millis(100)).await; // the engine commits every millisecond
    assert!(server.take().is_empty());
    let page = opened.search.query(A, &Query::new(Filter::And(vec![]))).await.unwrap();
    assert_eq!(page.revision, Revision(50));
    opened.index.write(series, AccountId(8), batch([1], 1)).await.unwrap();
    opened.index.commit(series).await.unwrap();
    let ids: Vec<Vec<String>> = server.take_of("_bulk").iter().map(Asked::ids).collect();
    assert_eq!(ids, [vec!["8-1"], vec!["state-7", "state-8"], vec!["meta"]], "with the next document");
}

#[tokio::test]
async fn the_steps_of_a_commit_are_in_the_order_that_keeps_revisions_true() {
    let server = Server::start().await;
    let opened = server.open().await;
    let series = begin(&opened).await;
    opened.index.erase(series, AccountId(8)).await.unwrap();
    let batch = Batch { removed: vec![RecordId(9)], ..batch([1], 2) };
    opened.index.write(series, A, batch).await.unwrap();
    opened.index.save(series, "position".into()).await.unwrap();
    server.take();
    opened.index.commit(series).await.unwrap();
    let steps: Vec<String> = server.take().iter().map(Asked::step).collect();
    let expected = [
        "_mget",
        "state-7 state-8 unfinished",
        "_refresh",
        "_delete_by_query",
        "7-1 7-9",
        "state-7 state-8 shown",
        "meta",
    ];
    assert_eq!(steps, expected);
}
