//! Hostile mails over LMTP and hostile requests over JMAP: each gets an answer, and costs the server bounded memory.

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{Answer, Server, exchange, folder, free_address, restante, said};

const USER: &str = "alice@example.org";
const PASSWORD: &str = "correct horse";
const MIB: u64 = 1 << 20;
/// By how much a server may grow while it receives a hostile mail of up to 50 MB, and while it answers a request that reads it: the
/// message, its decoded text and the response, each once or twice.
const GROWTH_OF_MAIL_MAX: u64 = 256 * MIB;
const GROWTH_OF_REQUEST_MAX: u64 = 256 * MIB;

/// A server with an account.
struct Victim {
    server: Server,
    jmap: SocketAddr,
    lmtp: SocketAddr,
}

fn start(folder: &Path) -> Victim {
    std::fs::write(folder.join("password"), PASSWORD).unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", USER, "--password-file", "password"]);
    let (jmap, lmtp) = (free_address(), free_address());
    let mut command = restante(folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.args(["--jmap-listen", &jmap.to_string(), "--lmtp-listen", &lmtp.to_string()]);
    Victim { server: Server::spawn(command), jmap, lmtp }
}

impl Victim {
    /// Sends a mail, whose lines must not begin with dots; returns the reply for its recipient.
    fn deliver(&self, mail: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.lmtp).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut reply = || loop {
            let line = replies.next().unwrap().unwrap();
            if line.as_bytes()[3] == b' ' {
                return line;
            }
        };
        reply();
        let recipient = format!("RCPT TO:<{USER}>");
        for command in ["LHLO client.example", "MAIL FROM:<bob@example.net>", &recipient, "DATA"] {
            write!(stream, "{command}\r\n").unwrap();
            let line = reply();
            assert!(line.starts_with(['2', '3']), "{command}: {line}");
        }
        stream.write_all(mail).unwrap();
        stream.write_all(b"\r\n.\r\n").unwrap();
        reply()
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let credentials = base64_simd::STANDARD.encode_to_string(format!("{USER}:{PASSWORD}"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nauthorization: Basic {credentials}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.jmap,
            body.len()
        );
        exchange(self.jmap, &[head.as_bytes(), body.as_bytes()].concat()).unwrap()
    }

    /// The account, and the path of the API.
    fn session(&self) -> (String, String) {
        let session: Value = serde_json::from_str(&self.send("GET", "/.well-known/jmap", "").body).unwrap();
        let account = session["primaryAccounts"]["urn:ietf:params:jmap:mail"].as_str().unwrap();
        let url = session["apiUrl"].as_str().unwrap();
        let host = self.jmap.to_string();
        (account.to_owned(), url[url.find(&host).unwrap() + host.len()..].to_owned())
    }
}

/// The highest memory use of a server since this was created.
struct Peak {
    most: Arc<AtomicU64>,
    before: u64,
    is_over: Arc<AtomicBool>,
    watch: Option<JoinHandle<()>>,
}

impl Peak {
    fn of(victim: &Victim) -> Self {
        let (most, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let status = format!("/proc/{}/status", victim.server.id());
        let before = memory(&status);
        let watch = {
            let (most, is_over) = (most.clone(), is_over.clone());
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    most.fetch_max(memory(&status), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(5));
                }
            })
        };
        Self { most, before, is_over, watch: Some(watch) }
    }

    fn growth(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.watch.take().unwrap().join().unwrap();
        self.most.load(Ordering::Relaxed).saturating_sub(self.before)
    }
}

/// The private memory in a file `/proc/PID/status`; 0 for a process that has ended.
fn memory(status: &str) -> u64 {
    let status = std::fs::read_to_string(status).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024)
}

/// The beginning of JSON that may be long.
fn brief(value: &Value) -> String {
    value.to_string().chars().take(500).collect()
}

