//! Damaged or missing stores: commands and the server report them, go on with the rest, and make nothing worse.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    mail::{Mail, make_account, message, start, start_with},
    support::{Said, Server, deliver_by_lmtp, folder, free_address, restante, said, say},
};

const USER: &str = "alice@example.org";

/// A stopped server with some emails.
fn stopped_with_emails(folder: &Path, emails: usize) {
    let mail = with_emails(folder, emails);
    assert_eq!(mail.subjects(json!({"text": "words"})).len(), emails);
    assert_eq!(mail.server.stop().code(), Some(0));
}

fn with_emails(folder: &Path, emails: usize) -> Mail {
    make_account(folder);
    let mail = start(folder);
    for number in 0..emails {
        let reply = mail.deliver(&message(&format!("number{number}"), "the same words"));
        assert!(reply.starts_with("250 "), "{reply}");
    }
    mail
}

/// Changes a byte of a file.
fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|of_file| of_file == extension)).collect()
}

/// Damages one email's record: a byte in the middle of the file, where a check finds nothing else wrong.
fn damage_a_record(folder: &Path) {
    let path = folder.join("data/records/data.mdb");
    let bytes = fs::metadata(&path).unwrap().len();
    for offset in (bytes / 3..bytes).step_by(1_499) {
        flip(&path, offset);
        let checked = say(folder, &["records", "check"]);
        let is_of_email =
            checked.out.contains(" kind 2 record ") && checked.out.contains(": 1 damaged place");
        let is_unreadable =
            checked.out.contains("can't be read") || checked.out.contains("properties are damaged");
        if is_of_email && is_unreadable {
            return;
        }
        flip(&path, offset);
    }
    panic!("no byte damages an email alone");
}

