//! Mail of other servers is checked: attachments, quarantine, names that can't be looked up.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
};

use serde_json::Value;

use crate::support::{Server, folder, free_address, restante, said, say};

const ALICE: &str = "alice@example.org";

struct Checked {
    server: Server,
    smtp: SocketAddr,
    operators: String,
}

impl Checked {
    /// A server whose name server does not answer.
    fn start(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let (smtp, operators) = (free_address(), free_address());
        let mut command = restante(folder);
        command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
        command.args(["--smtp-listen", &smtp.to_string()]);
        command.env("RESTANTE_OPERATE__LISTEN", operators.to_string());
        command.env("RESTANTE_SMTP__HOSTNAME", "mx.example.org");
        command.env("RESTANTE_DELIVERY__REMOTE__RESOLVER", "127.0.0.1:1");
        command.env("RESTANTE_CHECKS__EXEMPT", "192.0.2.0/24");
        command.env("RESTANTE_CHECKS__TIMEOUT_MS", "1000");
        command.env("RESTANTE_CHECKS__CLIENT_TIMEOUT_MS", "500");
        command.envs(settings.iter().copied());
        Self { server: Server::spawn(command), smtp, operators: format!("http://{operators}") }
    }

    /// Sends a message from Bob to Alice; returns the reply to its end.
    fn deliver(&self, message: &str) -> String {
        let mut stream = TcpStream::connect(self.smtp).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        let mut reply = || {
            loop {
                let mut line = String::new();
                replies.read_line(&mut line).unwrap();
                if line.as_bytes().get(3) == Some(&b' ') {
                    return line.trim_end().to_owned();
                }
            }
        };
        assert!(reply().starts_with("220 "));
        for line in ["EHLO mx.example.net", "MAIL FROM:<bob@example.net>", &format!("RCPT TO:<{ALICE}>")] {
            write!(stream, "{line}\r\n").unwrap();
            let reply = reply();
            assert!(reply.starts_with("250 "), "{line}: {reply}");
        }
        write!(stream, "DATA\r\n").unwrap();
        assert!(reply().starts_with("354 "));
        write!(stream, "{message}\r\n.\r\n").unwrap();
        reply()
    }

    fn run(&self, folder: &Path, args: &[&str]) -> String {
        said(folder, &[args, &["--rest", &self.operators]].concat())
    }

    /// The outcomes of deliveries to Alice with their reasons, the newest first.
    fn outcomes(&self, folder: &Path) -> Vec<(String, String)> {
        let traced = self.run(folder, &["mail", "trace", ALICE, "--format", "json"]);
        let entries: Vec<Value> = serde_json::from_str(&traced).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        entries.iter().map(|entry| (text(&entry["outcome"]), text(&entry["reason"]))).collect()
    }
}

fn make_account(folder: &Path) {
    fs::write(folder.join("password"), "correct horse").unwrap();
    said(folder, &["domain", "add", "example.org"]);
    said(folder, &["account", "add", ALICE, "--password-file", "password"]);
}

fn message(id: &str, attachment: &str) -> String {
    format!(
        "From: Bob <bob@example.net>\r\nMessage-ID: <{id}@example.net>\r\nSubject: {id}\r\n\
         Authentication-Results: mx.example.org; spf=pass smtp.mailfrom=example.net\r\n\
         Content-Type: application/octet-stream; name=\"{attachment}\"\r\n\r\nA text.\r\n"
    )
}

