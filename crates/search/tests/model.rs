//! Random documents, removals and filters on each engine, compared with the `memory` model.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use common::{Engine, TestIndex, id};
use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestRunner},
};
use restante_search::{
    AccountId, Batch, Document, Field, Filter, HeaderName, Hit, Opened, Order, Query, RecordId, Revision,
    SearchText, Series, open,
};

const ACCOUNTS: [AccountId; 2] = [AccountId(1), AccountId(70_000)];

#[derive(Clone, Debug)]
enum Operation {
    Write(usize, Vec<Document>, Vec<RecordId>),
    Erase(usize),
    Commit,
    /// The writer begins again, after a commit: the contents of both stay.
    Begin,
    Reopen,
    Query(usize, Query),
}

/// Few words, so that they match often: of several scripts, with what matters for folding and phrases.
fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        6 => "[abcAB]".prop_map(String::from),
        2 => prop::sample::select(vec!["é", "É", "e\u{301}", "ß", "ss", "a.b", "a-b@c.d", "x\u{ad}y", "xy"]).prop_map(String::from),
        2 => "[東京都]{1,4}".prop_map(String::from),
        1 => prop::sample::select(vec!["...", "🎉", "", "ก่อน", "が", "か"]).prop_map(String::from),
    ];
    prop::collection::vec(word, 0..6).prop_map(|words| words.join(" "))
}

fn lists() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(words(), 0..3)
}

fn headers() -> impl Strategy<Value = Vec<(String, String)>> {
    let name = prop::sample::select(vec!["A", "a", "X-B", "x-b", "c"]).prop_map(String::from);
    prop::collection::vec((name, words()), 0..4)
}

fn documents() -> impl Strategy<Value = Document> {
    let parts =
        (1..20_u64, -3..3_i64, (lists(), lists(), lists(), lists()), words(), (lists(), lists()), headers());
    parts.prop_map(|(number, received, (from, to, cc, bcc), subject, (body, attachments), headers)| {
        Document { id: id(number), received, from, to, cc, bcc, subject, body, attachments, headers }
    })
}

fn texts() -> impl Strategy<Value = SearchText> {
    let text = prop_oneof![
        3 => words(),
        1 => words().prop_map(|words| format!("\"{words}\"")),
        1 => (words(), words()).prop_map(|(a, b)| format!("'{a}' {b}")),
    ];
    text.prop_map(|text| SearchText::parse(&text).unwrap())
}

fn filters() -> impl Strategy<Value = Filter> {
    let name = prop::sample::select(vec!["a", "X-b", "none"]).prop_map(|name| HeaderName::new(name).unwrap());
    let condition = prop_oneof![
        3 => texts().prop_map(Filter::Text),
        3 => (prop::sample::select(Field::ALL.to_vec()), texts()).prop_map(|(field, text)| Filter::In(field, text)),
        2 => (name, prop::option::of(texts())).prop_map(|(name, text)| Filter::Header(name, text)),
    ];
    condition.prop_recursive(3, 12, 3, |inner| {
        let list = prop::collection::vec(inner, 0..3);
        prop_oneof![
            list.clone().prop_map(Filter::And),
            list.clone().prop_map(Filter::Or),
            list.prop_map(Filter::Not),
        ]
    })
}

fn queries() -> impl Strategy<Value = Query> {
    let order = prop::sample::select(vec![Order::ById, Order::NewestFirst]);
    let after = prop::option::of(
        (0..20_u64, -3..3_i64).prop_map(|(number, received)| Hit { id: id(number), received }),
    );
    (filters(), order, after, 1..8_usize).prop_map(|(filter, order, after, limit)| Query {
        filter,
        order,
        after,
        limit,
    })
}

fn operations() -> impl Strategy<Value = Operation> {
    let account = 0..ACCOUNTS.len();
    prop_oneof![
        5 => (account.clone(), prop::collection::vec(documents(), 0..6), prop::collection::vec((1..20_u64).prop_map(id), 0..4))
            .prop_map(|(account, documents, removed)| Operation::Write(account, documents, removed)),
        1 => account.clone().prop_map(Operation::Erase),
        2 => Just(Operation::Commit),
        1 => Just(Operation::Begin),
        1 => Just(Operation::Reopen),
        8 => (account, queries()).prop_map(|(account, query)| Operation::Query(account, query)),
    ]
}

/// The engine and the model, with the series of each.
struct Pair<'p> {
    place: &'p TestIndex,
    engine: Option<(Opened, Series)>,
    model: (Opened, Series),
    revision: u64,
}

impl<'p> Pair<'p> {
    async fn open(place: &'p TestIndex) -> Self {
        let model = TestIndex::new(Engine::Memory).open().await;
        let series = model.index.begin().await.unwrap().series;
        let mut pair = Self { place, engine: None, model: (model, series), revision: 0 };
        pair.open_engine().await;
        pair
    }

    async fn open_engine(&mut self) {
        let opened = open(self.place.config.clone()).await.unwrap();
        let series = opened.index.begin().await.unwrap().series;
        self.engine = Some((opened, series));
    }

    fn both(&self) -> [&(Opened, Series); 2] {
        [self.engine.as_ref().unwrap(), &self.model]
    }

    async fn commit(&self) {
        let (engine, series) = self.engine.as_ref().unwrap();
        engine.index.commit(*series).await.unwrap();
    }

    async fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Write(account, documents, removed) => {
                self.revision += 1;
                let batch = Batch { removed, documents, revision: Some(Revision(self.revision)) };
                for (opened, series) in self.both() {
                    opened.index.write(*series, ACCOUNTS[account], batch.clone()).await.unwrap();
                }
            }
            Operation::Erase(account) => {
                for (opened, series) in self.both() {
                    opened.index.erase(*series, ACCOUNTS[account]).await.unwrap();
                }
            }
            Operation::Commit => self.commit().await,
            Operation::Begin => {
                self.commit().await;
                let (opened, series) = self.engine.as_mut().unwrap();
                *series = opened.index.begin().await.unwrap().series;
            }
            Operation::Reopen => {
                let (opened, _) = self.engine.take().unwrap();
                opened.upkeep.close().await.unwrap();
                drop(opened);
                self.open_engine().await;
            }
            Operation::Query(account, query) => {
                self.commit().await;
                let [(engine, _), (model, _)] = self.both();
                let page = engine.search.query(ACCOUNTS[account], &query).await.unwrap();
                let expected = model.search.query(ACCOUNTS[account], &query).await.unwrap();
                assert_eq!(page, expected, "{query:?}");
            }
        }
    }
}

/// `RESTANTE_TEST_CASES=2000` for a long run.
fn cases() -> u32 {
    std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40)
}

/// A failure prints the shortest series of operations that was found to fail, which is kept in `model.regressions`
/// for later runs.
fn agrees_with_the_model(engine: Engine) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        source_file: Some(file!()),
        test_name: Some(engine.name()),
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&prop::collection::vec(operations(), 1..30), |operations: Vec<Operation>| {
        common::run(engine, async |place| {
            let mut pair = Pair::open(&place).await;
            for operation in operations {
                pair.run(operation).await;
            }
        });
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

fn main() {
    let engines = Engine::ALL.into_iter().filter(|engine| !engine.is_volatile());
    let trials = engines
        .map(|engine| common::trial(engine, "agrees_with_the_model", move || agrees_with_the_model(engine)));
    libtest_mimic::run(&common::arguments(), trials.collect()).exit();
}
