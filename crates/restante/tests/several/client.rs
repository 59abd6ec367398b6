//! A client of JMAP.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{PASSWORD, support::exchange};

/// How long to wait for an event.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server is gone, or answered with this status: whether the call took effect is unknown.
    Lost(String),
    /// It was refused, with this type of method error.
    Refused(String),
}

pub(crate) struct Client {
    address: SocketAddr,
    user: &'static str,
    account: String,
    api: String,
    upload: String,
    events: String,
}

fn credentials(user: &str) -> String {
    base64_simd::STANDARD.encode_to_string(format!("{user}:{PASSWORD}"))
}

fn request(
    (address, user): (SocketAddr, &str),
    method: &str,
    path: &str,
    content: &str,
    body: &str,
) -> Result<Value, Failure> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Basic {}\r\n\
         content-type: {content}\r\ncontent-length: {}\r\n\r\n",
        credentials(user),
        body.len()
    );
    let answer = exchange(address, &[head.as_bytes(), body.as_bytes()].concat());
    let answer = answer.ok_or_else(|| Failure::Lost("no answer".to_owned()))?;
    if answer.status >= 300 {
        return Err(Failure::Lost(format!("{}: {}", answer.status, answer.body)));
    }
    Ok(serde_json::from_str(&answer.body).unwrap())
}

impl Client {
    pub(crate) fn new(address: SocketAddr, user: &'static str) -> Result<Self, Failure> {
        let session = request((address, user), "GET", "/.well-known/jmap", "text/plain", "")?;
        let host = address.to_string();
        let path = |name: &str| {
            let url = session[name].as_str().unwrap();
            url[url.find(&host).unwrap() + host.len()..].to_owned()
        };
        let account = session["primaryAccounts"]["urn:ietf:params:jmap:mail"].as_str().unwrap().to_owned();
        let upload = path("uploadUrl").replace("{accountId}", &account);
        let (api, events) = (path("apiUrl"), path("eventSourceUrl"));
        Ok(Self { address, user, account, api, upload, events })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn user(&self) -> &'static str {
        self.user
    }

    fn request(&self, calls: &Value) -> Result<Value, Failure> {
        let using = ["core", "mail", "submission"].map(|name| format!("urn:ietf:params:jmap:{name}"));
        let body = json!({"using": using, "methodCalls": calls}).to_string();
        request((self.address, self.user), "POST", &self.api, "application/json", &body)
    }

    /// The newest emails of a mailbox with the properties that a list shows.
    pub(crate) fn list(&self, mailbox: &str, limit: usize) -> Vec<Value> {
        let query = json!({
            "accountId": self.account, "filter": {"inMailbox": mailbox},
            "sort": [{"property": "receivedAt", "isAscending": false}], "limit": limit,
        });
        let get = json!({
            "accountId": self.account, "#ids": {"resultOf": "0", "name": "Email/query", "path": "/ids"},
            "properties": [
                "id", "threadId", "mailboxIds", "keywords", "receivedAt", "size", "from", "subject", "preview",
                "hasAttachment",
            ],
        });
        let answer = self.request(&json!([["Email/query", query, "0"], ["Email/get", get, "1"]])).unwrap();
        answer["methodResponses"][1][1]["list"].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
    }

    /// Makes one call; returns the arguments of its first response.
    pub(crate) fn call(&self, name: &str, mut arguments: Value) -> Result<Value, Failure> {
        arguments["accountId"] = json!(self.account);
        let answer = self.request(&json!([[name, arguments, "0"]]))?;
        let response = &answer["methodResponses"][0];
        if response[0] == "error" {
            return Err(Failure::Refused(response[1]["type"].as_str().unwrap().to_owned()));
        }
        assert_eq!(response[0], name, "{answer}");
        Ok(response[1].clone())
    }

    /// Uploads a message; returns the id of its blob.
    pub(crate) fn upload(&self, text: &str) -> Result<Value, Failure> {
        Ok(request((self.address, self.user), "POST", &self.upload, "message/rfc822", text)?["blobId"]
            .clone())
    }
}

/// A stream of events of a server.
pub(crate) struct Events {
    lines: std::cell::RefCell<io::Lines<BufReader<TcpStream>>>,
    account: String,
}

impl Events {
    pub(crate) fn open(client: &Client) -> Self {
        let path = client.events.replace("{types}", "*").replace("{closeafter}", "no").replace("{ping}", "0");
        let mut stream = TcpStream::connect(client.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Basic {}\r\naccept: text/event-stream\r\n\r\n",
            client.address,
            credentials(client.user)
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next().unwrap().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        // The headers end with an empty line.
        while !lines.next().unwrap().unwrap().is_empty() {}
        Self { lines: lines.into(), account: client.account.clone() }
    }

    /// Reads until this state is announced.
    pub(crate) fn wait_for_state(&self, kind: &str, state: &Value) {
        for line in self.lines.borrow_mut().by_ref() {
            let line = line.expect("the state is announced in time");
            let Some(data) = line.strip_prefix("data:") else { continue };
            let Ok(event) = serde_json::from_str::<Value>(data.trim()) else { continue };
            if event["changed"][&self.account][kind] == *state {
                return;
            }
        }
        panic!("the stream of events ended");
    }
}
