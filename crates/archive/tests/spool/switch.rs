//! An engine that can be switched off, over the reference model.
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use restante_archive::{
    Appended, Archive, Config, Error, Health, Message, Opened, Page, Pruned, Query, Report, Retention, Stats,
    Upkeep, open,
};
use restante_core::{ErrorKind, Key, Timestamp};
use tokio::sync::Barrier;

/// The engine's behaviour on the next append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    On,
    /// Returns that it is unavailable.
    Off,
    /// Works this many times, and is then off.
    OnFor(usize),
    /// Never answers.
    Hangs,
    /// Stores, but returns that it is unavailable.
    LosesAnswers,
    /// Fails every append with an error of this kind.
    Fails(ErrorKind),
    /// Refuses every batch with this message as invalid.
    Refuses(Key),
}

/// See the module.
pub(crate) struct Switch {
    model: Opened,
    mode: Mutex<Mode>,
    problem: Mutex<Option<String>>,
    /// The keys of each batch that was received, whatever the result.
    asked: Mutex<Vec<Vec<Key>>>,
    /// After its copy was written, a backup waits here twice, together with the test.
    copied: Mutex<Option<Arc<Barrier>>>,
}

impl Switch {
    pub(crate) async fn new(mode: Mode) -> Arc<Self> {
        let model = open(Config::new("memory:".parse().unwrap())).await.unwrap();
        let (problem, asked, copied) = Default::default();
        Arc::new(Self { model, mode: Mutex::new(mode), problem, asked, copied })
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    /// The barrier at which the next backups wait twice after their copies were written.
    pub(crate) fn wait_when_copied(&self) -> Arc<Barrier> {
        self.copied.lock().unwrap().insert(Arc::new(Barrier::new(2))).clone()
    }

    /// The problem that its health reports.
    pub(crate) fn set_problem(&self, problem: &str) {
        *self.problem.lock().unwrap() = Some(problem.to_owned());
    }

    pub(crate) fn asked(&self) -> Vec<Vec<Key>> {
        self.asked.lock().unwrap().clone()
    }

    /// The archive with the stored messages.
    pub(crate) fn archive(&self) -> &dyn Archive {
        &*self.model.archive
    }

    pub(crate) async fn count(&self) -> u64 {
        self.model.upkeep.stats().await.unwrap().messages
    }

    pub(crate) fn opened(self: &Arc<Self>) -> Opened {
        Opened { archive: self.clone(), upkeep: self.clone() }
    }

    fn mode(&self) -> Mode {
        let mut mode = self.mode.lock().unwrap();
        let now = *mode;
        if let Mode::OnFor(left) = now {
            *mode = left.checked_sub(1).map_or(Mode::Off, Mode::OnFor);
            return if left == 0 { Mode::Off } else { Mode::On };
        }
        now
    }
}

fn away() -> Error {
    Error::unavailable("switched off")
}

#[async_trait]
impl Archive for Switch {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let keys: Vec<Key> = messages.iter().map(Message::key).collect();
        self.asked.lock().unwrap().push(keys.clone());
        tokio::task::yield_now().await; // like an engine that is busy
        match self.mode() {
            Mode::On => self.model.archive.append(messages).await,
            Mode::Off | Mode::OnFor(_) => Err(away()),
            Mode::Hangs => std::future::pending().await,
            Mode::LosesAnswers => {
                self.model.archive.append(messages).await?;
                Err(away())
            }
            Mode::Fails(kind) => Err(Error::new(kind, "as the test wanted")),
            Mode::Refuses(key) if keys.contains(&key) => Err(Error::invalid("as the test wanted")),
            Mode::Refuses(_) => self.model.archive.append(messages).await,
        }
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        let mode = *self.mode.lock().unwrap();
        match mode {
            Mode::Off | Mode::OnFor(_) | Mode::LosesAnswers => Err(away()),
            Mode::Hangs => std::future::pending().await,
            Mode::On | Mode::Fails(_) | Mode::Refuses(_) => self.model.archive.query(query).await,
        }
    }
}

#[async_trait]
impl Upkeep for Switch {
    async fn stats(&self) -> Result<Stats, Error> {
        self.model.upkeep.stats().await
    }

    fn health(&self) -> Health {
        Health { problem: self.problem.lock().unwrap().clone(), ..Health::default() }
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        if self.mode() == Mode::Off {
            return Err(away());
        }
        self.model.upkeep.prune(policy, now).await
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.model.upkeep.check(progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.model.upkeep.rebuild(progress).await
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        let copied = self.model.upkeep.backup(folder).await;
        let barrier = self.copied.lock().unwrap().clone();
        if let Some(barrier) = barrier {
            barrier.wait().await;
            barrier.wait().await;
        }
        copied
    }

    /// The model lives on, so that a test can read it.
    async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Checks repeatedly until it is true. The limit is no measurement: even a slow machine has enough time.
pub(crate) async fn wait_until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    for _ in 0..24_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {what}");
}
