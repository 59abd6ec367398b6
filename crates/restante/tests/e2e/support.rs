//! A server in a folder of its own, a small HTTP client, and the command line.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const PUBSUB_TOPIC: &str = "/waku/2/rs/1/0";
pub(crate) const CONTENT_TOPIC: &str = "/toy/1/chat/proto";

/// How long a test waits for an answer before it gives up. Not a measurement: it leaves a slow machine enough time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The command line of the built binary, without the settings of the user who runs the tests.
pub(crate) fn restante(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restante"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RESTANTE_") {
            command.env_remove(name);
        }
    }
    // Servers of tests run at the same time.
    for listener in ["OPERATE", "PUBLIC", "LMTP"] {
        command.env(format!("RESTANTE_{listener}__LISTEN"), "");
    }
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// The output of a command.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("the command ended by itself"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end, in a folder.
pub(crate) fn say(folder: &Path, args: &[&str]) -> Said {
    restante(folder).args(args).output().unwrap().into()
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn said(folder: &Path, args: &[&str]) -> String {
    let said = say(folder, args);
    assert_eq!(said.code, 0, "restante {args:?}\n{}", said.err);
    said.out
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server on a free port with its data below `folder`.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[])
    }

    pub(crate) fn start_with(folder: &Path, args: &[&str]) -> Self {
        let mut command = restante(folder);
        command.args(["serve", "--rest-port", "0", "--tcp-port", "0"]).args(args);
        command.env("RESTANTE_LOG__LEVEL", "warn"); // a test may override it by a flag
        Self::spawn(command)
    }

    /// Starts a server by a command of the test's own, and waits until it listens.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::try_spawn(command).unwrap_or_else(|said| panic!("{said}"))
    }

    /// The same; if the server does not listen, returns its output.
    pub(crate) fn try_spawn(mut command: Command) -> Result<Self, String> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let line = lines.find(|line| !line.starts_with("listening for mail by ")).unwrap_or_default();
        let address = line.strip_prefix("listening on http://");
        // A server without REST serves operators only.
        match address.or_else(|| line.strip_prefix("listening for operators on http://")) {
            Some(address) => Ok(Self { child, address: address.parse().unwrap() }),
            None => Err(format!("the server does not listen: {line:?}, {}", child.wait().unwrap())),
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the server ends.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Stops the server in order and returns its exit status.
    pub(crate) fn stop(self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Ends the server without any warning.
    pub(crate) fn kill(self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        request(self.address, "GET", path, "").expect("the server answers")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        request(self.address, "POST", path, &body.to_string()).expect("the server answers")
    }

    /// Publishes a text by HTTP, which must be accepted.
    pub(crate) fn publish(&self, payload: &str) {
        let answer = self.post(&publish_path(), &message(payload, now()));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// The address of the server's node, with its peer id.
    pub(crate) fn peer_address(&self) -> String {
        let info: Value = serde_json::from_str(&self.get("/info").body).unwrap();
        let addresses = info["listenAddresses"].as_array().unwrap();
        let of_node = addresses.iter().filter_map(Value::as_str).find(|address| address.contains("/p2p/"));
        of_node.unwrap_or_else(|| panic!("{info} names no address of a node")).to_owned()
    }

    /// The value of a metric, summed over its labels; `None` if the server does not have it.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values: Vec<f64> = text
            .lines()
            .filter(of_name)
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// All messages of the server, paged by cursor, as payload texts in the archive's order.
    pub(crate) fn payloads(&self, page_size: usize) -> Vec<String> {
        let mut found = Vec::new();
        let mut cursor = String::new();
        loop {
            let answer =
                self.get(&format!("/store/v3/messages?includeData=true&pageSize={page_size}{cursor}"));
            assert_eq!(answer.status, 200, "{}", answer.body);
            let page: Value = serde_json::from_str(&answer.body).unwrap();
            let messages = page["messages"].as_array().unwrap();
            assert!(messages.len() <= page_size);
            found.extend(messages.iter().map(payload_of));
            match page["paginationCursor"].as_str() {
                Some(hash) => cursor = format!("&cursor={hash}"),
                None => return found,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended already
        let _ = self.child.wait();
    }
}

/// The path on which messages of these tests are published.
pub(crate) fn publish_path() -> String {
    format!("/relay/v1/messages/{}", PUBSUB_TOPIC.replace('/', "%2F"))
}

/// A message in nwaku's JSON.
pub(crate) fn message(payload: &str, timestamp: i64) -> Value {
    json!({"payload": base64(payload.as_bytes()), "contentTopic": CONTENT_TOPIC, "timestamp": timestamp})
}

/// The payload of an entry of a store answer, as text.
pub(crate) fn payload_of(entry: &Value) -> String {
    let text = entry["message"]["payload"].as_str().unwrap();
    String::from_utf8(base64_simd::STANDARD.decode_to_vec(text).unwrap()).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Nanoseconds since the epoch. Servers accept only messages with the current time.
pub(crate) fn now() -> i64 {
    use restante_core::Clock;
    restante_core::SystemClock.now().nanos()
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Sends one request on a connection of its own; `None` if no complete answer was received.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Option<Answer> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    exchange(address, &[head.as_bytes(), body.as_bytes()].concat())
}

/// Sends bytes as they are and reads an answer until the server closes the connection.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let head_len = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..head_len]).to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = &answer[head_len..];
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let whole = match length {
        Some(length) => (body.len() == length.trim().parse::<usize>().ok()?).then(|| body.to_vec()),
        None if head.contains("transfer-encoding: chunked") => unchunked(body),
        None => Some(body.to_vec()),
    };
    Some(Answer { status, body: String::from_utf8_lossy(&whole?).into_owned() })
}

/// RFC 9112 §7.1: the content of a chunked body; `None` when its end is missing.
fn unchunked(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).ok()?.trim(), 16).ok()?;
        body = &body[end + 2..];
        if size == 0 {
            return Some(content);
        }
        content.extend_from_slice(body.get(..size)?);
        body = body.get(size + 2..)?;
    }
}

/// An address that is returned only once: below the ports that the system assigns to connections, and those of the engines. A UDP
/// socket on the same port reserves it until the process ends, as no server may listen there yet, or between two runs of it.
pub(crate) fn free_address() -> SocketAddr {
    static KEPT: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let mut ports = std::iter::repeat_with(|| rand::random_range(10_000..20_000));
    let free = ports.find_map(|port| {
        let kept = UdpSocket::bind(("127.0.0.1", port)).ok()?;
        let address = TcpListener::bind(("127.0.0.1", port)).ok()?.local_addr().ok()?;
        KEPT.lock().unwrap().push(kept);
        Some(address)
    });
    free.expect("ports don't end")
}

/// A folder that is removed when the test is over.
pub(crate) fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// Runs a command with this text on its stdin.
pub(crate) fn say_with_input(folder: &Path, args: &[&str], input: &[u8]) -> Said {
    let mut command = restante(folder);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || {
        let _ = stdin.write_all(&input); // a command may end before it has read everything
    });
    let said = child.wait_with_output().unwrap().into();
    writer.join().unwrap();
    said
}

