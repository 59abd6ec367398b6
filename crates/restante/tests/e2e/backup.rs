//! Backups: taken from a server under load, restored into an empty folder, and compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use restante_archive::Message;
use restante_core::{MessageHash, Timestamp};
use restante_mail::email;
use restante_records::{AccountId, Body, Change, Commit, Properties, Schema};
use serde_json::{Value, json};

use crate::support::{
    Said, Server, folder, message, now, publish_path, request, restante, said, say, wait_until,
};

const ADMIN: &[&str] = &["--rest-admin"];
const PATH: &str = "/admin/v1/backup";

/// Runs `work` on the records and the blobs below a data folder, in this process.
fn with_stores<T>(
    data: &Path,
    work: impl AsyncFnOnce(&restante_records::Opened, &restante_blobs::Opened) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = restante_records::EngineUrl::Lmdb(data.join("records"));
        let schema = Schema::new(restante_mail::kinds()).unwrap();
        let records = restante_records::open(restante_records::Config::new(url, schema)).await.unwrap();
        let url = restante_blobs::EngineUrl::Files(data.join("blobs"));
        let blobs = restante_blobs::open(restante_blobs::Config::new(url)).await.unwrap();
        let done = work(&records, &blobs).await;
        records.upkeep.close().await.unwrap();
        blobs.upkeep.close().await.unwrap();
        done
    })
}

/// The bytes of a blob. Some blobs are long enough to be files of their own.
fn blob(number: usize) -> Bytes {
    let bytes = if number.is_multiple_of(7) { 300_000 } else { 500 };
    (0..bytes + number).map(|at| (at * (number + 3) % 251) as u8).collect::<Vec<u8>>().into()
}

/// Emails of several accounts, each with a blob.
pub(crate) fn fill_stores(data: &Path, numbers: std::ops::Range<usize>) {
    with_stores(data, async |records, blobs| {
        for number in numbers {
            let id = blobs.blobs.put(&mut blob(number)).await.unwrap().id;
            let email = Change::Create {
                kind: email::KIND,
                body: Body { bytes: format!("email {number}").into(), blobs: vec![id] },
                properties: Properties::default()
                    .with(email::MAILBOX, 1)
                    .with(email::RECEIVED, number as u64),
            };
            let account = AccountId(number as u32 % 3);
            records.records.commit(account, Commit::of([email])).await.unwrap();
        }
    });
}

/// Every blob with its bytes.
fn blobs_of(data: &Path) -> BTreeMap<String, Vec<u8>> {
    with_stores(data, async |_, blobs| {
        let mut found = BTreeMap::new();
        for listed in blobs.upkeep.list(None, 4_096).await.unwrap() {
            let mut bytes = Vec::new();
            let mut source = blobs.blobs.read(listed.id, 0..u64::MAX).await.unwrap();
            while let Some(chunk) = source.next().await.unwrap() {
                bytes.extend_from_slice(&chunk);
            }
            found.insert(listed.id.to_string(), bytes);
        }
        found
    })
}

/// An archive of this many messages, most of them in sealed segments.
fn fill_archive(folder: &Path, messages: u32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let url = format!("log:{}", folder.join("data/archive").display()).parse().unwrap();
        let opened = restante_archive::open(restante_archive::Config::new(url)).await.unwrap();
        let numbers: Vec<u32> = (0..messages).collect();
        for batch in numbers.chunks(1_000) {
            opened.archive.append(batch.iter().map(|number| old_message(*number)).collect()).await.unwrap();
        }
        opened.upkeep.close().await.unwrap();
    });
}

fn old_message(number: u32) -> Message {
    let topic = ["/toy/1/one/proto", "/toy/1/two/proto", "/toy/1/three/proto"][number as usize % 3];
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&number.wrapping_mul(2_654_435_761).to_be_bytes());
    Message {
        message_hash: MessageHash(hash),
        channel: "/waku/2/rs/1/0".into(),
        topic: topic.into(),
        timestamp: Timestamp(1_700_000_000_000_000_000 + i64::from(number) * 600_000_000_000),
        body: wire(&format!("old {number} {}", "x".repeat(1_000)), topic).into(),
    }
}

