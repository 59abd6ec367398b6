//! The server under load: restante itself, in a process of its own.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use restante_archive::EngineUrl;
use rustix::process::{Pid, Signal, kill_process};

use super::http::{Connection, get};
use crate::machine::private_memory;

/// How long the server may take to start and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// A running server. It is killed when it goes out of scope.
pub(super) struct Server {
    child: Child,
    log: PathBuf,
    pub(super) address: SocketAddr,
    /// From its start to its first healthy answer.
    pub(super) start: Duration,
}

impl Server {
    /// Starts `program serve` on an archive and waits until it is healthy. Its log goes into `folder`.
    pub(super) async fn start(program: &Path, archive: &EngineUrl, folder: &Path) -> anyhow::Result<Self> {
        let address = free_address()?;
        let log = folder.join("serve.log");
        let begun = Instant::now();
        let child = Command::new(program)
            .args(["serve", "--archive", &archive.to_string(), "--rest-address", &address.ip().to_string()])
            .args(["--rest-port", &address.port().to_string()])
            .current_dir(folder) // so that no settings file of the caller's is read
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("serve.out"))?)
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut server = Self { child, log, address, start: Duration::ZERO };
        while !is_healthy(address).await {
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended with {status} before it was healthy: {}", server.last_words());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server was not healthy within a minute: {}",
                server.last_words()
            );
            tokio::time::sleep(POLL).await;
        }
        server.start = begun.elapsed();
        Ok(server)
    }

    pub(super) fn private_memory(&self) -> Option<u64> {
        private_memory(&self.child.id().to_string())
    }

    /// Asks the server to finish, as an operator does, and waits for it.
    pub(super) async fn stop(mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let id = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("the server has no process id")?;
        kill_process(id, Signal::TERM).context("can't stop the server")?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}: {}", self.last_words());
                return Ok(begun.elapsed());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server did not stop within a minute: {}",
                self.last_words()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// The last lines of the server's log.
    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail when the server has ended already, and then there is nothing to do.
        let _ = self.child.kill();
        let _: Result<ExitStatus, _> = self.child.wait();
    }
}

/// An address on which nobody listens at the moment.
fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("can't find a free port")?;
    Ok(listener.local_addr()?)
}

async fn is_healthy(address: SocketAddr) -> bool {
    let Ok(mut connection) = Connection::open(address).await else { return false };
    connection.ask(get("/health").as_bytes(), |_| ()).await.is_ok_and(|status| status == 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_ends_at_once_is_an_error_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let started = Server::start(Path::new("/bin/ls"), &EngineUrl::Memory, folder.path()).await;
        let error = started.err().unwrap().to_string();
        assert!(error.contains("ended with"), "{error}");
    }

    #[tokio::test]
    async fn health_is_asked_for() {
        use super::super::http::tests::{serve, sized};
        assert!(is_healthy(serve(|_, _| sized("200 OK", "OK")).await).await);
        assert!(!is_healthy(serve(|_, _| sized("503 Service Unavailable", "")).await).await);
        assert!(!is_healthy(free_address().unwrap()).await);
    }
}
