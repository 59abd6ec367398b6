//! The journal of deliveries: the outcome of a message is found by the command and the route.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
};

use serde_json::Value;

use crate::support::{Server, folder, free_address, request, restante, said, say};

const ALICE: &str = "alice@example.org";
const MESSAGE_BYTES_MAX: usize = 200_000;

/// A server that receives mail and serves operators.
struct Mail {
    server: Server,
    smtp: SocketAddr,
    lmtp: SocketAddr,
    operators: SocketAddr,
}

impl Mail {
    fn start(folder: &Path) -> Self {
        let (smtp, lmtp, operators) = (free_address(), free_address(), free_address());
        let mut command = restante(folder);
        command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
        command.args(["--smtp-listen", &smtp.to_string(), "--lmtp-listen", &lmtp.to_string()]);
        command.env("RESTANTE_OPERATE__LISTEN", operators.to_string());
        command.env("RESTANTE_SMTP__MESSAGE_BYTES_MAX", MESSAGE_BYTES_MAX.to_string());
        Self { server: Server::spawn(command), smtp, lmtp, operators }
    }

    fn smtp(&self) -> Client {
        Client::new(self.smtp, "EHLO mx.example.net")
    }

    fn lmtp(&self) -> Client {
        Client::new(self.lmtp, "LHLO relay.example.org")
    }

    /// The running server's answer about a text.
    fn ask(&self, query: &str) -> Value {
        let path = format!("/admin/v1/mail/deliveries?{query}");
        let answer = request(self.operators, "GET", &path, "").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }
}

/// A client that speaks line by line.
struct Client {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Client {
    fn new(address: SocketAddr, hello: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let mut client = Self { replies: BufReader::new(stream.try_clone().unwrap()), stream };
        assert!(client.reply().starts_with("220 "));
        assert!(client.say(hello).starts_with("250 "));
        client
    }

    /// The last line of the next reply.
    fn reply(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.replies.read_line(&mut line).unwrap();
            if line.as_bytes().get(3) == Some(&b' ') {
                return line.trim_end().to_owned();
            }
        }
    }

    fn say(&mut self, line: &str) -> String {
        write!(self.stream, "{line}\r\n").unwrap();
        self.reply()
    }

    /// Sends `MAIL FROM` for Bob, and a recipient; returns the reply to the latter.
    fn begin(&mut self, recipient: &str) -> String {
        assert!(self.say("MAIL FROM:<bob@example.net>").starts_with("250 "));
        self.say(&format!("RCPT TO:<{recipient}>"))
    }

    /// Sends a message; returns the reply to its end.
    fn deliver(&mut self, recipient: &str, message: &str) -> String {
        assert!(self.begin(recipient).starts_with("250 "), "{recipient}");
        assert!(self.say("DATA").starts_with("354 "));
        write!(self.stream, "{message}\r\n.\r\n").unwrap();
        self.reply()
    }
}

fn message(id: &str, text: &str) -> String {
    format!(
        "From: Bob <bob@example.net>\r\nMessage-ID: <{id}@example.net>\r\nSubject: {id}\r\n\r\n{text}\r\n"
    )
}

/// A domain with Alice, whose alias is `info`, and Carol, whose mailbox is nearly full from the start.
fn make_accounts(folder: &Path) {
    fs::write(folder.join("password"), "correct horse").unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", ALICE, "--password-file", "password"]);
    said(folder, &["account", "add", "carol@example.org", "--password-file", "password", "--quota", "300"]);
    said(folder, &["alias", "add", "info@example.org", ALICE]);
}

/// Sends messages with every outcome.
fn send_mail(mail: &Mail) {
    let mut lmtp = mail.lmtp();
    assert!(lmtp.deliver(ALICE, &message("tea", "hot")).starts_with("250 "));
    assert!(lmtp.deliver("info@example.org", &message("tea", "hot")).starts_with("250 "));
    assert!(lmtp.begin("nobody@example.org").starts_with("550 5.1.1"));
    drop(lmtp);
    let mut smtp = mail.smtp();
    assert!(smtp.deliver(ALICE, &message("milk", "cold")).starts_with("250 2.0.0 stored as "));
    assert!(smtp.begin("dave@elsewhere.example").starts_with("554 5.7.1"));
    assert_eq!(smtp.say("RSET"), "250 2.0.0 ok");
    assert!(
        smtp.deliver("carol@example.org", &message("cake", &"sweet ".repeat(100))).starts_with("452 4.2.2")
    );
    assert!(smtp.deliver(ALICE, &message("huge", &"x\r\n".repeat(70_000))).starts_with("552 5.3.4"));
    let size = format!("MAIL FROM:<eve@example.net> SIZE={}", MESSAGE_BYTES_MAX + 1);
    assert!(smtp.say(&size).starts_with("552 5.3.4"));
    assert!(smtp.begin(ALICE).starts_with("250 "));
    assert!(smtp.say("DATA").starts_with("354 "));
    write!(smtp.stream, "Message-ID: <lost@example.net>\r\n\r\nand then").unwrap();
}

/// The outcomes of a look-up as the command prints them, the newest first.
fn trace(folder: &Path, about: &str, more: &[&str]) -> Vec<String> {
    let out = said(folder, &[&["mail", "trace", about, "--format", "json"], more].concat());
    let entries: Vec<Value> = serde_json::from_str(&out).unwrap();
    let show = |entry: &Value| {
        let code = entry["code"].as_u64().map(|code| format!(" {code}")).unwrap_or_default();
        let id = entry["messageId"].as_str().unwrap_or("-");
        format!("{} {}{code} {id}", entry["listener"].as_str().unwrap(), entry["outcome"].as_str().unwrap())
    };
    entries.iter().map(show).collect()
}

