//! The server under load: restante itself, in a process of its own.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use restante_archive::EngineUrl;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    http::{Connection, get},
    machine::private_memory,
    place::secret_url,
};

/// How long the server may take to start and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// A running server. It is killed when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
    /// From its start to its first healthy answer.
    pub(crate) start: Duration,
}

impl Server {
    /// Starts `program serve` on an archive and waits until it is healthy. Its log goes into a folder of that name in
    /// `folder`.
    pub(crate) async fn start(
        program: &Path,
        archive: &EngineUrl,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        let (log, said) = (folder.join("serve.log"), folder.join("serve.out"));
        let begun = Instant::now();
        let child = command(program, archive, &folder)
            .stdout(File::create(&said)?)
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { child, log, address: nowhere, start: Duration::ZERO };
        loop {
            if let Some(address) = announced(&said) {
                server.address = address;
                if is_healthy(address).await {
                    break;
                }
            }
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

    /// Whether the process is still there.
    pub(crate) fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    pub(crate) fn private_memory(&self) -> Option<u64> {
        private_memory(&self.child.id().to_string())
    }

    /// Asks the server to finish, as an operator does, and waits for it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Duration> {
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
    pub(crate) fn last_words(&self) -> String {
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

/// The program to start: the named one, or this one.
pub(crate) fn program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    match named {
        Some(program) => program.canonicalize().with_context(|| format!("can't find {}", program.display())),
        None => Ok(std::env::current_exe()?),
    }
}

/// A server with no settings but ours: neither a file nor the environment of the caller has any say. The archive's URL is in
/// the environment, because everybody can read a command line, and a URL may hold a password. Messages may be of any
/// time: a load that runs behind must not be refused for it.
fn command(program: &Path, archive: &EngineUrl, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RESTANTE_") {
            command.env_remove(name);
        }
    }
    command
        .args(["serve", "--rest-address", "127.0.0.1", "--rest-port", "0"])
        .env("RESTANTE_ARCHIVE__URL", secret_url(archive))
        .env("RESTANTE_WAKU__TIMESTAMP_WINDOW_SECONDS", "0")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// The address that a server has printed.
fn announced(said: &Path) -> Option<SocketAddr> {
    let said = fs::read_to_string(said).ok()?;
    let address = said.lines().find_map(|line| line.strip_prefix("listening on http://"))?;
    address.trim().parse().ok()
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
        let started = Server::start(Path::new("/bin/ls"), &EngineUrl::Memory, folder.path(), "one").await;
        let error = started.err().unwrap().to_string();
        assert!(error.contains("ended with"), "{error}");
    }

    #[tokio::test]
    async fn health_is_asked_for() {
        use crate::http::tests::{serve, sized};
        assert!(is_healthy(serve(|_, _| sized("200 OK", "OK")).await).await);
        assert!(!is_healthy(serve(|_, _| sized("503 Service Unavailable", "")).await).await);
        assert!(!is_healthy(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await);
    }

    #[test]
    fn an_address_is_read_when_its_line_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("out");
        assert_eq!(announced(&said), None);
        fs::write(&said, "hello\nlistening on http://127.0.0.1:8645\n").unwrap();
        assert_eq!(announced(&said), Some("127.0.0.1:8645".parse().unwrap()));
    }

    #[test]
    fn a_password_is_in_the_environment_only() {
        let url: EngineUrl = "postgres://me:secret@host/db".parse().unwrap();
        let command = command(Path::new("restante"), &url, Path::new("."));
        assert!(command.get_args().all(|arg| !arg.to_string_lossy().contains("secret")));
        let is_set = |value: Option<&std::ffi::OsStr>| {
            value.is_some_and(|url| url.to_string_lossy().contains("secret"))
        };
        assert!(command.get_envs().any(|(name, value)| name == "RESTANTE_ARCHIVE__URL" && is_set(value)));
    }
}