/// `14/WAKU2-MESSAGE`: the payload is field 1, the content topic is field 2.
fn wire(payload: &str, topic: &str) -> Vec<u8> {
    let length = |len: usize| [len as u8 | 0x80, (len >> 7) as u8];
    let mut bytes = vec![0x0a];
    bytes.extend(length(payload.len()));
    bytes.extend(payload.as_bytes());
    bytes.push(0x12);
    bytes.extend(length(topic.len()));
    bytes.extend(topic.as_bytes());
    bytes
}

/// Threads that publish until a flag ends them.
struct Publishers {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Publishers {
    fn start(server: &Server) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let publisher = |number: usize| {
            let (address, is_over) = (server.address(), is_over.clone());
            thread::spawn(move || {
                let mut published = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let payload = format!("publisher {number} message {}", published.len());
                    let body = message(&payload, now()).to_string();
                    let answer = request(address, "POST", &publish_path(), &body).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    published.push(payload);
                }
                published
            })
        };
        Self { threads: (0..4).map(publisher).collect(), is_over }
    }

    fn finish(self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

/// Takes a backup of a running server.
fn back_up(folder: &Path, server: &Server, name: &str) -> Said {
    let said = say(folder, &["backup", name, "--rest", &server.url()]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("backed up "), "{}", said.out);
    assert!(!folder.join(format!("{name}.partial")).exists(), "what is finished is named");
    said
}

fn restore(folder: &Path, name: &str, data: &str) -> Said {
    say(folder, &["restore", name, "--data", data])
}

/// Every file below a folder, by its path.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn dump(folder: &Path, data: &str) -> String {
    said(folder, &["records", "dump", "--data", data])
}

#[test]
fn a_backup_of_a_busy_server_has_all_that_was_acknowledged() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..30);
    fill_archive(&folder, 3_000);
    let server = Server::start_with(&folder, ADMIN);
    let publishers = Publishers::start(&server);
    wait_until("some are published", || server.payloads(100).len() > 3_020);
    let before: BTreeSet<String> = server.payloads(100).into_iter().collect();
    let said = back_up(&folder, &server, "first");
    assert!(said.out.contains("30 blobs") && said.out.contains("30 records"), "{}", said.out);
    let published: BTreeSet<String> = publishers.finish().into_iter().collect();
    assert_eq!(server.stop().code(), Some(0));
    // What is stored later is not in it.
    fill_stores(&folder.join("data"), 30..33);

    let restored = restore(&folder, "first", "restored");
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(restored.out.contains("start the server"), "{}", restored.out);
    let server = Server::start_with(&folder, &["--data", "restored"]);
    let served: BTreeSet<String> = server.payloads(100).into_iter().collect();
    assert_eq!(server.stop().code(), Some(0));
    let lost: Vec<&String> = before.difference(&served).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let unknown = |payload: &&String| payload.starts_with("publisher") && !published.contains(*payload);
    assert_eq!(served.iter().find(unknown), None, "what is restored was sent");
    for check in ["archive", "records", "blobs"] {
        assert!(
            self::said(&folder, &[check, "check", "--data", "restored"]).contains("all sound"),
            "{check}"
        );
    }
    let lines: Vec<Value> =
        dump(&folder, "restored").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 30);
    let blobs = blobs_of(&folder.join("restored"));
    for line in lines {
        let id = line["blobs"][0].as_str().unwrap();
        let number: usize = line["body"].as_str().unwrap().strip_prefix("email ").unwrap().parse().unwrap();
        assert_eq!(blobs[id], blob(number), "{line}");
    }
}

