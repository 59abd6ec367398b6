//! Every promise of the contracts of records, on every engine: one named test for each pair (engine, promise).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "conformance/cassandra.rs"]
mod cassandra;
#[path = "conformance/changes.rs"]
mod changes;
#[path = "conformance/commit.rs"]
mod commit;
#[path = "common/mod.rs"]
mod common;
#[path = "conformance/concurrent.rs"]
mod concurrent;
#[path = "conformance/database.rs"]
mod database;
#[path = "conformance/erase.rs"]
mod erase;
#[path = "conformance/feed.rs"]
mod feed;
#[path = "conformance/get.rs"]
mod get;
#[path = "conformance/moving.rs"]
mod moving;
#[path = "conformance/moving_cassandra.rs"]
mod moving_cassandra;
#[path = "conformance/query.rs"]
mod query;
#[path = "conformance/refused.rs"]
mod refused;
#[path = "conformance/restore.rs"]
mod restore;
#[path = "conformance/schema.rs"]
mod schema;
#[path = "conformance/shared.rs"]
mod shared;
#[path = "conformance/upkeep.rs"]
mod upkeep;
#[path = "conformance/watch.rs"]
mod watch;

use std::{future::Future, pin::Pin, sync::Arc};

use common::engines::{Engine, TestStore, arguments, run, trial, trial_of_all};

/// What a promise is tested on: the place of a store on some engine.
pub(crate) type Subject = Arc<TestStore>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, the engines that it is tested on, and the test.
pub(crate) struct Promise {
    /// The module of the test.
    room: &'static str,
    name: &'static str,
    of: Of,
    run: Run,
}

/// The engines that make a promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Every engine.
    Any,
    /// Engines that keep their data when they are closed.
    Disk,
    /// Engines that keep it in files of their own.
    Files,
    /// Engines that don't.
    NoFiles,
    /// Engines whose store several processes can have open at once.
    Shared,
    /// Engines whose copies are as of one moment, even while others commit.
    Moment,
    /// The engine with a database that takes SQL.
    Sql,
    /// The engine with a database that takes CQL.
    Cql,
}

impl Of {
    fn is_of(self, engine: Engine) -> bool {
        match self {
            Self::Any => true,
            Self::Disk => !engine.is_volatile(),
            Self::Files => engine.has_files(),
            Self::NoFiles => !engine.has_files(),
            Self::Shared => engine.is_shared(),
            Self::Moment => !engine.is_volatile() && engine != Engine::Cassandra,
            Self::Sql => engine == Engine::Postgres,
            Self::Cql => engine == Engine::Cassandra,
        }
    }
}

macro_rules! promise {
    ($of:expr, $name:ident) => {
        crate::Promise { room: module_path!(), name: stringify!($name), of: $of, run: |s| Box::pin($name(s)) }
    };
}
pub(crate) use promise;

/// Lists test functions of a module as promises.
macro_rules! promises {
    (
        any: [$($any:ident),* $(,)?], disk: [$($disk:ident),* $(,)?]
        $(, files: [$($files:ident),* $(,)?])? $(, no_files: [$($no_files:ident),* $(,)?])?
        $(, shared: [$($shared:ident),* $(,)?])? $(, sql: [$($sql:ident),* $(,)?])?
        $(, cql: [$($cql:ident),* $(,)?])? $(, moment: [$($moment:ident),* $(,)?])?
    ) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            use crate::{Of, promise};
            vec![
                $(promise!(Of::Any, $any),)*
                $(promise!(Of::Disk, $disk),)*
                $($(promise!(Of::Files, $files),)*)?
                $($(promise!(Of::NoFiles, $no_files),)*)?
                $($(promise!(Of::Shared, $shared),)*)?
                $($(promise!(Of::Sql, $sql),)*)?
                $($(promise!(Of::Cql, $cql),)*)?
                $($(promise!(Of::Moment, $moment),)*)?
            ]
        }
    };
}
pub(crate) use promises;

fn all_promises() -> Vec<Promise> {
    let rooms = [
        commit::promises(),
        refused::promises(),
        get::promises(),
        query::promises(),
        changes::promises(),
        watch::promises(),
        concurrent::promises(),
        feed::promises(),
        upkeep::promises(),
        erase::promises(),
        restore::promises(),
        schema::promises(),
        shared::promises(),
        database::promises(),
        moving::promises(),
        moving_cassandra::promises(),
        cassandra::promises(),
    ];
    rooms.into_iter().flatten().collect()
}

fn main() {
    let mut trials = Vec::new();
    for engine in Engine::ALL {
        for promise in all_promises().into_iter().filter(|promise| promise.of.is_of(engine)) {
            let (_, room) = promise.room.rsplit_once("::").unwrap();
            let name = format!("{room}::{}", promise.name);
            trials.push(trial(engine, &name, move || run(engine, promise.run)));
        }
    }
    let engines = [Engine::Cassandra, Engine::Postgres];
    trials.push(trial_of_all(engines, "moving::a_store_that_went_through_all_engines_is_the_same", || {
        run(Engine::Lmdb, moving::a_store_that_went_through_all_engines_is_the_same);
    }));
    libtest_mimic::run(&arguments(), trials).exit();
}
