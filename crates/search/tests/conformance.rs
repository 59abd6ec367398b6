//! Every promise of the contracts of search, on every engine: one named test for each (engine, promise).
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

#[path = "common/mod.rs"]
mod common;
#[path = "conformance/damage.rs"]
mod damage;
#[path = "conformance/filters.rs"]
mod filters;
#[path = "conformance/index.rs"]
mod index;
#[path = "conformance/query.rs"]
mod query;
#[path = "conformance/server.rs"]
mod server;
#[path = "conformance/upkeep.rs"]
mod upkeep;

use std::{future::Future, pin::Pin, sync::Arc};

use common::{Engine, TestIndex, arguments, run, trial};

/// What a promise is tested on: the location of an index of some engine.
pub(crate) type Subject = Arc<TestIndex>;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = ()>>>;

/// A promise: its name, the engines that it is tested on, and the test.
pub(crate) struct Promise {
    module: &'static str,
    name: &'static str,
    of: Of,
    run: Run,
}

/// The engines that make a promise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// Every engine.
    Any,
    /// Engines that keep their contents when they are closed.
    Disk,
    /// Engines whose index consists of files of their own.
    Files,
    /// Engines whose index is on a server.
    Server,
}

impl Of {
    fn is_of(self, engine: Engine) -> bool {
        match self {
            Self::Any => true,
            Self::Disk => !engine.is_volatile(),
            Self::Files => !engine.is_volatile() && !engine.has_server(),
            Self::Server => engine.has_server(),
        }
    }
}

macro_rules! promise {
    ($of:expr, $name:ident) => {
        crate::Promise {
            module: module_path!(),
            name: stringify!($name),
            of: $of,
            run: |s| Box::pin($name(s)),
        }
    };
}
pub(crate) use promise;

/// Lists test functions of a module as promises.
macro_rules! promises {
    (
        any: [$($any:ident),* $(,)?]
        $(, disk: [$($disk:ident),* $(,)?])?
        $(, files: [$($files:ident),* $(,)?])?
        $(, server: [$($server:ident),* $(,)?])?
        $(,)?
    ) => {
        pub(crate) fn promises() -> Vec<crate::Promise> {
            use crate::{Of, promise};
            vec![
                $(promise!(Of::Any, $any),)*
                $($(promise!(Of::Disk, $disk),)*)?
                $($(promise!(Of::Files, $files),)*)?
                $($(promise!(Of::Server, $server),)*)?
            ]
        }
    };
}
pub(crate) use promises;

fn main() {
    let promises = || {
        [
            query::promises(),
            filters::promises(),
            index::promises(),
            upkeep::promises(),
            damage::promises(),
            server::promises(),
        ]
    };
    let mut trials = Vec::new();
    for engine in Engine::ALL {
        for promise in promises().into_iter().flatten().filter(|promise| promise.of.is_of(engine)) {
            let (_, module) = promise.module.rsplit_once("::").unwrap();
            let name = format!("{module}::{}", promise.name);
            trials.push(trial(engine, &name, move || run(engine, promise.run)));
        }
    }
    libtest_mimic::run(&arguments(), trials).exit();
}
