//! Faults of single nodes of the Cassandra cluster that `dev/services` starts.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use crate::{Direction, Proxy};

/// The round-trip time that a slow node adds.
const SLOW: Duration = Duration::from_millis(500);

/// An unused segment of the commit log has only a header, which is shorter than this.
const LOG_HEADER_BYTES_MAX: u64 = 4_096;

/// A cluster of three survives one fault at a time.
static CLUSTER: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The Cassandra cluster of three nodes that `dev/services` starts, for one test of this process at a time.
///
/// When it is dropped, nodes that are down are brought back: a test that fails leaves a complete cluster for the next one.
#[derive(Debug)]
pub struct Cluster {
    _only: MutexGuard<'static, ()>,
    program: Option<OsString>,
    /// The nodes that are down, and the action that brings each back.
    away: Mutex<BTreeMap<u8, &'static str>>,
}

impl Cluster {
    /// The variable that names the program that acts on a node, as `dev/services/with cassandra3` sets it.
    pub const VARIABLE: &str = "RESTANTE_CASSANDRA3_NODE";

    /// Waits until no other test of this process has the cluster.
    pub async fn take() -> Self {
        Self::of(env::var_os(Self::VARIABLE)).await
    }

    async fn of(program: Option<OsString>) -> Self {
        Self { _only: CLUSTER.lock().await, program, away: Mutex::default() }
    }

    /// Runs an action of `dev/services/node` on a node, and waits until it is done. Returns its output.
    ///
    /// # Errors
    /// It failed, or no cluster runs.
    pub async fn node(&self, action: &'static str, number: u8) -> io::Result<String> {
        let program = self.program.clone();
        let program = program.ok_or_else(|| io::Error::other(format!("{} is not set", Self::VARIABLE)))?;
        match action {
            "kill" | "stop" | "replace" => self.away.lock().insert(number, "start"),
            "pause" => self.away.lock().insert(number, "resume"),
            _ => None,
        };
        let printed = blocking(move || run(&program, action, number)).await?;
        if matches!(action, "start" | "resume" | "replace") {
            self.away.lock().remove(&number);
        }
        Ok(printed)
    }

    /// Kills a node and starts it again. Here and in each fault below, `go_on` checks that clients go on, and gets the name of
    /// the moment.
    ///
    /// # Errors
    /// Those of [`Cluster::node`].
    pub async fn kill_one(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        self.go_on_without(2, ["kill", "start"], go_on).await
    }

    /// Pauses each node, one after the other.
    ///
    /// # Errors
    /// Those of [`Cluster::node`].
    pub async fn pause_each(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        for number in [1, 2, 3] {
            self.go_on_without(number, ["pause", "resume"], go_on).await?;
        }
        Ok(())
    }

    /// Puts half a second between one node and the clients that reach it through this proxy.
    ///
    /// # Errors
    /// No client received anything from that node meanwhile.
    pub async fn slow_down(&self, node: &Proxy, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        let before = node.passed(Direction::ToClient);
        for direction in [Direction::ToServer, Direction::ToClient] {
            node.delay(direction, SLOW / 2);
        }
        go_on("while a node is slow").await;
        if node.passed(Direction::ToClient) == before {
            return Err(io::Error::other("the slow node is not used"));
        }
        node.heal();
        go_on("after it was slow").await;
        Ok(())
    }

    /// Replaces a node with an empty one, and then needs it for every answer.
    ///
    /// # Errors
    /// Those of [`Cluster::node`].
    pub async fn replace_one(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        self.node("replace", 2).await?;
        go_on("with an empty node 2").await;
        self.node("repair", 2).await?;
        self.node("repair-paxos", 2).await?;
        self.go_on_without(3, ["kill", "start"], go_on).await
    }

    /// As after a power cut: what a node has not synced is lost, even if it was acknowledged. The two others have it.
    ///
    /// # Errors
    /// Those of [`Cluster::node`] and of files.
    pub async fn lose_what_one_has_not_synced(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        self.lose_log_end(2).await?;
        go_on("without node 2").await;
        self.node("start", 2).await?;
        go_on("with node 2, which has forgotten something").await;
        Ok(())
    }

    /// Stops a node and brings it back; clients go on without it, and with it.
    async fn go_on_without(
        &self,
        number: u8,
        [away, back]: [&'static str; 2],
        go_on: &impl AsyncFn(&str),
    ) -> io::Result<()> {
        for action in [away, back] {
            self.node(action, number).await?;
            go_on(&format!("after {action} of node {number}")).await;
        }
        Ok(())
    }

    /// Kills a node, and cuts off the second half of its commit log's contents.
    async fn lose_log_end(&self, number: u8) -> io::Result<()> {
        self.node("kill", number).await?;
        let folder = PathBuf::from(self.node("data", number).await?).join("commitlog");
        blocking(move || cut_newest_log(&folder)).await
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(program) = &self.program else { return };
        for (number, action) in std::mem::take(self.away.get_mut()) {
            if let Err(error) = run(program, action, number) {
                eprintln!("{error}");
            }
        }
    }
}

/// Runs an action on a node, and returns its output.
fn run(program: &OsStr, action: &str, number: u8) -> io::Result<String> {
    let output = Command::new(program).args([action, &number.to_string()]).output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("node {number} can't {action}: {why}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Truncates the newest segment that has data, and deletes those after it.
fn cut_newest_log(folder: &Path) -> io::Result<()> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            segments.push(path);
        }
    }
    // Their names end with ascending numbers.
    segments.sort();
    while let Some(path) = segments.pop() {
        let bytes = fs::read(&path)?;
        // A segment has its full length from the start, with zeros after what is written.
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
        if written > LOG_HEADER_BYTES_MAX {
            let kept = written / 2;
            File::options().write(true).open(&path)?.set_len(kept)?;
            return Ok(());
        }
        fs::remove_file(&path)?;
    }
    Err(io::Error::other(format!("{} has nothing that could be lost", folder.display())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A program that records its arguments.
    fn recorder(folder: &Path) -> io::Result<OsString> {
        let program = folder.join("node");
        fs::write(&program, "#!/bin/sh\necho $* >>\"$(dirname \"$0\")/done\"\n")?;
        fs::set_permissions(&program, PermissionsExt::from_mode(0o700))?;
        Ok(program.into())
    }

    #[tokio::test]
    async fn a_test_that_ends_early_leaves_a_whole_cluster() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let cluster = Cluster::of(Some(recorder(folder.path())?)).await;
        for (action, number) in [("kill", 1), ("start", 1), ("pause", 3), ("kill", 2)] {
            cluster.node(action, number).await?;
        }
        drop(cluster);
        let done = fs::read_to_string(folder.path().join("done"))?;
        assert_eq!(done, "kill 1\nstart 1\npause 3\nkill 2\nstart 2\nresume 3\n");
        Ok(())
    }
}