/// The whole account could not be read, exported or checked, and no other store was checked.
#[test]
fn one_damaged_record_is_reported_and_everything_else_is_read() {
    const EMAILS: usize = 120;
    let (_guard, folder) = folder();
    stopped_with_emails(&folder, EMAILS);
    damage_a_record(&folder);

    let exported = say(&folder, &["mail", "export", "--account", USER, "mbox:all.mbox"]);
    assert_eq!(exported.code, 1, "{}", exported.err);
    assert!(exported.out.starts_with(&format!("exported {} emails", EMAILS - 1)), "{}", exported.out);
    assert!(exported.out.contains("1 email can't be exported"), "{}", exported.out);

    let dumped = say(&folder, &["records", "dump", "--out", "records.ndjson"]);
    assert_eq!(dumped.code, 1, "{}", dumped.err);
    assert!(dumped.err.contains(", email ") && dumped.err.contains(": it can't be read: "), "{}", dumped.err);
    assert!(
        dumped.err.contains("1 damaged record was left out: see restante records check"),
        "{}",
        dumped.err
    );
    let lines = fs::read_to_string(folder.join("records.ndjson")).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains(r#""kind":"email""#)).count(), EMAILS - 1);

    let compared = say(&folder, &["check"]);
    assert_eq!(compared.code, 1, "{}", compared.err);
    assert_eq!(compared.out.matches(": it can't be read: ").count(), 1, "{}", compared.out);
    assert!(
        !compared.out.contains("ends here") && !compared.out.contains("search index"),
        "{}",
        compared.out
    );

    let pack = &files(&folder.join("data/blobs/packs"), "pack")[0];
    flip(pack, fs::metadata(pack).unwrap().len() / 2);
    let checked = say(&folder, &["check", "--all"]);
    assert_eq!(checked.code, 1, "{}", checked.err);
    assert!(checked.out.contains(" kind 2 record "), "the record is listed: {}", checked.out);
    assert!(!checked.out.contains("ends here"), "{}", checked.out);
    assert!(
        checked.out.contains("its bytes are not those that were put"),
        "the blob is listed: {}",
        checked.out
    );

    let mail = start(&folder);
    assert_eq!(mail.subjects(json!({})).len(), EMAILS - 1);
    assert_eq!(mail.server.stop().code(), Some(0));
}

/// Commands that only read removed a damaged index, and reported no error without an index.
#[test]
fn a_damaged_or_missing_search_index_is_reported_and_left_as_it_is() {
    let (_guard, folder) = folder();
    stopped_with_emails(&folder, 3);
    let index = folder.join("data/search/index");
    let terms = &files(&index, "term")[0];
    flip(terms, 3);
    let before = fs::read_dir(&index).unwrap().count();
    for command in [&["search", "stats"][..], &["check"], &["check", "--all"]] {
        let said = say(&folder, command);
        assert_eq!(said.code, 1, "{command:?}: {}", said.out);
        let text = format!("{}{}", said.out, said.err);
        assert!(text.contains("can't be used") && text.contains("is damaged"), "{command:?}: {text}");
        assert_eq!(fs::read_dir(&index).unwrap().count(), before, "{command:?}");
    }
    said(&folder, &["search", "rebuild"]);
    assert_eq!(start_and_find(&folder), 3);

    fs::remove_dir_all(folder.join("data/search")).unwrap();
    let mut check = restante(&folder);
    check.args(["check", "--all"]).env("RESTANTE_PUBLIC__LISTEN", "127.0.0.1:1"); // one without JMAP has no index
    let checked = Said::from(check.output().unwrap());
    assert_eq!(checked.code, 1, "{}", checked.out);
    assert!(checked.out.contains("search index: there is none of 3 emails"), "{}", checked.out);
    assert_eq!(start_and_find(&folder), 3);
    said(&folder, &["check", "--all"]);
}

/// How many emails a server finds, once its index has them.
fn start_and_find(folder: &Path) -> usize {
    let mail = start(folder);
    let found = mail.subjects(json!({"text": "words"})).len();
    crate::support::wait_until("the emails are indexed", || {
        mail.server.metric("restante_follow_lag_seconds{follower=\"indexer\"}") == Some(0.0)
    });
    assert_eq!(mail.server.stop().code(), Some(0));
    found
}

/// What `/health` says of the blobs.
fn blobs_health(server: &Server) -> String {
    let health: Value = serde_json::from_str(&server.get("/health").body).unwrap();
    let parts = health["protocolsHealth"].as_array().unwrap();
    let blobs = parts.iter().find(|part| part.get("Blobs").is_some()).unwrap();
    format!("{} {}", blobs["Blobs"].as_str().unwrap(), blobs["desc"].as_str().unwrap_or_default())
}

/// Mail was refused permanently, or its blobs went into the folder that took the place of the missing disk. After a kill the last
/// blobs may only be in the records, and went there too; emails that were not indexed yet were never found. A backup succeeded
/// without the blobs.
#[test]
fn a_store_whose_disk_is_missing_is_reported_and_mail_is_deferred() {
    for (missing, is_killed) in
        [(&["blobs"][..], false), (&["blobs"], true), (&["records"], false), (&["records", "blobs"], false)]
    {
        let (_guard, folder) = folder();
        match is_killed {
            true => with_emails(&folder, 2).server.kill(),
            false => stopped_with_emails(&folder, 2),
        }
        unmount(&folder, missing);
        let operators = free_address();
        let mail = start_with(&folder, Some(operators));
        let health = blobs_health(&mail.server);
        // A server that has lost everything can't know it: it looks like one that was never set up.
        assert_eq!(health.starts_with("Not Ready "), missing.len() == 1, "{missing:?}: {health}");
        let reply = mail.recipient(USER);
        assert!(reply.starts_with("451 4.3.0 "), "{missing:?}: {reply}");
        let backup = say(&folder, &["backup", "running", "--rest", &format!("http://{operators}")]);
        assert_eq!(mail.server.stop().code(), Some(0));
        fs::write(folder.join("one.mbox"), format!("From bob\n{}", message("one", "words"))).unwrap();
        let imported = say(&folder, &["mail", "import", "--account", USER, "mbox:one.mbox"]);
        assert_ne!(imported.code, 0, "{missing:?}: {}", imported.out);
        if missing == ["blobs"] {
            let of_stopped = say(&folder, &["backup", "stopped"]);
            for refused in [backup, imported, of_stopped] {
                assert!(refused.err.contains("is their disk not mounted?"), "{}", refused.err);
            }
            let packs = files(&folder.join("data/blobs/packs"), "pack");
            assert!(packs.is_empty(), "nothing is stored in place of the right blobs");
        }

        mount(&folder, missing);
        let mail = start(&folder);
        assert_eq!(blobs_health(&mail.server), "Ready ");
        assert!(mail.deliver(&message("later", "the same words")).starts_with("250 "));
        assert_eq!(mail.subjects(json!({"text": "words"})).len(), 3, "{missing:?}, {is_killed}");
        assert_eq!(mail.server.stop().code(), Some(0));
        said(&folder, &["check"]);
    }
}

/// Moves stores away, as if their disks were not mounted.
#[expect(clippy::disallowed_methods, reason = "a rename in a test need not be durable")]
fn unmount(folder: &Path, stores: &[&str]) {
    for store in stores {
        fs::rename(folder.join("data").join(store), folder.join(store)).unwrap();
    }
}

/// Brings them back, and moves what was created in their places away.
#[expect(clippy::disallowed_methods, reason = "a rename in a test need not be durable")]
fn mount(folder: &Path, stores: &[&str]) {
    for store in stores {
        let place = folder.join("data").join(store);
        fs::remove_dir_all(&place).unwrap();
        fs::rename(folder.join(store), place).unwrap();
    }
}

/// The server closed its stores while the indexer used them, and a client that hung in DATA made the stop fail.
#[test]
fn a_stop_soon_after_mail_is_quiet_and_waits_for_no_client() {
    let (_guard, folder) = folder();
    make_account(&folder);
    let (jmap, lmtp): (SocketAddr, SocketAddr) = (free_address(), free_address());
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port=0", "--tcp-port=0", "--log-level=warn"]);
    command.args(["--jmap-listen", &jmap.to_string(), "--lmtp-listen", &lmtp.to_string()]);
    command.env("RESTANTE_SERVER__GRACE_SECONDS", "4");
    let log = folder.join("log");
    command.stderr(Stdio::from(fs::File::create(&log).unwrap()));
    let server = Server::spawn(command);
    for number in 0..20 {
        let reply = deliver_by_lmtp(lmtp, USER, &message(&format!("number{number}"), "words")).unwrap();
        assert!(reply.starts_with("250 "), "{reply}");
    }
    let hanging = begin_data(lmtp);
    let begun = Instant::now();
    assert_eq!(server.stop().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(hanging);
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("connections were cut")).collect();
    let of_stop: Vec<&&str> = lines
        .iter()
        .filter(|line| line.contains(" ERROR ") || line.contains("closed") || line.contains("ended"))
        .collect();
    assert!(of_stop.is_empty(), "{of_stop:#?}");
}

/// A connection that has sent the beginning of a message.
fn begin_data(lmtp: SocketAddr) -> TcpStream {
    use std::io::{BufRead, BufReader, Write};
    let mut stream = TcpStream::connect(lmtp).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
    write!(stream, "LHLO client.example\r\nMAIL FROM:<bob@example.net>\r\nRCPT TO:<{USER}>\r\nDATA\r\n")
        .unwrap();
    assert!(replies.any(|line| line.unwrap().starts_with("354 ")));
    write!(stream, "Subject: it ends here\r\n").unwrap();
    stream
}
