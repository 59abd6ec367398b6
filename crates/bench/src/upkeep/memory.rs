//! Private memory of a process that only has an archive open: the bench starts itself again for it.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use restante_archive::{Archive, EngineUrl, PAGE_ROWS_MAX, Query, Walk, open};
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    dataset::{DAYS, START, day_start},
    location::secret_url,
    machine::private_memory,
    measure::touch_all,
    random::Random,
    store::config,
};

/// The variable with the child's archive; not on its command line, since a URL may contain a password.
pub(super) const MEMORY_OF: &str = "RESTANTE_BENCH_MEMORY_OF";
const PAGES: usize = 1_000;

/// The child's measurements.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct PrivateMemory {
    /// Just after opening.
    pub(super) opened_bytes: u64,
    /// After use.
    pub(super) used_bytes: u64,
}

/// Starts the child and parses its output. No other process may have the archive open.
pub(super) async fn of_child(url: &EngineUrl) -> anyhow::Result<PrivateMemory> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program);
    child
        .args(["bench", "upkeep"])
        .env(MEMORY_OF, secret_url(url))
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || child.output()).await?.context("can't start itself")?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("the child process ended with {}: {}", output.status, stderr.trim());
    }
    serde_json::from_slice(&output.stdout).context("can't parse the output of the child process")
}

/// The child process: opens the archive, uses it, and prints its memory.
pub(super) async fn run_child(url: &EngineUrl) -> anyhow::Result<()> {
    let memory = look(url).await?;
    println!("{}", serde_json::to_string(&memory)?);
    Ok(())
}

async fn look(url: &EngineUrl) -> anyhow::Result<PrivateMemory> {
    let opened = open(config(url.clone())).await?;
    let opened_bytes = memory()?;
    use_it(&*opened.archive).await?;
    let used_bytes = memory()?;
    opened.upkeep.close().await?;
    Ok(PrivateMemory { opened_bytes, used_bytes })
}

fn memory() -> anyhow::Result<u64> {
    private_memory("self").context("this system reports no private memory of a process")
}

/// A walk through everything, and pages from random positions.
async fn use_it(archive: &dyn Archive) -> anyhow::Result<()> {
    let mut walk = Walk::new(Query { limit: PAGE_ROWS_MAX, ..Query::default() });
    while let Some(page) = walk.next(archive).await? {
        touch_all(page.bodies());
    }
    let mut random = Random::new(0, 9);
    let span = (day_start(DAYS).nanos() - START.nanos()) as u64;
    for _ in 0..PAGES {
        let timestamp = Timestamp(START.nanos() + random.below(span) as i64);
        let cursor = Some(Cursor::At(Key { timestamp, message_hash: MessageHash::MIN }));
        touch_all(archive.query(&Query { cursor, ..Query::default() }).await?.bodies());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn memory_is_measured_before_and_after_use() {
        let memory = look(&EngineUrl::Memory).await.unwrap();
        assert!(memory.opened_bytes > 0 && memory.used_bytes > 0, "{memory:?}");
    }
}