/// Polls until it is so.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let pause = Duration::from_millis(20);
    let tries = PATIENCE.as_millis() / pause.as_millis();
    for _ in 0..tries {
        if is_so() {
            return;
        }
        thread::sleep(pause);
    }
    panic!("waited in vain until {what}");
}

/// Delivers a message by LMTP to a server, which may end meanwhile; returns the reply for its recipient.
pub(crate) fn deliver_by_lmtp(lmtp: SocketAddr, recipient: &str, message: &str) -> io::Result<String> {
    deliver(lmtp, "LHLO client.example", recipient, message)
}

/// The same with the greeting of LMTP or of SMTP.
pub(crate) fn deliver(
    address: SocketAddr,
    greeting: &str,
    recipient: &str,
    message: &str,
) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let mut replies = BufReader::new(stream.try_clone()?).lines();
    let mut reply = || loop {
        let line = replies.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        if line.as_bytes().get(3) == Some(&b' ') {
            return io::Result::Ok(line);
        }
    };
    assert!(reply()?.starts_with("220 "));
    let recipient = format!("RCPT TO:<{recipient}>");
    for (command, code) in [
        (greeting, "250 "),
        ("MAIL FROM:<bob@example.net>", "250 "),
        (recipient.as_str(), "250 "),
        ("DATA", "354 "),
    ] {
        write!(stream, "{command}\r\n")?;
        let line = reply()?;
        assert!(line.starts_with(code), "{command}: {line}");
    }
    write!(stream, "{}\r\n.\r\n", message.replace('\n', "\r\n"))?;
    reply()
}
