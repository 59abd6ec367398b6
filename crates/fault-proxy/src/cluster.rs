//! Faults of single nodes of the Cassandra cluster that `dev/services` starts.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use tokio::sync::{Mutex, MutexGuard};

use crate::{Direction, Proxy};

/// How far away a slow node is, there and back.
const SLOW: Duration = Duration::from_millis(500);

/// A segment of the commit log that waits to be used has a header alone, which is shorter than this.
const LOG_HEADER_BYTES_MAX: u64 = 4_096;

/// A cluster of three survives one fault at a time.
static CLUSTER: Mutex<()> = Mutex::const_new(());

/// The Cassandra cluster of three nodes that `dev/services` starts, for one test at a time of this process.
#[derive(Debug)]
pub struct Cluster {
    _only: MutexGuard<'static, ()>,
}

impl Cluster {
    /// The variable that names the program that does something to a node, as `dev/services/with cassandra3` sets it.
    pub const VARIABLE: &str = "RESTANTE_CASSANDRA3_NODE";

    /// Waits until no other test of this process has the cluster.
    pub async fn take() -> Self {
        Self { _only: CLUSTER.lock().await }
    }

    /// Lets `dev/services/node` do something to a node, and waits until it is done. Returns what that prints.
    ///
    /// # Errors
    /// It failed, or no cluster runs.
    pub async fn node(&self, action: &'static str, number: u8) -> io::Result<String> {
        blocking(move || {
            let program = env::var(Self::VARIABLE).map_err(io::Error::other)?;
            let output = Command::new(program).args([action, &number.to_string()]).output()?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::other(format!("node {number} can't {action}: {why}")));
            }
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        })
        .await
    }

    /// Kills a node and starts it again. Here as in each fault below, `go_on` sees that clients go on, and is named the moment.
    ///
    /// # Errors
    /// Those of [`Cluster::node`].
    pub async fn kill_one(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        self.go_on_without(2, ["kill", "start"], go_on).await
    }

    /// Lets each node hang, one after the other.
    ///
    /// # Errors
    /// Those of [`Cluster::node`].
    pub async fn pause_each(&self, go_on: &impl AsyncFn(&str)) -> io::Result<()> {
        for number in [1, 2, 3] {
            self.go_on_without(number, ["pause", "resume"], go_on).await?;
        }
        Ok(())
    }

    /// Puts half a second between one node and the clients that reach it by this proxy.
    ///
    /// # Errors
    /// No client got anything from that node meanwhile.
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

    /// Puts an empty node in the place of one, and then needs it for every answer.
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

    /// As after a power cut: what a node has not synced is gone, also what it has acknowledged. The two others have it.
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

    /// Takes a node away and brings it back; clients go on without it, and with it.
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

    /// Kills a node, and cuts the second half off what its commit log has.
    async fn lose_log_end(&self, number: u8) -> io::Result<()> {
        self.node("kill", number).await?;
        let folder = PathBuf::from(self.node("data", number).await?).join("commitlog");
        blocking(move || cut_newest_log(&folder)).await
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Cuts the newest segment that has something, and deletes those after it.
fn cut_newest_log(folder: &Path) -> io::Result<()> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            segments.push(path);
        }
    }
    // Their names end with numbers that rise.
    segments.sort();
    while let Some(path) = segments.pop() {
        let bytes = fs::read(&path)?;
        // A segment has its full length from the start, with zeros behind what is written.
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