const OF_ALICE: [&str; 5] = [
    "smtp broken_off lost@example.net",
    "smtp refused 552 huge@example.net",
    "smtp delivered milk@example.net",
    "lmtp repeated tea@example.net",
    "lmtp delivered tea@example.net",
];

#[test]
fn what_became_of_a_message_is_found_by_address_and_message_id() {
    let (_guard, folder) = folder();
    make_accounts(&folder);
    let mail = Mail::start(&folder);
    send_mail(&mail);
    crate::support::wait_until("the end of the connection is noted", || {
        mail.ask("about=lost%40example.net")["deliveries"].as_array().unwrap().len() == 1
    });
    let url = format!("http://{}", mail.operators);
    let running = ["--rest", url.as_str()];
    assert_eq!(trace(&folder, "Alice@example.org", &running), OF_ALICE);
    for (about, expected) in [
        ("info@example.org", &["lmtp repeated tea@example.net"][..]),
        ("nobody@example.org", &["lmtp refused 550 -"]),
        ("dave@elsewhere.example", &["smtp refused 554 -"]),
        ("carol@example.org", &["smtp deferred 452 cake@example.net"]),
        ("<cake@example.net>", &["smtp deferred 452 cake@example.net"]),
        ("<huge@example.net>", &["smtp refused 552 huge@example.net"]),
        ("eve@example.net", &["smtp refused 552 -"]),
        ("<tea@example.net>", &["lmtp repeated tea@example.net", "lmtp delivered tea@example.net"]),
    ] {
        assert_eq!(trace(&folder, about, &running), expected, "{about}");
    }
    assert_eq!(trace(&folder, "bob@example.net", &[&running[..], &["--limit", "2"]].concat()), OF_ALICE[..2]);
    assert_eq!(trace(&folder, ALICE, &[&running[..], &["--since", "-1h"]].concat()), OF_ALICE);

    let answer = mail.ask("about=%3Cmilk%40example.net%3E");
    let entry = &answer["deliveries"][0];
    assert_eq!((&answer["isOn"], &answer["hasMore"]), (&Value::from(true), &Value::from(false)), "{answer}");
    assert_eq!(entry["peer"], "127.0.0.1", "{entry}");
    assert_eq!((&entry["hello"], &entry["sender"]), (&"mx.example.net".into(), &"bob@example.net".into()));
    assert!(entry["emailId"].as_str().unwrap().starts_with('e'), "{entry}");
    let account = mail.ask(&format!("account={}", entry["account"]));
    assert_eq!(account["deliveries"].as_array().unwrap().len(), OF_ALICE.len());
    let by_id = mail.ask(&format!("about={}", entry["id"].as_str().unwrap()));
    assert_eq!(by_id["deliveries"], answer["deliveries"]);
    assert_eq!(request(mail.operators, "GET", "/admin/v1/mail/deliveries?since=x", "").unwrap().status, 400);
    mail.server.kill();

    // The server is stopped, and the last write is torn.
    let journal = folder.join("data/journal");
    let torn = journal.join("stored-00000001");
    let bytes = [fs::read(&torn).unwrap(), vec![7; 100]].concat();
    fs::write(&torn, bytes).unwrap();
    assert_eq!(trace(&folder, ALICE, &[]), OF_ALICE);
    let text = said(&folder, &["mail", "trace", "carol@example.org"]);
    let [head, line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(head.starts_with("time                  outcome   from             to "), "{text}");
    assert!(line.ends_with("<cake@example.net>  452 4.2.2 the mailbox is full"), "{text}");
    let nothing = say(&folder, &["mail", "trace", "zoe@example.org"]);
    assert_eq!((nothing.code, nothing.out.as_str()), (1, ""));
    assert!(nothing.err.starts_with("restante: no message of 'zoe@example.org' since 2"), "{}", nothing.err);
    let mail = Mail::start(&folder);
    assert!(mail.lmtp().deliver(ALICE, &message("later", "x")).starts_with("250 "));
    assert_eq!(
        mail.ask("about=alice%40example.org&limit=1")["deliveries"][0]["messageId"],
        "later@example.net"
    );
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(trace(&folder, ALICE, &[]).len(), OF_ALICE.len() + 1);
}

#[test]
fn without_days_there_is_no_journal() {
    let (_guard, folder) = folder();
    make_accounts(&folder);
    let none = say(&folder, &["mail", "trace", ALICE]);
    assert_eq!(none.code, 1);
    assert!(none.err.contains("there is no journal of deliveries"), "{}", none.err);
    let mail = Mail::start(&folder);
    assert!(mail.lmtp().deliver(ALICE, &message("tea", "hot")).starts_with("250 "));
    assert_eq!(mail.server.stop().code(), Some(0));
    assert_eq!(trace(&folder, ALICE, &[]), ["lmtp delivered tea@example.net"]);
    fs::write(folder.join("restante.toml"), "[mail.journal]\ndays = 0\n").unwrap();
    let mail = Mail::start(&folder);
    assert!(mail.lmtp().deliver(ALICE, &message("milk", "cold")).starts_with("250 "));
    assert_eq!(mail.ask("about=alice%40example.org")["isOn"], false);
    assert_eq!(mail.server.stop().code(), Some(0));
    let left: Vec<_> =
        fs::read_dir(folder.join("data/journal")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["LOCK"], "what was noted before is removed");
}