#[test]
fn a_restored_server_is_the_same() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..12);
    fill_archive(&folder, 1_000);
    let server = Server::start_with(&folder, ADMIN);
    for number in 0..20 {
        server.publish(&format!("message {number}"));
    }
    let peer = server.peer_address();
    back_up(&folder, &server, "copy");
    // The server goes on with its data, though parts of it have another name now.
    server.publish("later");
    assert_eq!(server.stop().code(), Some(0));

    let restored = say(&folder, &["restore", "copy", "--data", "restored", "--keep-node-key"]);
    assert_eq!(restored.code, 0, "{}", restored.err);
    let compared =
        say(&folder, &["archive", "compare", "log:data/archive", "log:restored/archive", "--bodies"]);
    assert!(compared.out.contains("1 only in"), "{}{}", compared.out, compared.err);
    assert_eq!(dump(&folder, "data"), dump(&folder, "restored"));
    assert_eq!(blobs_of(&folder.join("data")), blobs_of(&folder.join("restored")));
    let key = fs::metadata(folder.join("restored/node.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o077, 0, "the node's key stays secret");
    let restored = Server::start_with(&folder, &["--data", "restored"]);
    let id = |address: &str| address.rsplit('/').next().unwrap().to_owned();
    assert_eq!(id(&restored.peer_address()), id(&peer), "the node is who it was");

    // What the restored server does changes nothing in the backup.
    restored.publish("new");
    assert_eq!(restored.stop().code(), Some(0));
    let checked = said(&folder, &["backup", "check", "copy"]);
    assert!(checked.contains("all sound") && checked.contains("1,020 messages"), "{checked}");
}

#[test]
fn without_a_server_the_command_reads_what_is_there() {
    let (_guard, folder) = folder();
    let nothing = say(&folder, &["backup", "copy"]);
    assert_eq!(nothing.code, 1);
    assert!(nothing.err.contains("there is nothing to back up in data"), "{}", nothing.err);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing was made");

    fill_stores(&folder.join("data"), 0..5);
    fill_archive(&folder, 100);
    let out = said(&folder, &["backup", "copy"]);
    assert!(
        out.starts_with("backed up 3 accounts (with internal ones), 5 blobs, 100 messages, 5 records into "),
        "{out}"
    );
    assert_eq!(fs::metadata(folder.join("copy")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(restore(&folder, "copy", "restored").code, 0);
    let compare = ["archive", "compare", "log:data/archive", "log:restored/archive", "--bodies"];
    assert_eq!(said(&folder, &compare), "equal: 100 messages in each\n");
    assert_eq!(dump(&folder, "data"), dump(&folder, "restored"));

    let again = say(&folder, &["backup", "copy"]);
    assert_eq!(again.code, 1);
    assert!(again.err.contains("is not empty"), "{}", again.err);
    let inside = say(&folder, &["backup", "data/copy"]);
    assert!(inside.err.contains("is to be copied"), "{}", inside.err);
}

#[test]
fn an_archive_in_sqlite_is_restored() {
    let (_guard, folder) = folder();
    let archive = ["--archive", "sqlite:data/messages.db"];
    let server = Server::start_with(&folder, &[ADMIN, &archive].concat());
    for number in 0..50 {
        server.publish(&format!("message {number}"));
    }
    back_up(&folder, &server, "copy");
    assert_eq!(server.stop().code(), Some(0));
    let other = restore(&folder, "copy", "restored");
    assert_eq!(other.code, 1);
    assert!(other.err.contains("of the sqlite engine") && other.err.contains("archive.url"), "{}", other.err);
    assert!(!folder.join("restored").exists());
    said(&folder, &["restore", "copy", "--data", "restored", "--archive", "sqlite:restored/other.db"]);
    let compare = ["archive", "compare", "sqlite:data/messages.db", "sqlite:restored/other.db", "--bodies"];
    assert_eq!(said(&folder, &compare), "equal: 50 messages in each\n");
}

/// Acknowledged messages wait in the spool: the backup has them though it lacks the database.
#[test]
fn what_waits_for_a_database_is_restored() {
    let (_guard, folder) = folder();
    let archive = ["--archive=postgres://me:secret@127.0.0.1:1/nowhere"];
    let server = Server::start_with(&folder, &[ADMIN, &archive].concat());
    for number in 0..10 {
        server.publish(&format!("message {number}"));
    }
    let said = back_up(&folder, &server, "copy");
    assert!(
        said.err.contains("not in the backup: archive: ") && said.err.contains("pg_dump"),
        "{}",
        said.err
    );
    server.kill();
    let checked = self::said(&folder, &["backup", "check", "copy"]);
    assert!(checked.contains("pg_dump") && checked.contains("all sound"), "{checked}");
    for file in files(&folder.join("copy")) {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"secret"), "{} has the password", file.display());
    }

    let restored = say(&folder, &[&["restore", "copy", "--data", "restored"], &archive[..]].concat());
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(restored.err.contains("pg_dump"), "{}", restored.err);
    let server = Server::start_with(&folder, &[&["--data", "restored"], &archive[..]].concat());
    assert_eq!(server.metric("restante_archive_spool_messages"), Some(10.0));
}

/// Two servers with one key on a network disturb each other: a restored server has its own unless it replaces the other.
#[test]
fn a_restored_server_has_a_key_of_its_own_unless_a_flag_keeps_the_old_one() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, ADMIN);
    back_up(&folder, &server, "copy");
    let restored = restore(&folder, "copy", "restored");
    assert_eq!(restored.code, 0, "{}", restored.err);
    assert!(
        restored.out.contains("--keep-node-key") && restored.out.contains("copy/files/node.key"),
        "{}",
        restored.out
    );
    assert!(!folder.join("restored/node.key").exists());
    let second = Server::start_with(&folder, &["--data", "restored"]);
    let id = |server: &Server| server.peer_address().rsplit('/').next().unwrap().to_owned();
    assert_ne!(id(&second), id(&server));
    drop(second);
    let kept = say(&folder, &["restore", "copy", "--data", "kept", "--keep-node-key"]);
    assert!(!kept.out.contains("--keep-node-key"), "{}", kept.out);
    let third = Server::start_with(&folder, &["--data", "kept"]);
    assert_eq!(id(&third), id(&server));
}

