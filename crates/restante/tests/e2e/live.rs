//! Reads a live stream, as a browser would.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::support::{Server, restante, said, wait_until};

/// An open live stream. Dropping it closes the connection.
pub(crate) struct Reader {
    stream: TcpStream,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    text: String,
    is_over: bool,
}

impl Reader {
    /// Opens `GET /live` with a query, and waits until the server has started to answer.
    pub(crate) fn open(server: &Server, query: &str) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let host = server.address();
        let head = format!(
            "GET /live?{query} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let reader = Self { stream: stream.try_clone().unwrap(), seen: seen.clone() };
        thread::spawn(move || read_to_end(stream, &seen));
        wait_until("the stream is open", || reader.text().contains("\r\n\r\n"));
        assert!(reader.text().starts_with("HTTP/1.1 200"), "{}", reader.text());
        reader
    }

    /// Everything received so far.
    pub(crate) fn text(&self) -> String {
        self.seen.lock().unwrap().text.clone()
    }

    /// Waits until this text was received.
    pub(crate) fn wait_for(&self, what: &str) {
        wait_until(&format!("the stream has brought {what}"), || self.text().contains(what));
    }

    /// Waits until the server has ended the stream, and returns all that it sent.
    pub(crate) fn wait_for_end(&self) -> String {
        wait_until("the stream ends", || self.seen.lock().unwrap().is_over);
        self.text()
    }

    /// The client's address, which is the user of the stream's session.
    pub(crate) fn user(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both); // the server may have ended it already
    }
}

fn read_to_end(mut stream: TcpStream, seen: &Mutex<Seen>) {
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).unwrap_or(0);
        let mut seen = seen.lock().unwrap();
        if count == 0 {
            seen.is_over = true;
            return;
        }
        seen.text.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
}

/// The sessions that the command line lists.
pub(crate) fn listed(server: &Server, filters: &[&str]) -> Vec<Value> {
    let folder = std::env::temp_dir();
    let lines = said(&folder, &[&["sessions", "list", "--rest", &server.url()], filters].concat());
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The counts that the command line prints.
pub(crate) fn counted(server: &Server) -> Value {
    let output = restante(&std::env::temp_dir())
        .args(["sessions", "count", "--format", "json", "--rest", &server.url()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
