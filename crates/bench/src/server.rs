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
use restante_waku::{Multiaddr, node::peer_of};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

use crate::{
    http::{Connection, get},
    location::secret_url,
    machine::{private_memory, processor_time},
};

/// The time limit of the server's start and stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// The settings of a server besides its archive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) flags: Vec<String>,
    /// Environment variables.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// A running server. It is killed when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    pub(crate) address: SocketAddr,
    /// From its start to its first healthy answer.
    pub(crate) start: Duration,
}

impl Server {
    /// Starts `program serve` on an archive and waits until it is healthy. Its log is written into a folder of this
    /// name in `folder`.
    pub(crate) async fn start(
        program: &Path,
        archive: &EngineUrl,
        folder: &Path,
        name: &str,
    ) -> anyhow::Result<Self> {
        Self::start_with(program, archive, folder, name, &Settings::default()).await
    }

    /// The same with settings.
    pub(crate) async fn start_with(
        program: &Path,
        archive: &EngineUrl,
        folder: &Path,
        name: &str,
        settings: &Settings,
    ) -> anyhow::Result<Self> {
        let folder = folder.join(name);
        fs::create_dir_all(&folder)?;
        let (log, stdout) = (folder.join("serve.log"), folder.join("serve.out"));
        let begun = Instant::now();
        let child = command(program, archive, &folder, settings)
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { child, log, address: nowhere, start: Duration::ZERO };
        loop {
            if let Some(address) = announced(&stdout) {
                server.address = address;
                if is_healthy(address).await {
                    break;
                }
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("the server ended with {status} before it was healthy: {}", server.log_tail());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server was not healthy within a minute: {}",
                server.log_tail()
            );
            tokio::time::sleep(POLL).await;
        }
        server.start = begun.elapsed();
        Ok(server)
    }

    /// Whether the process is still running.
    pub(crate) fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// The number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn private_memory(&self) -> Option<u64> {
        private_memory(&self.child.id().to_string())
    }

    /// The server's processor time so far.
    pub(crate) fn worked(&self) -> Option<Duration> {
        processor_time(&self.child.id().to_string())
    }

    /// Ends the server without any warning, as a power cut does.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().context("can't kill the server")?;
        self.child.wait()?;
        Ok(())
    }

    /// The server's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The address of the server's node for peers.
    pub(crate) async fn peer_address(&self) -> anyhow::Result<Multiaddr> {
        let mut connection = Connection::open(self.address).await?;
        let mut body = Vec::new();
        let status = connection.ask(get("/info").as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        ensure!(status == 200, "/info was answered with status {status}");
        peer_address(&body)
    }

    /// Stops the server with SIGTERM, as an operator does, and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let id = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("the server has no process id")?;
        kill_process(id, Signal::TERM).context("can't stop the server")?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the server ended with {status}: {}", self.log_tail());
                return Ok(begun.elapsed());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the server did not stop within a minute: {}",
                self.log_tail()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// The last lines of the server's log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if the server has already ended.
        let _ = self.child.kill();
        let _: Result<ExitStatus, _> = self.child.wait();
    }
}

/// Raises the limit of open files, which the server inherits, to the system's maximum.
pub(crate) fn allow_open_files(needed: u64) -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX);
    ensure!(
        most >= needed,
        "the system allows {most} open files, and {needed} are needed: raise it (ulimit -Hn)"
    );
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).context("can't raise the limit of open files")
}

/// The program to start: the named one, or this one.
pub(crate) fn program(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    match named {
        Some(program) => program.canonicalize().with_context(|| format!("can't find {}", program.display())),
        None => Ok(std::env::current_exe()?),
    }
}