/// A timer runs the command from any folder: it finds the server as other commands do.
#[test]
fn a_running_server_is_found_without_its_data_folder() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, ADMIN);
    server.publish("kept");
    let (_other_guard, other) = crate::support::folder();
    let copy = folder.join("copy");
    let port = server.address().port().to_string();
    let run = |args: &[&str], port: &str| {
        Said::from(restante(&other).args(args).env("RESTANTE_REST__PORT", port).output().unwrap())
    };
    let said = run(&["backup", copy.to_str().unwrap()], &port);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(copy.join("backup.json").is_file());
    assert_eq!(files(&other), Vec::<PathBuf>::new(), "nothing was made");
    // A folder that is named is the one that is backed up.
    let named = run(&["backup", "second", "--data", "mine"], &port);
    assert!(named.code == 1 && named.err.contains("there is nothing to back up in mine"), "{}", named.err);
    let nobody = run(&["backup", "second"], "1");
    assert_eq!(nobody.code, 1);
    for what in
        ["there is nothing to back up in data", "no server is at http://127.0.0.1:1", "--data", "--rest"]
    {
        assert!(nobody.err.contains(what), "{what}: {}", nobody.err);
    }
}

/// A server that ends during a backup leaves nothing that looks like one.
#[test]
fn a_backup_that_was_cut_off_is_none() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..60);
    fill_archive(&folder, 20_000);
    let (copy, partial) = (folder.join("copy"), folder.join("copy.partial"));
    let mut cut_off = 0;
    for _ in 0..20 {
        let server = Server::start_with(&folder, ADMIN);
        let mut command = restante(&folder);
        command.args(["backup", "copy", "--rest", &server.url()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("it has begun", || partial.exists() || copy.exists());
        server.kill();
        let status = child.wait().unwrap();
        if copy.exists() {
            // The backup was finished first, and is complete.
            assert!(said(&folder, &["backup", "check", "copy"]).contains("all sound"));
            fs::remove_dir_all(&copy).unwrap();
            continue;
        }
        cut_off += 1;
        assert_eq!(status.code(), Some(1), "the client gets the error");
        let refused = restore(&folder, "copy.partial", "restored");
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("is no finished backup"), "{}", refused.err);
        assert_eq!(restore(&folder, "copy", "restored").code, 2, "there is none");
        assert!(!folder.join("restored").exists());
        if cut_off == 3 {
            break;
        }
    }
    assert!(cut_off > 0, "every backup was done before the server was killed");
    let server = Server::start_with(&folder, ADMIN);
    back_up(&folder, &server, "copy");
    assert!(said(&folder, &["backup", "check", "copy"]).contains("20,000 messages"));
}

