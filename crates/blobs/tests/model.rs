//! Random operations on the durable engines, compared with the `memory` model after each.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use common::{Chunks, Engine, TestStore, at, bytes, list, put, read, run_trials, trial};
use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestRunner},
};
use restante_blobs::{BlobId, Config, EngineUrl, Opened, open};

/// Lengths of the blobs, by their number.
const LENGTHS: [usize; 12] = [0, 1, 50, 300, 700, 999, 1_000, 1_001, 1_500, 4_000, 5_000, 1_100_000];

#[derive(Clone, Debug)]
enum Operation {
    Put(usize),
    PutTogether(Vec<usize>),
    PutAndFail(usize),
    Read {
        blob: usize,
        start: u64,
        end: u64,
    },
    Remove {
        blobs: Vec<usize>,
        seconds: i64,
    },
    Touch(Vec<usize>),
    Tick,
    Reopen,
    /// The process ends at once: a copy of the files as they are is opened, or the storage is opened again.
    Crash,
    /// The same without the index, which loses the times of later puts. Of engines with files.
    Rebuild,
    Check,
    /// Of engines with files.
    Backup,
}

fn operations() -> impl Strategy<Value = Operation> {
    let blob = || 0..LENGTHS.len();
    let offset = || prop_oneof![0..1_200_u64, Just(1 << 20), Just(u64::MAX)];
    let remove = (prop::sample::subsequence(Vec::from_iter(blob()), 0..=LENGTHS.len()), 0..4_i64);
    prop_oneof![
        12 => blob().prop_map(Operation::Put),
        4 => prop::collection::vec(blob(), 2..8).prop_map(Operation::PutTogether),
        2 => blob().prop_map(Operation::PutAndFail),
        8 => (blob(), offset(), offset()).prop_map(|(blob, start, end)| Operation::Read { blob, start, end }),
        4 => remove.prop_map(|(blobs, seconds)| Operation::Remove { blobs, seconds }),
        3 => prop::collection::vec(blob(), 0..6).prop_map(Operation::Touch),
        4 => Just(Operation::Tick),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::Crash),
        1 => Just(Operation::Rebuild),
        1 => Just(Operation::Check),
        1 => Just(Operation::Backup),
    ]
}

fn blob(n: usize) -> Bytes {
    bytes(n as u32, LENGTHS[n])
}

struct Pair {
    store: TestStore,
    engine: Opened,
    model: Opened,
    ids: Vec<BlobId>,
    seconds: i64,
    folders: usize,
    config: Config,
}

impl Pair {
    async fn new(engine: Engine) -> Self {
        let store = TestStore::new(engine);
        let model_config = Config { url: EngineUrl::Memory, ..store.config.clone() };
        let model = open(model_config.clone()).await.unwrap();
        // A store of its own computes the ids.
        let other = open(model_config).await.unwrap();
        let mut ids = Vec::new();
        for n in 0..LENGTHS.len() {
            ids.push(put(&*other.blobs, &blob(n)).await.id);
        }
        let config = store.config.clone();
        Self { engine: store.open().await, store, model, ids, seconds: 0, folders: 0, config }
    }

