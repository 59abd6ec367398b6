//! Private memory of a process that holds an archive and does nothing else: the bench starts itself once more for it.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use restante_archive::{Archive, EngineUrl, PAGE_ROWS_MAX, Query, Walk, open};
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    dataset::{DAYS, START, day_start},
    machine::private_memory,
    measure::touch_all,
    place::secret_url,
    random::Random,
    store::config,
};

/// Tells the child of which archive it is to be; not on its command line, since a URL may hold a password.
pub(super) const MEMORY_OF: &str = "RESTANTE_BENCH_MEMORY_OF";
const PAGES: usize = 1_000;

/// What the child saw of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Just after opening.
    pub(super) opened_bytes: u64,
    /// After having been used.
    pub(super) used_bytes: u64,
}

/// Starts the child and reads what it says. Nobody else may have the archive open.
pub(super) async fn of_child(url: &EngineUrl) -> anyhow::Result<Seen> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program);
    child
        .args(["bench", "upkeep"])
        .env(MEMORY_OF, secret_url(url))
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || child.output()).await?.context("can't start itself")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("the child process ended with {}: {}", output.status, said.trim());
    }
    serde_json::from_slice(&output.stdout).context("can't understand the child process")
}

/// What the child does: it opens the archive, uses it, and tells its memory.
pub(super) async fn tell(url: &EngineUrl) -> anyhow::Result<()> {
    let seen = look(url).await?;
    println!("{}", serde_json::to_string(&seen)?);
    Ok(())
}

async fn look(url: &EngineUrl) -> anyhow::Result<Seen> {
    let opened = open(config(url.clone())).await?;
    let opened_bytes = memory()?;
    use_it(&*opened.archive).await?;
    let used_bytes = memory()?;
    opened.upkeep.close().await?;
    Ok(Seen { opened_bytes, used_bytes })
}

fn memory() -> anyhow::Result<u64> {
    private_memory("self").context("this system does not tell a process's private memory")
}

/// A walk through everything, and pages from random places.
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
    async fn memory_is_told_before_and_after_use() {
        let seen = look(&EngineUrl::Memory).await.unwrap();
        assert!(seen.opened_bytes > 0 && seen.used_bytes > 0, "{seen:?}");
    }
}