/// Mails that are made to be expensive, by name.
fn mails() -> Vec<(&'static str, String)> {
    let multiparts = |levels: usize| {
        (0..levels).fold(String::new(), |mut mail, level| {
            let part = "Content-Type: multipart/mixed; boundary=b";
            write!(mail, "{part}{level}\r\n\r\n--b{level}\r\n").unwrap();
            mail
        })
    };
    let mixed = "Content-Type: multipart/mixed; boundary=b\r\n\r\n";
    let html = "Content-Type: text/html\r\n\r\n";
    let base64 = "Content-Type: text/plain; charset=iso-2022-jp\r\nContent-Transfer-Encoding: base64\r\n\r\n";
    let long_name = format!("name*0=\"{}\"", "=?utf-8?q?a?= ".repeat(1_000));
    vec![
        ("multiparts in multiparts", multiparts(10_000)),
        ("messages in messages", "Content-Type: message/rfc822\r\n\r\n".repeat(100_000)),
        ("100,000 parts", format!("{mixed}{}", "--b\r\n\r\nx\r\n".repeat(100_000))),
        ("parts with long names", {
            let part = format!("--b\r\nContent-Type: text/plain; {long_name}\r\n\r\nx\r\n");
            format!("{mixed}{}", part.repeat(999))
        }),
        ("a header without end", format!("X-A: {}\r\n", "y".repeat(900)).repeat(22_000)),
        ("a field without end", format!("Subject: {}", "\r\n y".repeat(5_000_000))),
        ("a chain of encoded words", format!("Subject: {}\r\n\r\nx", "=?utf-8?q?=41?=\r\n ".repeat(12_000))),
        ("many encoded subjects", format!("{}\r\nx", "Subject: =?utf-8?b?QUJD?=\r\n".repeat(9_000))),
        ("encoded addresses", format!("From: {}x\r\n\r\nx", "=?utf-8?b?QUJD?= <a@b>,\r\n ".repeat(9_000))),
        ("references", format!("References: {}\r\n\r\nx", "<a@b>\r\n ".repeat(30_000))),
        (
            "a body of 50 MB",
            format!("Subject: x\r\n\r\n{}", format!("{}\r\n", "x".repeat(900)).repeat(55_000)),
        ),
        ("tags that don't end", format!("{html}{}", format!("{}\r\n", "<a ".repeat(300)).repeat(5_500))),
        ("entities", format!("{html}{}", format!("{}\r\n", "&lt;<b>".repeat(120)).repeat(5_500))),
        ("an encoded body", format!("{base64}{}", format!("{}\r\n", "QUJD".repeat(18)).repeat(270_000))),
    ]
}

/// Properties that require reading the whole message.
const PROPERTIES: &[&str] = &[
    "bodyStructure",
    "bodyValues",
    "textBody",
    "htmlBody",
    "attachments",
    "headers",
    "preview",
    "header:from:asAddresses:all",
    "header:subject:asText:all",
    "header:references:asMessageIds:all",
];

