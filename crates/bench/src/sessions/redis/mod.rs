//! The `redis` engine: operations a second through its connection, and bytes per session in Redis.

mod client;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::{Context, ensure};
use restante_core::{Clock, SystemClock};
use restante_sessions::{Config, Ended, NewSession, Opened, RedisConfig, SessionId, Sessions, open};
use serde::Serialize;
use tokio::task::JoinSet;

use super::session_table::{NAME_BYTES, Name, info_of, write_name};
use crate::{
    measure::{Latencies, rounded},
    progress,
    random::Random,
};
use client::Client;

/// Sessions that are opened.
const SESSIONS: u64 = 100_000;
const SESSIONS_QUICK: u64 = 500;
/// Operations in flight at any moment.
pub(super) const IN_FLIGHT: u64 = 16;

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RedisRow {
    part: &'static str,
    pub(super) table: &'static str,
    /// `open`, `by_user`, `merge_info` or `close`.
    pub(super) op: &'static str,
    pub(super) sessions: u64,
    pub(super) in_flight: u64,
    pub(super) per_s: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Memory that Redis uses per session; `None` if it is not known.
    pub(super) bytes_per_session: Option<f64>,
}

/// An operation on each session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Open,
    ByUser,
    MergeInfo,
    Close,
}

impl Op {
    const ALL: [Self; 4] = [Self::Open, Self::ByUser, Self::MergeInfo, Self::Close];

    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ByUser => "by_user",
            Self::MergeInfo => "merge_info",
            Self::Close => "close",
        }
    }
}

/// Measures the engine at a URL, and removes its keys.
pub(super) async fn measure(url: &str, is_quick: bool) -> anyhow::Result<Vec<RedisRow>> {
    let prefix = format!("restante-bench-{}-{}", std::process::id(), SystemClock.now().nanos());
    let mut config = Config::new(url.parse()?);
    config.redis = RedisConfig { prefix: prefix.clone(), ..RedisConfig::default() };
    let opened = open(config, Arc::new(super::restante_table::NoOwner)).await?;
    let measured = measure_opened(&opened, url, if is_quick { SESSIONS_QUICK } else { SESSIONS }).await;
    let closed = opened.nodes.close().await;
    let removed = async { Client::open(url).await?.remove_all(&prefix).await }.await;
    let rows = measured?;
    closed.context("the node could not leave")?;
    removed?;
    Ok(rows)
}

async fn measure_opened(opened: &Opened, url: &str, sessions: u64) -> anyhow::Result<Vec<RedisRow>> {
    opened.nodes.health().context("Redis is out of reach")?;
    let mut client = Client::open(url).await?;
    let before = client.used_memory().await?;
    let crowd = Arc::new(Crowd {
        sessions: opened.sessions.clone(),
        ids: (0..sessions).map(|_| parking_lot::Mutex::new(None)).collect(),
    });
    let bar = progress::bar("redis: sessions by one connection, 16 in flight", Op::ALL.len() as u64);
    let mut rows = Vec::new();
    let mut bytes_per_session = None;
    for op in Op::ALL {
        let begun = Instant::now();
        let times = crowd.all_do(op).await?;
        let seconds = begun.elapsed().as_secs_f64();
        if op == Op::Open {
            let added = client.used_memory().await?.saturating_sub(before);
            bytes_per_session = Some(rounded(added as f64 / sessions as f64));
        }
        rows.push(RedisRow {
            part: "redis",
            table: "restante, redis",
            op: op.as_str(),
            sessions,
            in_flight: IN_FLIGHT,
            per_s: rounded(sessions as f64 / seconds),
            p50_ms: rounded(times.median_ms()),
            p99_ms: rounded(times.p99_ms()),
            bytes_per_session,
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// All sessions, and their ids as soon as they are open.
struct Crowd {
    sessions: Arc<dyn Sessions>,
    ids: Vec<parking_lot::Mutex<Option<SessionId>>>,
}

impl Crowd {
    /// Runs an operation on every session, [`IN_FLIGHT`] at once.
    async fn all_do(self: &Arc<Self>, op: Op) -> anyhow::Result<Latencies> {
        let next = Arc::new(AtomicU64::new(0));
        let mut workers = JoinSet::new();
        for worker in 0..IN_FLIGHT {
            let (crowd, next) = (self.clone(), next.clone());
            workers.spawn(async move { crowd.some_do(op, &next, Random::new(worker, 35)).await });
        }
        let mut times = Latencies::default();
        while let Some(done) = workers.join_next().await {
            times.add(&done??);
        }
        Ok(times)
    }

    async fn some_do(&self, op: Op, next: &AtomicU64, mut random: Random) -> anyhow::Result<Latencies> {
        let mut times = Latencies::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let count = self.ids.len() as u64;
            if number >= count {
                return Ok(times);
            }
            let number = if op == Op::ByUser { random.below(count) } else { number };
            let begun = Instant::now();
            self.one_does(op, number as u32).await.with_context(|| format!("{} failed", op.as_str()))?;
            times.record(begun.elapsed());
        }
    }

    async fn one_does(&self, op: Op, number: u32) -> anyhow::Result<()> {
        let mut text = String::with_capacity(NAME_BYTES);
        write_name(number, &mut text);
        let Name { user, resource } = Name::of(&text).context("a name is too short")?;
        let slot = self.ids.get(number as usize).context("there is no such session")?;
        let info = info_of(number);
        if op == Op::Open {
            let id = self.sessions.open(NewSession { user, resource, info: &info }).await?;
            *slot.lock() = Some(id);
            return Ok(());
        }
        let id = (*slot.lock()).context("the session was not opened")?;
        match op {
            Op::ByUser => {
                let found = self.sessions.by_user(user).await?;
                ensure!(found.is_complete(), "Redis was out of reach");
                ensure!(found.by_id(id).is_some(), "a session was not found");
            }
            Op::Close => ensure!(self.sessions.close(id, Ended::Left).await?, "a session was lost"),
            Op::MergeInfo | Op::Open => {
                ensure!(self.sessions.merge_info(id, &info).await?, "a session was lost");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restante_sessions::EngineUrl;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_session_is_opened_found_changed_and_closed() {
        let opened = open(Config::new(EngineUrl::Memory), Arc::new(super::super::restante_table::NoOwner))
            .await
            .unwrap();
        let ids = (0..100).map(|_| parking_lot::Mutex::new(None)).collect();
        let crowd = Arc::new(Crowd { sessions: opened.sessions.clone(), ids });
        assert!(crowd.all_do(Op::ByUser).await.is_err(), "no session is open yet");
        for op in Op::ALL {
            assert_eq!(crowd.all_do(op).await.unwrap().len(), 100, "{op:?}");
        }
        assert_eq!(opened.sessions.counts().await.unwrap().sessions, 0);
    }
}