/// A server with no other settings: files and the caller's environment are ignored. The archive's URL is in the environment,
/// because all users can read a command line, and a URL may contain a password. Messages may have any timestamp, so that a
/// delayed load is not refused. Servers of one bench share a folder, but only one server could open records and blobs there,
/// which no bench of a server needs.
fn command(program: &Path, archive: &EngineUrl, folder: &Path, settings: &Settings) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RESTANTE_") {
            command.env_remove(name);
        }
    }
    // All peers of a benchmark come from one address. An older server has no such settings.
    if std::env::current_exe().is_ok_and(|own| own == program) {
        command
            .env("RESTANTE_OPERATE__LISTEN", "")
            .env("RESTANTE_WAKU__LIMITS__CONNECTIONS_PER_ADDRESS_MAX", "1000")
            .env("RESTANTE_WAKU__LIMITS__HANDSHAKES_PER_ADDRESS_MAX", "256");
    }
    command
        .args(["serve", "--rest-address", "127.0.0.1", "--rest-port", "0"])
        .env("RESTANTE_ARCHIVE__URL", secret_url(archive))
        .env("RESTANTE_RECORDS__URL", "memory:")
        .env("RESTANTE_BLOBS__URL", "memory:")
        .env("RESTANTE_WAKU__TIMESTAMP_WINDOW_SECONDS", "0")
        .args(&settings.flags)
        .envs(settings.variables.iter().map(|(name, value)| (name, value)))
        .current_dir(folder)
        .stdin(Stdio::null());
    let has_port = settings.flags.iter().any(|flag| flag == "--tcp-port");
    if !has_port {
        command.args(["--tcp-port", "0"]);
    }
    command
}

/// The first plain TCP address with a peer id in the answer of `/info`.
fn peer_address(info: &[u8]) -> anyhow::Result<Multiaddr> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Info {
        listen_addresses: Vec<String>,
    }
    let info: Info = serde_json::from_slice(info).context("can't parse /info")?;
    for text in &info.listen_addresses {
        let Ok(address) = text.parse::<Multiaddr>() else { continue };
        let is_plain = !text.contains("/ws") && !text.contains("/tls");
        if is_plain && peer_of(&address).is_some() {
            return Ok(address);
        }
    }
    bail!("the server has no plain TCP address with a peer id: {}", info.listen_addresses.join(", "))
}

/// The address that a server has printed.
fn announced(stdout: &Path) -> Option<SocketAddr> {
    let stdout = fs::read_to_string(stdout).ok()?;
    let address = stdout.lines().find_map(|line| line.strip_prefix("listening on http://"))?;
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
    async fn a_server_that_ends_at_once_is_an_error_with_the_tail_of_its_log() {
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
    fn an_address_is_read_from_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let stdout = folder.path().join("out");
        assert_eq!(announced(&stdout), None);
        fs::write(&stdout, "hello\nlistening on http://127.0.0.1:8645\n").unwrap();
        assert_eq!(announced(&stdout), Some("127.0.0.1:8645".parse().unwrap()));
    }

    #[test]
    fn the_address_of_the_node_is_found_among_others() {
        let peer = "16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ";
        let info = |node: &str| {
            format!(
                "{{\"listenAddresses\":[\"http://127.0.0.1:1\",\"/ip4/127.0.0.1/tcp/1/ws/p2p/{peer}\"{node}]}}"
            )
        };
        let node = format!("/ip4/127.0.0.1/tcp/2/p2p/{peer}");
        let found = peer_address(info(&format!(",\"{node}\"")).as_bytes()).unwrap();
        assert_eq!(found.to_string(), node);
        assert!(peer_address(info("").as_bytes()).is_err());
    }

    #[test]
    fn a_node_has_a_free_port_unless_one_is_named() {
        for (flags, ports) in
            [(vec![], ["--tcp-port", "0"]), (vec!["--tcp-port", "4711"], ["--tcp-port", "4711"])]
        {
            let flags = flags.into_iter().map(str::to_owned).collect();
            let settings = Settings { flags, ..Settings::default() };
            let command = command(Path::new("restante"), &EngineUrl::Memory, Path::new("."), &settings);
            let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
            assert!(args.ends_with(&ports.map(str::to_owned)), "{args:?}");
            assert_eq!(args.iter().filter(|arg| *arg == "--tcp-port").count(), 1);
        }
    }

    #[test]
    fn a_password_is_in_the_environment_only() {
        let url: EngineUrl = "postgres://me:secret@host/db".parse().unwrap();
        let command = command(Path::new("restante"), &url, Path::new("."), &Settings::default());
        assert!(command.get_args().all(|arg| !arg.to_string_lossy().contains("secret")));
        let is_set = |value: Option<&std::ffi::OsStr>| {
            value.is_some_and(|url| url.to_string_lossy().contains("secret"))
        };
        assert!(command.get_envs().any(|(name, value)| name == "RESTANTE_ARCHIVE__URL" && is_set(value)));
    }
}