/// A server that stops ends its backup, and the client gets the reason.
#[test]
fn a_backup_ends_with_its_server() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..60);
    fill_archive(&folder, 20_000);
    let (copy, partial) = (folder.join("copy"), folder.join("copy.partial"));
    let mut ended = 0;
    for _ in 0..20 {
        let server = Server::start_with(&folder, ADMIN);
        let mut command = restante(&folder);
        command.args(["backup", "copy", "--rest", &server.url()]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it has begun", || partial.exists() || copy.exists());
        assert_eq!(server.stop().code(), Some(0));
        let said = Said::from(child.wait_with_output().unwrap());
        assert!(!partial.exists(), "what was copied is removed");
        if copy.exists() {
            // The backup was finished first, and is complete.
            assert!(self::said(&folder, &["backup", "check", "copy"]).contains("all sound"));
            fs::remove_dir_all(&copy).unwrap();
            continue;
        }
        assert_eq!(said.code, 1);
        assert!(said.err.contains("the server is stopping, and no backup was taken"), "{}", said.err);
        ended += 1;
        if ended == 3 {
            break;
        }
    }
    assert!(ended > 0, "every backup was done before the server stopped");
}

/// The documented exit code of a command that is ended by Ctrl-C.
#[test]
fn a_backup_that_ctrl_c_ends_has_its_exit_code() {
    let (_guard, folder) = folder();
    fill_archive(&folder, 20_000);
    let (copy, partial) = (folder.join("copy"), folder.join("copy.partial"));
    for _ in 0..20 {
        let mut command = restante(&folder);
        let child =
            command.args(["backup", "copy"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it has begun", || partial.exists() || copy.exists());
        let process = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::INT); // it may have finished
        let said = Said::from(child.wait_with_output().unwrap());
        assert!(!partial.exists(), "what was copied is removed");
        if !copy.exists() {
            assert_eq!(said.code, 130, "{}", said.err);
            assert!(said.err.contains("the backup was stopped"), "{}", said.err);
            return;
        }
        fs::remove_dir_all(&copy).unwrap(); // it finished first
    }
    panic!("every backup was done before the signal came");
}

/// Prometheus must see how old the last backup is, also when the server was restarted meanwhile.
#[test]
fn metrics_show_the_last_backup() {
    let (_guard, folder) = folder();
    let taken_at = "restante_backup_last_success_timestamp_seconds";
    let runs = |server: &Server, result: &str| {
        server.metric(&format!("restante_backup_runs_total{{result=\"{result}\"}}")).unwrap()
    };
    let log = folder.join("log");
    let mut command = restante(&folder);
    command.args(["serve", "--rest-port", "0", "--tcp-port", "0"]).args(ADMIN);
    command.stderr(fs::File::create(&log).unwrap());
    let server = Server::spawn(command);
    assert_eq!(
        (server.metric(taken_at), runs(&server, "done"), runs(&server, "failed")),
        (Some(0.0), 0.0, 0.0)
    );
    back_up(&folder, &server, "first");
    assert_eq!(say(&folder, &["backup", "first", "--rest", &server.url()]).code, 1);
    let first = server.metric(taken_at).unwrap();
    assert!(first > 1_700_000_000.0, "{first} is in seconds");
    assert!(server.metric("restante_backup_last_bytes") > Some(0.0));
    assert!(server.metric("restante_backup_last_duration_seconds") > Some(0.0));
    assert_eq!((runs(&server, "done"), runs(&server, "failed")), (1.0, 1.0));
    assert_eq!(server.stop().code(), Some(0));
    let log = fs::read_to_string(log).unwrap();
    let of_failure = log.lines().find(|line| line.contains("no backup was taken"));
    assert!(of_failure.is_some_and(|line| line.contains("first")), "{log}");

    let server = Server::start_with(&folder, ADMIN);
    let again = server.metric(taken_at).unwrap();
    assert!((again - first).abs() < 0.001, "{again} is {first}, but for what writing it as a decimal costs");
    assert_eq!(server.stop().code(), Some(0));
    // The command itself tells the next server.
    self::said(&folder, &["backup", "second"]);
    let server = Server::start_with(&folder, ADMIN);
    assert!(server.metric(taken_at) > Some(first));
}

#[test]
fn a_damaged_backup_is_refused_by_the_name_of_the_file() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..10);
    fill_archive(&folder, 500);
    said(&folder, &["backup", "copy"]);
    let sound = files(&folder.join("copy"));
    let listed: Vec<&PathBuf> = sound.iter().filter(|file| !file.ends_with("backup.json")).collect();
    let with_content = listed.iter().filter(|file| fs::metadata(file).unwrap().len() > 0);
    for (number, file) in with_content.step_by(3).enumerate() {
        let copy = format!("copy {number}");
        copy_folder(&folder.join("copy"), &folder.join(&copy));
        let name = file.strip_prefix(folder.join("copy")).unwrap().to_str().unwrap();
        let damaged = folder.join(&copy).join(name);
        match number % 3 {
            0 => change_a_byte(&damaged),
            1 => OpenOptions::new().write(true).open(&damaged).unwrap().set_len(0).unwrap(),
            _ => fs::remove_file(&damaged).unwrap(),
        }
        let checked = say(&folder, &["backup", "check", &copy]);
        assert_eq!(checked.code, 1);
        assert!(checked.out.contains(name) && checked.out.contains("1 wrong"), "{}", checked.out);
        if name == "settings.toml" {
            continue; // for human readers
        }
        let refused = restore(&folder, &copy, "restored");
        assert_eq!(refused.code, 1, "{name}: {}", refused.out);
        assert!(refused.err.contains(name), "{}", refused.err);
        assert_eq!(files(&folder.join("restored")), Vec::<PathBuf>::new(), "nothing was restored");
    }
    assert_eq!(restore(&folder, "copy", "restored").code, 0, "the sound one is restored there");
}