#[test]
fn hostile_mails_are_accepted_and_read_in_bounded_memory() {
    let (_guard, folder) = folder();
    let victim = start(&folder);
    let (account, api) = victim.session();
    let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"];
    let newest = json!({"accountId": account, "limit": 1});
    let ids = json!({"resultOf": "q", "name": "Email/query", "path": "/ids"});
    let read =
        json!({"accountId": account, "#ids": ids, "properties": PROPERTIES, "fetchAllBodyValues": true});
    let search = json!({"accountId": account, "filter": {"text": "needle"}});
    let calls = json!([["Email/query", newest, "q"], ["Email/get", read, "g"], ["Email/query", search, "s"]]);
    let request = json!({"using": using, "methodCalls": calls}).to_string();
    // First, while the search index is idle: its memory for earlier mails would count.
    let peak = Peak::of(&victim);
    let reply = victim.deliver(format!("Subject: x\r\n\r\n{}", "x".repeat(50_000_000)).as_bytes());
    assert!(reply.starts_with("550 5.5.2"), "a line of 50 MB: {reply}");
    let growth = peak.growth();
    assert!(growth <= 16 * MIB, "a line that is refused is not stored: {} MiB", growth / MIB);

    for (name, mail) in mails() {
        let peak = Peak::of(&victim);
        let reply = victim.deliver(mail.as_bytes());
        assert!(reply.starts_with("250 "), "{name}: {reply}");
        let growth = peak.growth();
        assert!(growth <= GROWTH_OF_MAIL_MAX, "{name}: the server grew by {} MiB", growth / MIB);

        let peak = Peak::of(&victim);
        let answer = victim.send("POST", &api, &request);
        assert_eq!(answer.status, 200, "{name}: {}", answer.body);
        let growth = peak.growth();
        assert!(growth <= GROWTH_OF_REQUEST_MAX, "{name}, read: the server grew by {} MiB", growth / MIB);
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let read = &answer["methodResponses"][1];
        assert_eq!(read[1]["list"].as_array().map(Vec::len), Some(1), "{name}: {}", brief(read));
        assert_eq!(answer["methodResponses"][2][1]["ids"], json!([]), "{name}");
    }
    assert_eq!(victim.server.stop().code(), Some(0));
}

/// Requests that are made to be expensive, by name, each with what its answer must contain.
fn requests(account: &str) -> Vec<(&'static str, String, &'static str)> {
    let of = |calls: Value| {
        let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail", "urn:ietf:params:jmap:blob"];
        json!({"using": using, "methodCalls": calls}).to_string()
    };
    let with_filter = |filter: &str| {
        let request = of(json!([["Email/query", {"accountId": account, "filter": "FILTER"}, "0"]]));
        request.replace("\"FILTER\"", filter)
    };
    let nested = |depth: usize| {
        let operator = r#"{"operator":"NOT","conditions":["#;
        with_filter(&format!("{}{{}}{}", operator.repeat(depth), "]}".repeat(depth)))
    };
    let reference =
        |call: usize, path: &str| json!({"resultOf": call.to_string(), "name": "Core/echo", "path": path});
    // Each call returns the one before twice.
    let doubled = |first: Value| {
        let mut calls = vec![json!(["Core/echo", first, "0"])];
        for call in 1..64 {
            let twice = json!({"#a": reference(call - 1, ""), "#b": reference(call - 1, "")});
            calls.push(json!(["Core/echo", twice, call.to_string()]));
        }
        of(json!(calls))
    };
    let get = |ids: Vec<String>| of(json!([["Email/get", {"accountId": account, "ids": ids}, "0"]]));
    let mutual = json!([
        ["Core/echo", {"#a": reference(1, "/b")}, "0"],
        ["Core/echo", {"#b": reference(0, "/a")}, "1"]
    ]);
    let many_references: serde_json::Map<String, Value> =
        (0..60_000).map(|n| (format!("#{n}"), reference(0, "/y"))).collect();
    let long = "x".repeat(4_000_000);
    let cycle = json!({"a": {"name": "a", "parentId": "#b"}, "b": {"name": "b", "parentId": "#a"}});
    vec![
        ("deep JSON", "[".repeat(9_000_000), "notJSON"),
        ("1,000,000 ids", get(vec!["e1".to_owned(); 1_000_000]), "maxSizeRequest"),
        ("200,000 ids", get((0..200_000).map(|n| format!("e{n}")).collect()), "requestTooLarge"),
        (
            "a reference to itself",
            of(json!([["Core/echo", {"#a": reference(0, "")}, "0"]])),
            "invalidResultReference",
        ),
        ("references to each other", of(mutual), "invalidResultReference"),
        ("doubled values", doubled(json!({"x": vec![0; 1_000]})), "invalidResultReference"),
        ("doubled strings", doubled(json!({"x": "y".repeat(9_000_000)})), "invalidResultReference"),
        (
            "references behind a long string",
            of(json!([["Core/echo", {"x": long, "y": 1}, "0"], ["Core/echo", many_references, "1"]])),
            "invalidResultReference",
        ),
        (
            "mailboxes in each other",
            of(json!([["Mailbox/set", {"accountId": account, "create": cycle}, "0"]])),
            "\"notCreated\":{",
        ),
        ("a filter of 17 levels", nested(17), "unsupportedFilter"),
        ("a filter of 100,000 levels", nested(100_000), "notJSON"),
        (
            "a filter of 60,000 conditions",
            {
                let wide = json!({"operator": "OR", "conditions": vec![json!({"text": "a"}); 60_000]});
                with_filter(&wide.to_string())
            },
            "unsupportedFilter",
        ),
        (
            "a text of 1,000,000 words",
            with_filter(&json!({"text": "abc ".repeat(1_000_000)}).to_string()),
            "methodResponses",
        ),
        (
            "a word of 5 MB",
            with_filter(&json!({"text": "a".repeat(5_000_000)}).to_string()),
            "methodResponses",
        ),
        (
            "60,000 comparators",
            {
                let sort = vec![json!({"property": "subject"}); 60_000];
                of(json!([["Email/query", {"accountId": account, "sort": sort}, "0"]]))
            },
            "unsupportedSort",
        ),
        (
            "100,000 properties",
            {
                let properties: Vec<String> = (0..100_000).map(|n| format!("header:x{n}")).collect();
                of(json!([["Email/get", {"accountId": account, "ids": [], "properties": properties}, "0"]]))
            },
            "methodResponses",
        ),
    ]
}