#[test]
fn chk13_mail_in_quarantine_is_listed_shown_released_and_dropped() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let settings =
        [("RESTANTE_CHECKS__ATTACHMENTS", "*.exe"), ("RESTANTE_CHECKS__ATTACHMENTS_ACTION", "quarantine")];
    let checked = Checked::start(&folder, &settings);
    assert!(checked.deliver(&message("plain", "a.txt")).starts_with("250 2.0.0"));
    for id in ["first", "second"] {
        let reply = checked.deliver(&message(id, "Setup.EXE"));
        assert!(reply.starts_with("250 2.0.0"), "{reply}");
    }
    let list = || -> Vec<Value> {
        serde_json::from_str(&checked.run(&folder, &["quarantine", "list", "--format", "json"])).unwrap()
    };
    let listed = list();
    let subjects: Vec<&str> = listed.iter().map(|kept| kept["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["second", "first"]);
    let ids = [&listed[0]["id"], &listed[1]["id"]].map(Value::to_string);
    let shown = checked.run(&folder, &["quarantine", "show", &ids[1]]);
    assert!(shown.contains("Setup.EXE") && shown.contains("bob@example.net"), "{shown}");
    let raw = checked.run(&folder, &["quarantine", "show", &ids[1], "--raw"]);
    assert!(raw.starts_with("Return-Path: <bob@example.net>\r\n"), "{raw}");
    assert_eq!(raw.matches("Authentication-Results: mx.example.org").count(), 1, "{raw}");
    assert!(!raw.contains("spf=pass"), "what claims to be ours is removed: {raw}");

    let outcomes = |checked: &Checked| {
        checked.outcomes(&folder).into_iter().map(|(outcome, _)| outcome).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&checked), ["quarantined", "quarantined", "delivered"]);
    let released = checked.run(&folder, &["quarantine", "release", &ids[1]]);
    assert!(released.contains(ALICE) && released.contains("delivered"), "{released}");
    let emails = checked.run(&folder, &["records", "stats", "--format", "json"]);
    assert!(emails.contains("\"email\""), "{emails}");
    assert_eq!(list().len(), 1);
    let again = say(&folder, &["quarantine", "release", &ids[1], "--rest", &checked.operators]);
    assert!(again.code == 1 && again.err.contains("not in quarantine"), "{}", again.err);
    let refused = say(&folder, &["quarantine", "drop", &ids[0], "--rest", &checked.operators]);
    assert!(refused.code != 0 && refused.err.contains("--yes"), "{}", refused.err);
    assert_eq!(checked.run(&folder, &["quarantine", "drop", &ids[0], "--yes"]), "1 message dropped\n");
    assert_eq!(list(), [Value::Null; 0]);
    // Who released and dropped it is noted, too.
    let traced = checked.outcomes(&folder);
    let [(dropped, by), (released, _), ..] = &traced[..] else { panic!("{traced:?}") };
    assert_eq!((dropped.as_str(), released.as_str(), traced.len()), ("dropped", "released", 5));
    assert!(by.starts_with("by ") && by.ends_with(" over HTTP"), "{by}");
    assert_eq!(checked.server.stop().code(), Some(0));
}

#[test]
fn chk12_a_refusal_is_traced_with_its_reason_and_dead_name_servers_refuse_nothing() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let settings = [("RESTANTE_CHECKS__ATTACHMENTS", "*.exe"), ("RESTANTE_CHECKS__HELLO", "refuse")];
    let checked = Checked::start(&folder, &settings);
    let reply = checked.deliver(&message("bad", "a.exe"));
    assert!(reply.starts_with("550 5.7.1 ") && reply.contains("a.exe"), "{reply}");
    assert!(checked.deliver(&message("good", "a.txt")).starts_with("250 2.0.0"));
    let several = message("several", "a.txt").replacen("From:", "From: eve@example.com\r\nFrom:", 1);
    assert!(checked.deliver(&several).starts_with("550 5.7.1 "));
    let outcomes = checked.outcomes(&folder);
    let words: Vec<&str> = outcomes.iter().map(|(outcome, _)| outcome.as_str()).collect();
    assert_eq!(words, ["refused", "delivered", "refused"]);
    assert!(outcomes[0].1.contains("From fields") && outcomes[2].1.contains("a.exe"), "{outcomes:?}");
    assert_eq!(checked.server.stop().code(), Some(0));
}

#[test]
fn chk11_greylisting_survives_a_restart() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let settings =
        [("RESTANTE_CHECKS__GREYLIST__ENABLED", "true"), ("RESTANTE_CHECKS__GREYLIST__DELAY_SECONDS", "1")];
    let checked = Checked::start(&folder, &settings);
    let begin = |checked: &Checked| {
        let mut stream = TcpStream::connect(checked.smtp).unwrap();
        write!(stream, "").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("220 "));
        for line in ["HELO mx.example.net", "MAIL FROM:<bob@example.net>"] {
            write!(stream, "{line}\r\n").unwrap();
            assert!(lines.next().unwrap().unwrap().starts_with("250 "));
        }
        write!(stream, "RCPT TO:<{ALICE}>\r\n").unwrap();
        lines.next().unwrap().unwrap()
    };
    let first = begin(&checked);
    assert!(first.starts_with("451 4.7.1 "), "{first}");
    assert_eq!(checked.server.stop().code(), Some(0));
    std::thread::sleep(std::time::Duration::from_secs(2));
    let checked = Checked::start(&folder, &settings);
    let second = begin(&checked);
    assert!(second.starts_with("250 "), "{second}");
    assert_eq!(checked.server.stop().code(), Some(0));
}

#[test]
fn settings_that_can_not_work_are_named_with_their_table() {
    let (_guard, folder) = folder();
    for (variable, value, key) in [
        ("RESTANTE_CHECKS__FILTER__URL", "ftp://x", "checks.filter.url"),
        ("RESTANTE_CHECKS__EXEMPT", "here", "checks.exempt"),
    ] {
        let output = restante(&folder).arg("serve").env(variable, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(key), "{said}");
    }
}