fn change_a_byte(file: &Path) {
    let middle = fs::metadata(file).unwrap().len() / 2;
    let byte = fs::read(file).unwrap()[middle as usize];
    let mut file = OpenOptions::new().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(middle)).unwrap();
    file.write_all(&[byte ^ 1]).unwrap();
}

/// A copy that shares nothing with the original.
fn copy_folder(from: &Path, to: &Path) {
    for file in files(from) {
        let to = to.join(file.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(&file, &to).unwrap();
    }
}

#[test]
fn what_is_there_is_never_written_over() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..4);
    fill_archive(&folder, 100);
    said(&folder, &["backup", "copy"]);
    fill_stores(&folder.join("data"), 4..6);
    let changed = dump(&folder, "data");
    let refused = restore(&folder, "copy", "data");
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("is there already") && refused.err.contains("--force"), "{}", refused.err);
    assert_eq!(dump(&folder, "data"), changed);

    let server = Server::start(&folder);
    let in_use = say(&folder, &["restore", "copy", "--force"]);
    assert_eq!(in_use.code, 3);
    assert!(in_use.err.contains("stop the server first"), "{}", in_use.err);
    assert_eq!(server.stop().code(), Some(0));

    let forced = say(&folder, &["restore", "copy", "--force"]);
    assert_eq!(forced.code, 0, "{}", forced.err);
    let aside = fs::read_dir(folder.join("data")).unwrap().map(|entry| entry.unwrap().file_name());
    let aside: Vec<_> = aside.filter(|name| name.to_string_lossy().starts_with("before-restore-")).collect();
    assert_eq!(aside.len(), 1);
    assert!(forced.out.contains(aside[0].to_str().unwrap()), "{}", forced.out);
    let old = format!("data/{}", aside[0].to_str().unwrap());
    assert_eq!(dump(&folder, &old), changed, "what was there is whole");
    assert_eq!(dump(&folder, "data").lines().count(), 4);
    // It does not hinder the next one.
    assert_eq!(restore(&folder, "copy", "data").code, 1);
    for role in ["records", "blobs", "archive"] {
        fs::remove_dir_all(folder.join("data").join(role)).unwrap();
    }
    fs::remove_file(folder.join("data/node.key")).ok(); // the server has made it
    assert_eq!(restore(&folder, "copy", "data").code, 0);
}

