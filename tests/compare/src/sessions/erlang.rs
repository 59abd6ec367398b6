//! The same measurements in Erlang, where it is installed: a script on Erlang's lists, maps and Mnesia, with MongooseIM's
//! table.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde::Serialize;

use restante_bench::sessions::Order;

/// The script.
const SCRIPT: &str = include_str!("sessions.escript");
/// The program that runs it, a part of Erlang.
const RUNNER: &str = "escript";

/// Everything that the script prints.
#[derive(Clone, Debug, Default)]
pub(super) struct Erlang {
    pub(super) release: String,
    pub(super) finds: Vec<FindRow>,
    pub(super) merges: Vec<MergeRow>,
    pub(super) table: Vec<MnesiaRow>,
    pub(super) counts: Vec<MnesiaCounts>,
}

/// Finding one of several keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FindRow {
    part: &'static str,
    pub(super) op: &'static str,
    pub(super) keys: u16,
    pub(super) order: Order,
    pub(super) map: String,
    pub(super) ns_per_op: f64,
}

/// Merging two maps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MergeRow {
    part: &'static str,
    pub(super) op: &'static str,
    pub(super) keys: u16,
    pub(super) changes: u16,
    pub(super) map: String,
    pub(super) ns_per_op: f64,
}

/// An operation of Mnesia's table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MnesiaRow {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) sessions: u64,
    pub(super) threads: usize,
    pub(super) op: String,
    pub(super) ns_per_op: f64,
    pub(super) bytes_per_session: Option<f64>,
}

/// Counting users by walking through the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MnesiaCounts {
    part: &'static str,
    pub(super) table: &'static str,
    pub(super) op: &'static str,
    pub(super) sessions: u64,
    pub(super) ns_per_op: f64,
}

/// Whether Erlang is installed.
pub(super) fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(RUNNER).is_file())
}

/// Runs the script in a folder and parses its output.
pub(super) async fn measure(folder: &Path, sizes: &[u32], is_quick: bool) -> anyhow::Result<Erlang> {
    let script = folder.join("sessions.escript");
    fs::write(&script, SCRIPT)?;
    let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let mut command = Command::new(RUNNER);
    command.arg(&script).arg(sizes.join(",")).args(is_quick.then_some("quick"));
    command.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || command.output()).await?;
    let output = output.with_context(|| format!("can't start {RUNNER}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{RUNNER} ended with {}: {} {}",
            output.status,
            stderr.trim(),
            stdout.lines().last().unwrap_or("")
        );
    }
    Ok(Erlang::parse(&stdout))
}

impl Erlang {
    /// Parses the lines of the script and ignores those of Erlang itself.
    fn parse(text: &str) -> Self {
        let mut erlang = Self::default();
        let mut bytes = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words.as_slice() {
                ["otp", release] => release.clone_into(&mut erlang.release),
                ["find", keys, order, map, ns] => erlang.finds.extend(find_row(keys, order, map, ns)),
                ["merge", keys, changes, map, ns] => erlang.merges.extend(merge_row(keys, changes, map, ns)),
                ["table", sessions, threads, op, ns] => {
                    erlang.table.extend(table_row(sessions, threads, op, ns))
                }
                ["bytes", sessions, figure] => bytes.extend(pair(sessions, figure)),
                ["counts", sessions, ns] => erlang.counts.extend(counts_row(sessions, ns)),
                _ => (),
            }
        }
        for row in &mut erlang.table {
            let found = bytes.iter().find(|(sessions, _)| *sessions == row.sessions);
            row.bytes_per_session = found.map(|(_, bytes)| *bytes);
        }
        erlang
    }
}

fn pair(number: &str, figure: &str) -> Option<(u64, f64)> {
    Some((number.parse().ok()?, figure.parse().ok()?))
}

fn find_row(keys: &str, order: &str, map: &str, ns: &str) -> Option<FindRow> {
    let order = Order::ALL.into_iter().find(|known| known.as_str() == order)?;
    let (keys, ns_per_op) = pair(keys, ns)?;
    Some(FindRow {
        part: "erlang",
        op: "find",
        keys: keys.try_into().ok()?,
        order,
        map: map.to_owned(),
        ns_per_op,
    })
}

fn merge_row(keys: &str, changes: &str, map: &str, ns: &str) -> Option<MergeRow> {
    let (keys, ns_per_op) = pair(keys, ns)?;
    Some(MergeRow {
        part: "erlang",
        op: "merge",
        keys: keys.try_into().ok()?,
        changes: changes.parse().ok()?,
        map: map.to_owned(),
        ns_per_op,
    })
}

fn table_row(sessions: &str, threads: &str, op: &str, ns: &str) -> Option<MnesiaRow> {
    let (sessions, ns_per_op) = pair(sessions, ns)?;
    Some(MnesiaRow {
        part: "erlang",
        table: "mnesia",
        sessions,
        threads: threads.parse().ok()?,
        op: op.to_owned(),
        ns_per_op,
        bytes_per_session: None,
    })
}

fn counts_row(sessions: &str, ns: &str) -> Option<MnesiaCounts> {
    let (sessions, ns_per_op) = pair(sessions, ns)?;
    Some(MnesiaCounts { part: "erlang", table: "mnesia", op: "counts", sessions, ns_per_op })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_the_script_is_parsed() {
        let erlang = Erlang::parse(
            "otp 25\nfind 3 random maps 9.9\nmerge 10 5 orddict 365.3\n=INFO REPORT====\nbytes 500 928.3\n\
             table 500 2 by_user 2300.3\ncounts 500 592959.0\nfind x first maps 1\n",
        );
        assert_eq!((erlang.release.as_str(), erlang.finds.len()), ("25", 1));
        assert_eq!(
            (erlang.finds[0].keys, erlang.finds[0].order, erlang.finds[0].ns_per_op),
            (3, Order::Random, 9.9)
        );
        assert_eq!((erlang.merges[0].keys, erlang.merges[0].changes), (10, 5));
        let row = &erlang.table[0];
        assert_eq!((row.sessions, row.threads, row.op.as_str()), (500, 2, "by_user"));
        assert_eq!(row.bytes_per_session, Some(928.3));
        assert_eq!(erlang.counts[0].ns_per_op, 592_959.0);
    }

    #[tokio::test]
    async fn the_script_runs_where_erlang_is_installed() {
        if !is_installed() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let erlang = measure(folder.path(), &[200], true).await.unwrap();
        assert_eq!((erlang.finds.len(), erlang.merges.len(), erlang.counts.len()), (4 * 3 * 3, 4, 1));
        assert_eq!(erlang.table.len(), 8);
        assert!(erlang.table.iter().all(|row| row.bytes_per_session.is_some_and(|bytes| bytes > 300.0)));
    }
}
