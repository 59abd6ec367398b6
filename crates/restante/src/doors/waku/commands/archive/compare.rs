//! `restante archive compare`

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, ValueHint};
use indicatif::HumanCount;
use restante_archive::{
    Comparison, Difference, DifferenceKind, Differences, EngineUrl, Metrics, Opened, Scope, copy_keys,
};
use restante_core::Key;

use super::copy::{RangeFlags, open};
use crate::{
    clock,
    config::ArchiveFlags,
    doors::waku::archives::Access,
    exit::{self, UsageError},
    progress::Progress,
};

#[derive(Args, Debug)]
pub(crate) struct CompareFlags {
    /// The first archive: log:<folder>, sqlite:<file>, postgres://<user>@<host>/<database> or cassandra://<host>/<keyspace>
    #[arg(value_name = "A")]
    a: EngineUrl,
    /// The second one
    #[arg(value_name = "B")]
    b: EngineUrl,
    #[command(flatten)]
    range: RangeFlags,
    /// Compare topics and bodies too, not only which messages there are
    #[arg(long)]
    bodies: bool,
    /// Copy to B what it lacks; no server may be running on B if it is a log archive
    #[arg(long)]
    repair: bool,
    /// List at most this many differences; all are counted
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u64,
    /// Read the engines' settings from this file instead of ./restante.toml
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

/// The most messages that a repair copies at once.
const REPAIR_MESSAGES: usize = 1_000;

/// The result of a comparison.
#[derive(Debug, Default)]
struct Found {
    only_in_a: u64,
    only_in_b: u64,
    differ: u64,
    repaired: u64,
}

impl Found {
    fn all(&self) -> u64 {
        self.only_in_a + self.only_in_b + self.differ
    }
}

pub(crate) async fn run(flags: &CompareFlags) -> anyhow::Result<ExitCode> {
    if flags.a == flags.b {
        return Err(UsageError("A and B are the same archive".into()).into());
    }
    let config = ArchiveFlags::of_file(flags.config.clone()).load()?.config;
    let access = if flags.repair { Access::Write } else { Access::Read };
    let a = open(&config, &flags.a, Access::Read, Metrics::default()).await?;
    let b = open(&config, &flags.b, access, Metrics::default()).await?;
    let compared = compare(flags, &a, &b).await;
    b.upkeep.close().await?;
    let (messages, found) = compared?;
    tell(messages, &found, &mut io::stdout().lock())?;
    let is_equal = found.all() == found.repaired;
    Ok(if is_equal { ExitCode::SUCCESS } else { exit::found_wrong() })
}

/// Compares fingerprints, then the ranges that differ; returns the numbers of messages of both archives and the result.
async fn compare(flags: &CompareFlags, a: &Opened, b: &Opened) -> anyhow::Result<((u64, u64), Found)> {
    let seed = RandomState::new().build_hasher().finish(); // any unpredictable value
    let range = flags.range.resolve(clock::system().now());
    let scope = Scope { range, bodies: flags.bodies, seed };
    let mut total = None;
    if range.is_everything() {
        total = Some(a.upkeep.stats().await?.messages + b.upkeep.stats().await?.messages);
    }
    let progress = Progress::counting("messages", "comparing", total);
    let mut comparison = Comparison::new(&*a.archive, &*b.archive, scope);
    while comparison.step().await? {
        let (one, other) = comparison.messages();
        progress.set(one + other);
    }
    drop(progress);
    let mut found = Found::default();
    let mut repair = Repair { missing: Vec::new(), a, b, is_wanted: flags.repair };
    for range in comparison.differing() {
        let mut differences = Differences::new(&*a.archive, &*b.archive, scope, range);
        while let Some(difference) = differences.next().await? {
            if found.all() < flags.limit {
                list(&difference, &mut io::stdout().lock())?;
            }
            count(&difference, &mut found);
            found.repaired += repair.take(&difference).await?;
        }
    }
    found.repaired += repair.finish().await?;
    if found.all() > flags.limit {
        writeln!(io::stdout().lock(), "and {} more", HumanCount(found.all() - flags.limit))?;
    }
    Ok((comparison.messages(), found))
}

fn count(difference: &Difference, found: &mut Found) {
    match difference.kind {
        DifferenceKind::OnlyInA => found.only_in_a += 1,
        DifferenceKind::OnlyInB => found.only_in_b += 1,
        DifferenceKind::Differs => found.differ += 1,
    }
}

/// Copies the messages that the second archive lacks. Messages with another body there stay: an archive never changes a message.
struct Repair<'a> {
    missing: Vec<Key>,
    a: &'a Opened,
    b: &'a Opened,
    is_wanted: bool,
}

impl Repair<'_> {
    /// Adds a difference, and returns how many messages were copied.
    async fn take(&mut self, difference: &Difference) -> anyhow::Result<u64> {
        if self.is_wanted && difference.kind == DifferenceKind::OnlyInA {
            self.missing.push(difference.key);
        }
        if self.missing.len() < REPAIR_MESSAGES {
            return Ok(0);
        }
        self.finish().await
    }

    async fn finish(&mut self) -> anyhow::Result<u64> {
        let (stored, duplicates) = copy_keys(&*self.a.archive, &*self.b.archive, &self.missing).await?;
        self.missing.clear();
        Ok(stored + duplicates)
    }
}

fn list(difference: &Difference, out: &mut dyn Write) -> io::Result<()> {
    let kind = match difference.kind {
        DifferenceKind::OnlyInA => "only in A",
        DifferenceKind::OnlyInB => "only in B",
        DifferenceKind::Differs => "differs  ",
    };
    writeln!(out, "{kind}  {}  {}", difference.key.timestamp, difference.key.message_hash)
}

fn tell((a, b): (u64, u64), found: &Found, out: &mut dyn Write) -> io::Result<()> {
    if found.all() == 0 {
        return writeln!(out, "equal: {} messages in each", HumanCount(a));
    }
    let [only_in_a, only_in_b, differ] = [found.only_in_a, found.only_in_b, found.differ].map(HumanCount);
    write!(
        out,
        "{} messages in A, {} in B: {only_in_a} only in A, {only_in_b} only in B, {differ} differ",
        HumanCount(a),
        HumanCount(b)
    )?;
    if found.repaired > 0 {
        write!(out, "; {} copied to B", HumanCount(found.repaired))?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_everything() {
        let summary = |found: &Found| {
            let mut out = Vec::new();
            tell((1_000, 1_001), found, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(summary(&Found::default()), "equal: 1,000 messages in each\n");
        let found = Found { only_in_a: 2, only_in_b: 3, differ: 1, repaired: 2 };
        assert_eq!(
            summary(&found),
            "1,000 messages in A, 1,001 in B: 2 only in A, 3 only in B, 1 differ; 2 copied to B\n"
        );
    }
}