#[test]
fn a_restore_that_was_cut_off_is_not_served() {
    let (_guard, folder) = folder();
    fill_archive(&folder, 10);
    said(&folder, &["backup", "copy"]);
    fs::create_dir_all(folder.join("restored/restore.partial/archive")).unwrap();
    let restored = folder.join("restored");
    let refused = say(&folder, &["serve", "--data", "restored", "--rest-port", "0"]);
    assert_eq!(refused.code, 3);
    let what = format!("a restore into {} was not finished", restored.display());
    assert!(refused.err.contains(&what), "{}", refused.err);
    fs::create_dir(folder.join("restored/before-restore-x")).unwrap();
    for writing in [
        &["backup", "other", "--data", "restored"][..],
        &["blobs", "sweep", "--data", "restored"],
        &["archive", "prune", "--policy", "time:1", "--data", "restored"],
    ] {
        let refused = say(&folder, writing);
        assert_eq!(refused.code, 3, "{writing:?}: {}", refused.err);
        let aside = restored.join("before-restore-x");
        assert!(refused.err.contains(&format!("before is in {}", aside.display())), "{}", refused.err);
    }
    assert_eq!(restore(&folder, "copy", "restored").code, 0, "the next one does it all");
    assert!(!folder.join("restored/restore.partial").exists());
    let server = Server::start_with(&folder, &["--data", "restored"]);
    assert_eq!(server.payloads(100).len(), 10);
}

#[test]
fn a_missing_role_is_reported() {
    let (_guard, folder) = folder();
    fill_stores(&folder.join("data"), 0..3);
    fill_archive(&folder, 10);
    fs::remove_dir_all(folder.join("data/blobs")).unwrap();
    fs::remove_dir_all(folder.join("data/archive")).unwrap();
    fs::create_dir(folder.join("data/archive")).unwrap();
    let output = say(&folder, &["backup", "copy"]);
    assert_eq!(output.code, 0, "{}", output.err);
    for role in ["blobs", "archive"] {
        let line = format!("not in the backup: {role}: there is nothing in ");
        assert!(output.err.contains(&line), "{}", output.err);
    }
    assert!(!folder.join("data/blobs").exists(), "nothing was made");
    assert_eq!(fs::read_dir(folder.join("data/archive")).unwrap().count(), 0, "nothing was made");
    assert!(said(&folder, &["backup", "check", "copy"]).contains("not in the backup: blobs ("));

    // The folder at the place of the missing role is old.
    fs::create_dir(folder.join("old")).unwrap();
    fs::write(folder.join("old/00000001.log"), "old").unwrap();
    let restoring = ["restore", "copy", "--data", "restored", "--archive", "log:old"];
    let refused = say(&folder, &restoring);
    assert!(refused.err.contains("old is there already"), "{}", refused.err);
    assert!(!folder.join("restored").exists());
    said(&folder, &[&restoring[..], &["--force"]].concat());
    assert!(!folder.join("old").exists(), "it was moved aside");
}

#[test]
fn a_place_outside_of_the_data_folder_is_restored() {
    let (_guard, folder) = folder();
    fill_archive(&folder, 10);
    said(&folder, &["backup", "copy"]);
    let restoring = ["restore", "copy", "--data", "restored", "--archive", "log:big/archive"];
    let mine = folder.join("big/archive.partial/mine");
    fs::create_dir_all(mine.parent().unwrap()).unwrap();
    fs::write(&mine, "mine").unwrap();
    let refused = say(&folder, &restoring);
    assert!(refused.err.contains("archive.partial is in the way"), "{}", refused.err);
    assert_eq!(fs::read(&mine).unwrap(), b"mine");
    fs::remove_file(&mine).unwrap();
    // What an interrupted restore leaves behind.
    fs::write(mine.with_file_name("RESTORE"), "").unwrap();
    fs::write(mine.with_file_name("copy"), "half").unwrap();
    said(&folder, &restoring);
    assert!(!mine.parent().unwrap().exists());
    let compare = ["archive", "compare", "log:data/archive", "log:big/archive", "--bodies"];
    assert_eq!(said(&folder, &compare), "equal: 10 messages in each\n");

    // A place on disk is inspected.
    let disk = say(&folder, &["restore", "copy", "--data", "other", "--archive", "log:/proc"]);
    assert!(disk.code == 1 && disk.err.contains("/proc/1 is there already"), "{}", disk.err);
    let nested =
        say(&folder, &["restore", "copy", "--data", "other", "--archive", "log:other/blobs/archive"]);
    assert!(nested.code == 1 && nested.err.contains("lies in that of the blobs"), "{}", nested.err);
    assert!(nested.err.contains("archive.url"), "it says what to set: {}", nested.err);
    assert!(!folder.join("other").exists());
    // A place within the data folder is recognised as such, however its path begins.
    let inside = format!("log:{}", folder.join("restored/archive").display());
    let restoring = ["restore", "copy", "--data", "restored", "--archive", &inside, "--force"];
    said(&folder, &restoring);
    said(&folder, &restoring);
}