    async fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Put(n) => {
                let answer = put(&*self.engine.blobs, &blob(n)).await;
                assert_eq!(answer, put(&*self.model.blobs, &blob(n)).await);
            }
            Operation::PutTogether(blobs) => self.put_together(blobs).await,
            Operation::PutAndFail(n) => {
                let mut source =
                    Chunks::new([blob(n)].into_iter().filter(|chunk| !chunk.is_empty())).then_fails();
                self.engine.blobs.put(&mut source).await.unwrap_err();
            }
            Operation::Read { blob, start, end } => self.read(blob, start, end).await,
            Operation::Remove { blobs, seconds } => {
                let ids: Vec<BlobId> = blobs.into_iter().map(|n| self.ids[n]).collect();
                let before = at(self.seconds - seconds);
                let removed = self.engine.upkeep.remove(&ids, before).await.unwrap();
                assert_eq!(removed, self.model.upkeep.remove(&ids, before).await.unwrap());
            }
            Operation::Touch(blobs) => {
                let ids: Vec<BlobId> = blobs.into_iter().map(|n| self.ids[n]).collect();
                let found = self.engine.blobs.touch(&ids).await.unwrap();
                assert_eq!(found, self.model.blobs.touch(&ids).await.unwrap());
            }
            Operation::Tick => {
                self.seconds += 1;
                self.store.tick(self.seconds);
            }
            Operation::Reopen => {
                self.engine.upkeep.close().await.unwrap();
                self.engine = open(self.config.clone()).await.unwrap();
            }
            Operation::Crash if !self.store.engine.has_files() => self.engine = self.store.open().await,
            Operation::Rebuild | Operation::Backup if !self.store.engine.has_files() => {}
            Operation::Crash => self.crash(|_| true).await,
            Operation::Rebuild => self.rebuild().await,
            Operation::Check => {
                assert_eq!(self.engine.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
            }
            Operation::Backup => self.backup().await,
        }
        self.compare(&self.engine).await;
    }

    async fn compare(&self, engine: &Opened) {
        assert_eq!(list(&*engine.upkeep).await, list(&*self.model.upkeep).await);
        let (engine, model) =
            (engine.upkeep.stats().await.unwrap(), self.model.upkeep.stats().await.unwrap());
        assert_eq!((engine.blobs, engine.bytes), (model.blobs, model.bytes));
    }

    async fn put_together(&self, blobs: Vec<usize>) {
        let mut puts = tokio::task::JoinSet::new();
        for n in blobs.clone() {
            let engine = self.engine.blobs.clone();
            puts.spawn(async move { put(&*engine, &blob(n)).await });
        }
        let mut answers = puts.join_all().await;
        let mut expected = Vec::new();
        for n in blobs {
            expected.push(put(&*self.model.blobs, &blob(n)).await);
        }
        let key = |put: &restante_blobs::Put| (put.id, put.is_new);
        answers.sort_by_key(key);
        expected.sort_by_key(key);
        assert_eq!(answers, expected);
    }

    async fn read(&self, n: usize, start: u64, end: u64) {
        let id = self.ids[n];
        match (
            read(&*self.engine.blobs, id, start..end).await,
            read(&*self.model.blobs, id, start..end).await,
        ) {
            (Ok(engine), Ok(model)) => assert!(engine == model, "{start}..{end} of blob {n}"),
            (Err(engine), Err(model)) => assert_eq!(engine.kind(), model.kind(), "{engine}"),
            (engine, model) => panic!("{start}..{end} of blob {n}: engine {engine:?}, model {model:?}"),
        }
    }

    async fn crash(&mut self, keeps: fn(&str) -> bool) {
        let EngineUrl::Files(from) = self.config.url.clone() else { panic!("only files can crash") };
        self.folders += 1;
        let to = self.store.folder_named(&format!("crash {}", self.folders));
        copy_folder(&from, &to, keeps);
        self.config.url = EngineUrl::Files(to);
        self.engine = open(self.config.clone()).await.unwrap();
    }

    /// Removed blobs may exist again, and times are those of the opening: both are set back to those of the model.
    async fn rebuild(&mut self) {
        self.crash(|name| name != "index").await;
        let model = list(&*self.model.upkeep).await;
        for found in list(&*self.engine.upkeep).await {
            assert_eq!(found.put_at, at(self.seconds));
            if !model.iter().any(|blob| blob.id == found.id) {
                assert_eq!(self.engine.upkeep.remove(&[found.id], at(self.seconds + 1)).await.unwrap(), 1);
            }
        }
        for n in 0..LENGTHS.len() {
            if model.iter().any(|blob| blob.id == self.ids[n]) {
                assert!(!put(&*self.engine.blobs, &blob(n)).await.is_new, "blob {n} is lost");
                put(&*self.model.blobs, &blob(n)).await;
            }
        }
    }

    async fn backup(&mut self) {
        self.folders += 1;
        let folder = self.store.folder_named(&format!("copy {}", self.folders));
        std::fs::create_dir(&folder).unwrap();
        self.engine.upkeep.backup(&folder).await.unwrap();
        let config = Config { url: EngineUrl::Files(folder), ..self.config.clone() };
        let copy = open(config).await.unwrap();
        self.compare(&copy).await;
        assert_eq!(copy.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
        copy.upkeep.close().await.unwrap();
    }
}

fn copy_folder(from: &Path, to: &PathBuf, keeps: fn(&str) -> bool) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            _ if !keeps(&name) => {}
            true => copy_folder(&entry.path(), &to.join(name), keeps),
            false => drop(std::fs::copy(entry.path(), to.join(name)).unwrap()),
        }
    }
}

fn agrees_with_the_model(engine: Engine) {
    // Every operation on a storage takes several requests.
    let default = if engine.has_files() { 24 } else { 8 };
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default);
    let config = ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        ..ProptestConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = TestRunner::new(config).run(&prop::collection::vec(operations(), 1..40), |operations| {
        runtime.block_on(async {
            let mut pair = Pair::new(engine).await;
            for operation in operations {
                pair.run(operation).await;
            }
        });
        Ok(())
    });
    outcome.unwrap();
}

fn main() {
    let engines = [Engine::Files, Engine::FilesSmall, Engine::S3, Engine::Minio];
    let trials =
        engines.map(|engine| trial(engine, "agrees_with_the_model", move || agrees_with_the_model(engine)));
    run_trials(trials.into())
}