#[test]
fn hostile_requests_are_answered_in_bounded_memory() {
    let (_guard, folder) = folder();
    let victim = start(&folder);
    assert!(victim.deliver(b"Subject: x\r\n\r\nx").starts_with("250 "));
    let (account, api) = victim.session();
    for (name, request, expected) in requests(&account) {
        let peak = Peak::of(&victim);
        let answer = victim.send("POST", &api, &request);
        let body = &answer.body;
        assert!(body.contains(expected), "{name}: {}", &body[..body.len().min(500)]);
        let growth = peak.growth();
        assert!(growth <= GROWTH_OF_REQUEST_MAX, "{name}: the server grew by {} MiB", growth / MIB);
    }
    assert_eq!(victim.server.stop().code(), Some(0));
}

/// A mail that fills most of a response each time it is read, and is read by all calls of a request.
#[test]
fn a_request_that_reads_too_much_many_times_stops_early() {
    let (_guard, folder) = folder();
    let victim = start(&folder);
    let (account, api) = victim.session();
    let line = format!("{}\r\n", "\"".repeat(900));
    let mail = format!("Content-Type: text/plain\r\n\r\n{}", line.repeat(50_000));
    assert!(victim.deliver(mail.as_bytes()).starts_with("250 "));
    let ids = json!({"resultOf": "q", "name": "Email/query", "path": "/ids"});
    let get =
        json!({"accountId": account, "#ids": ids, "properties": PROPERTIES, "fetchAllBodyValues": true});
    let mut calls = vec![json!(["Email/query", {"accountId": account}, "q"])];
    calls.extend((0..63).map(|call| json!(["Email/get", get, call.to_string()])));
    let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"];
    let peak = Peak::of(&victim);
    let answer = victim.send("POST", &api, &json!({"using": using, "methodCalls": calls}).to_string());
    let growth = peak.growth();
    assert!(growth <= 2 * GROWTH_OF_REQUEST_MAX, "the server grew by {} MiB", growth / MIB);
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    let responses = answer["methodResponses"].as_array().unwrap();
    assert_eq!(responses.len(), 64);
    assert!(
        responses[1..].iter().all(|response| response[1]["type"] == "requestTooLarge"),
        "{}",
        brief(&answer)
    );
    assert!(
        responses[63][1]["description"].as_str().unwrap().starts_with("earlier responses"),
        "{:?}",
        responses[63]
    );
    assert_eq!(victim.server.stop().code(), Some(0));
}