#[test]
fn operators_alone_have_backups_taken() {
    let (_guard, folder) = folder();
    let server = Server::start(&folder);
    let asked = json!({ "folder": folder.join("copy") });
    assert_eq!(server.post(PATH, &asked).status, 404);
    let said = say(&folder, &["backup", "copy", "--rest", &server.url()]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("has no routes for operators there"), "{}", said.err);
    // A server holds the data folder, and nothing says where its door is.
    let held = restante(&folder).args(["backup", "copy"]).env("RESTANTE_REST__PORT", "0").output().unwrap();
    let held = Said::from(held);
    assert_eq!(held.code, 1);
    assert!(held.err.contains("name it with --rest"), "{}", held.err);
    // Its door is at another address.
    let away = restante(&folder).args(["backup", "copy"]).env("RESTANTE_REST__PORT", "1").output().unwrap();
    let away = Said::from(away);
    assert_eq!(away.code, 1);
    assert!(
        away.err.contains("no server is at http://127.0.0.1:1, where")
            && away.err.contains("name it with --rest"),
        "{}",
        away.err
    );
    drop(server);

    fs::write(folder.join("token"), "correct-horse-battery-staple").unwrap();
    let server = Server::start_with(&folder, &["--rest-token-file", "token"]);
    let without = say(&folder, &["backup", "copy", "--rest", &server.url()]);
    assert!(without.code == 1 && without.err.contains("--token-file"), "{}", without.err);
    drop(server);

    let server = Server::start_with(&folder, ADMIN);
    fs::create_dir(folder.join("full")).unwrap();
    fs::write(folder.join("full/mine"), "mine").unwrap();
    for (folder, status, why) in [
        (json!("relative/copy"), 400, "is no absolute path"),
        (json!(folder.join("missing/copy")), 400, "there is no folder"),
        (json!(folder.join("data/archive/copy")), 400, "lies in"),
        (json!(folder.join("full")), 409, "is not empty"),
        (json!(7), 400, "expected"),
    ] {
        let answer = server.post(PATH, &json!({ "folder": folder }));
        assert_eq!((answer.status, answer.body.contains(why)), (status, true), "{}", answer.body);
    }
    // Another server listens at the address that the settings give for this folder's.
    let (_other_guard, other_folder) = crate::support::folder();
    let _held = Server::start(&other_folder);
    let mut command = restante(&other_folder);
    command.args(["backup", "copy"]).env("RESTANTE_REST__PORT", server.address().port().to_string());
    let other = Said::from(command.output().unwrap());
    assert_eq!(other.code, 1);
    assert!(other.err.contains("this server keeps what is in"), "{}", other.err);
    let mut command = restante(&folder);
    command.args(["backup", "first"]).env("RESTANTE_REST__PORT", server.address().port().to_string());
    assert_eq!(Said::from(command.output().unwrap()).code, 0, "the server of the settings is asked");

    let answer = server.post(PATH, &asked);
    let last: Value = serde_json::from_str(answer.body.lines().last().unwrap()).unwrap();
    assert_eq!((answer.status, &last["event"], &last["messages"]), (200, &json!("done"), &json!(0)));
    assert!(folder.join("copy/backup.json").is_file());
}

/// The routes that the binary adds are documented with those of the door.
#[test]
fn every_route_of_the_server_is_documented() {
    let (_guard, folder) = folder();
    let server = Server::start_with(&folder, &[ADMIN, &["--jmap-listen", "127.0.0.1:0"]].concat());
    let document: Value = serde_json::from_str(&server.get("/openapi.json").body).unwrap();
    let mut documented = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        documented
            .extend(item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())));
    }
    let listed = server.get("/").body;
    let lines = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (method, path) = (words.next()?, words.next()?);
        path.starts_with('/').then(|| (method.to_owned(), path.to_owned()))
    });
    assert_eq!(lines.collect::<BTreeSet<_>>(), documented);
}
