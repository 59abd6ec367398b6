//! A server whose disk is full: it goes on serving what it has, starts again however it was stopped, loses nothing that was
//! acknowledged, and accepts messages as soon as there is space.
//!
//! Each test mounts small disks (tmpfs) in a mount namespace of its own. Where none can be created, the tests are reported
//! as ignored. `RESTANTE_FULL_DISK_LEVELS` sets how many random fill levels each test tries (4).
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

#[path = "e2e/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File},
    hash::{BuildHasher, RandomState},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use libtest_mimic::{Arguments, Trial};
use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    io::Errno,
};
use serde_json::Value;
use support::{Server, message, now, publish_path, request, restante, say, wait_until};
use tempfile::TempDir;

/// Set in the process that runs inside the mount namespace.
const IN_NAMESPACE: &str = "RESTANTE_TEST_IN_MOUNT_NAMESPACE";
/// How many fill levels each test tries.
const LEVELS: &str = "RESTANTE_FULL_DISK_LEVELS";
const LEVELS_DEFAULT: u64 = 4;
/// Kinds of tests, separated by commas, that must not be ignored.
const REQUIRE: &str = "RESTANTE_TEST_REQUIRE";
const DISK_BYTES: u64 = 20 << 20;
/// The most that a server may write before its disk is full.
const LEVEL_BYTES_MAX: u64 = 4 << 20;
const PAGE_BYTES: u64 = 4096;
/// How much space a first start finds: from none to enough for all stores.
const FIRST_STEPS: u64 = 48;
const FIRST_STEP_BYTES: u64 = 20 << 10;
/// Messages that are refused one after the other before the disk counts as full.
const REFUSED_MIN: usize = 5;

fn main() {
    let arguments = Arguments::from_args();
    let is_inside = env::var_os(IN_NAMESPACE).is_some();
    if !is_inside
        && !arguments.list
        && let Some(mut inside) = namespace()
    {
        let program = env::current_exe().unwrap();
        let status = inside.arg(program).args(env::args_os().skip(1)).env(IN_NAMESPACE, "1").status();
        std::process::exit(status.unwrap().code().unwrap_or(1));
    }
    let is_required =
        env::var(REQUIRE).is_ok_and(|names| names.split(',').any(|name| name.trim() == "full-disk"));
    let mut trials = Vec::new();
    for engine in [Engine::Log, Engine::Sqlite, Engine::Spool, Engine::All] {
        for stop in [Stop::Term, Stop::Kill] {
            let name = format!("{engine:?}_survives_a_full_disk_and_{stop:?}").to_lowercase();
            trials.push(Trial::test(name, move || in_namespace(|| levels(engine, stop))));
        }
    }
    for engine in [Engine::Log, Engine::Sqlite] {
        let name = format!("{engine:?}_prunes_on_a_full_disk").to_lowercase();
        trials.push(Trial::test(name, move || in_namespace(|| prune_gives_room(engine))));
        let name = format!("{engine:?}_retention_works_on_a_full_disk").to_lowercase();
        trials.push(Trial::test(name, move || in_namespace(|| retention_gives_room(engine))));
        let name = format!("{engine:?}_exports_from_a_full_disk").to_lowercase();
        trials.push(Trial::test(name, move || in_namespace(|| export_works(engine))));
    }
    let name = "records_and_blobs_say_that_their_disk_is_full";
    trials.push(Trial::test(name, || in_namespace(records_and_blobs_are_full)));
    for engine in [Engine::Log, Engine::Sqlite, Engine::Spool, Engine::All] {
        let name = format!("{engine:?}_says_what_to_do_when_its_first_disk_is_full").to_lowercase();
        trials.push(Trial::test(name, move || in_namespace(|| first_starts(engine))));
    }
    trials.push(Trial::test("a_full_disk_is_logged_rarely", || in_namespace(log_stays_short)));
    let is_ignored = !is_inside && !is_required;
    let trials = trials.into_iter().map(|trial| trial.with_kind("full disk").with_ignored_flag(is_ignored));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// The command that runs another in a mount namespace, if this process may make one.
fn namespace() -> Option<Command> {
    let as_root = vec!["--mount"];
    let as_user = vec!["--user", "--map-root-user", "--mount"];
    for flags in [as_root, as_user] {
        let mut probe = Command::new("unshare");
        probe.args(&flags).args(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(env::temp_dir());
        let probed = probe.stdin(Stdio::null()).stderr(Stdio::null()).status();
        if probed.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.args(&flags);
            return Some(command);
        }
    }
    None
}

fn in_namespace(test: impl Fn()) -> Result<(), libtest_mimic::Failed> {
    if env::var_os(IN_NAMESPACE).is_none() {
        return Err("no mount namespace can be made here".into());
    }
    test();
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Log,
    Sqlite,
    /// The spool of an engine that is out of reach.
    Spool,
    /// The default stores of a server: the log, with records and blobs on the same disk.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Term,
    Kill,
}

/// A small disk of its own, with a file that fills it.
struct Disk {
    place: TempDir,
}

impl Disk {
    fn mount() -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={DISK_BYTES}"), "tmpfs"]).arg(place.path());
        assert!(mount.status().unwrap().success(), "can't mount a disk");
        Self { place }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn free_bytes(&self) -> u64 {
        let disk = statvfs(self.path()).unwrap();
        disk.f_bavail * disk.f_bsize
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the disk until `left` bytes are free.
    fn fill(&self, left: u64) {
        let file = File::options().create(true).truncate(false).write(true).open(self.filler()).unwrap();
        loop {
            let excess = self.free_bytes().saturating_sub(left) / PAGE_BYTES * PAGE_BYTES;
            if excess == 0 {
                return;
            }
            let end = file.metadata().unwrap().len();
            match fallocate(&file, FallocateFlags::empty(), end, excess) {
                Ok(()) | Err(Errno::NOSPC) => {} // a server has used some of it meanwhile
                Err(error) => panic!("can't fill the disk: {error}"),
            }
        }
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_file(log_of(self));
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status(); // the namespace ends soon anyway
    }
}

/// Small numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

impl Engine {
    /// The server's command line, with all its data on the disk.
    fn serve(self, disk: &Disk) -> Command {
        let mut command = restante(disk.path());
        command.args(["serve", "--rest-port", "0", "--tcp-port", "0"]);
        if self != Self::All {
            command.args(["--records", "memory:", "--blobs", "memory:"]);
        }
        command.args(self.place(disk));
        command.env("RESTANTE_LOG__LEVEL", "warn");
        command.stderr(File::options().create(true).append(true).open(log_of(disk)).unwrap());
        command
    }

    fn place(self, disk: &Disk) -> Vec<String> {
        let data = disk.path().join("data");
        let url = match self {
            Self::Log | Self::All => format!("log:{}", data.join("archive").display()),
            Self::Sqlite => format!("sqlite:{}", data.join("archive.db").display()),
            Self::Spool => "postgres://me@127.0.0.1:1/nowhere".to_owned(),
        };
        vec!["--data".into(), data.display().to_string(), "--archive".into(), url]
    }

    fn start(self, disk: &Disk) -> Server {
        Server::try_spawn(self.serve(disk)).unwrap_or_else(|said| panic!("{said}: {}", log(disk)))
    }
}

/// The server's log, which is not on the disk.
fn log_of(disk: &Disk) -> PathBuf {
    disk.path().with_extension("log")
}

/// What was acknowledged, and the numbers of further messages.
struct Published {
    random: Random,
    next: usize,
    acknowledged: BTreeSet<String>,
}

impl Published {
    fn new(seed: u64) -> Self {
        Self { random: Random(seed), next: 0, acknowledged: BTreeSet::new() }
    }

    /// Publishes a message of a random size and returns the status.
    fn publish(&mut self, server: &Server, bytes_max: u64) -> u16 {
        let filling = "x".repeat(self.random.below(bytes_max) as usize);
        let payload = format!("message {} {filling}", self.next);
        self.next += 1;
        let body = message(&payload, now()).to_string();
        let answer = request(server.address(), "POST", &publish_path(), &body).expect("the server answers");
        assert!(matches!(answer.status, 200 | 503), "{}: {}", answer.status, answer.body);
        if answer.status == 200 {
            self.acknowledged.insert(payload);
        }
        answer.status
    }

    /// Publishes until the disk accepts no more, not even a small message.
    fn publish_until_full(&mut self, server: &Server) {
        for bytes_max in [60_000, 2_000, 10] {
            let mut refused = 0;
            while refused < REFUSED_MIN {
                refused += usize::from(self.publish(server, bytes_max) == 503);
            }
        }
    }

    /// Publishes until a message is accepted again.
    fn publish_until_taken(&mut self, server: &Server) {
        let publish = std::cell::RefCell::new(self);
        wait_until("messages are taken again", || publish.borrow_mut().publish(server, 10) == 200);
    }

    fn check_served(&self, server: &Server) {
        let served: BTreeSet<String> = server.payloads(100).into_iter().collect();
        let lost = self.acknowledged.difference(&served).count();
        assert_eq!(lost, 0, "{lost} of {} acknowledged messages are not served", self.acknowledged.len());
    }
}

/// The status of `GET /health`, and its text about the archive.
fn store_health(server: &Server) -> (u16, String) {
    health(server, "Store")
}

/// The status of `GET /health`, and its text about one part.
fn health(server: &Server, part: &str) -> (u16, String) {
    let answer = server.get("/health");
    let health: Value = serde_json::from_str(&answer.body).unwrap();
    let protocols = health["protocolsHealth"].as_array().unwrap();
    let entry = protocols.iter().find(|entry| entry.get(part).is_some()).unwrap();
    (answer.status, entry.get("desc").and_then(Value::as_str).unwrap_or_default().to_owned())
}

fn levels(engine: Engine, stop: Stop) {
    let levels = env::var(LEVELS).map_or(LEVELS_DEFAULT, |text| text.parse().unwrap());
    for _ in 0..levels {
        let seed = RandomState::new().hash_one(0);
        println!("{engine:?} {stop:?} seed {seed}");
        level(engine, stop, seed);
    }
}

fn level(engine: Engine, stop: Stop, seed: u64) {
    let disk = Disk::mount();
    let mut published = Published::new(seed);
    let server = engine.start(&disk);
    published.publish(&server, 10);
    let left = published.random.below(LEVEL_BYTES_MAX);
    disk.fill(left);
    published.publish_until_full(&server);
    disk.fill(0);
    check_full(engine, &server, &published);
    match stop {
        Stop::Term => assert!(server.stop().success(), "seed {seed}: {}", log(&disk)),
        Stop::Kill => server.kill(),
    }

    disk.fill(0);
    fs::remove_file(log_of(&disk)).unwrap();
    let server = engine.start(&disk);
    // Starting may free some space, such as that of SQLite's log after a kill.
    if engine != Engine::Spool && disk.free_bytes() == 0 {
        assert!(store_health(&server).1.contains("the disk is full"), "before anybody publishes");
        assert!(log(&disk).contains("free some space"), "{}", log(&disk));
    }
    disk.fill(0);
    published.publish_until_full(&server);
    check_full(engine, &server, &published);
    disk.empty();
    published.publish_until_taken(&server);
    wait_until("the archive is well again", || engine == Engine::Spool || store_health(&server).0 == 200);
    if engine != Engine::Spool {
        published.check_served(&server);
        return;
    }
    assert!(server.stop().success());
    check_drained(&disk, &published);
}

/// What holds while no byte is free.
fn check_full(engine: Engine, server: &Server, published: &Published) {
    let (status, desc) = store_health(server);
    assert_eq!(status, 503);
    assert!(desc.contains("full"), "{desc}");
    assert_eq!(server.get("/version").status, 200);
    if engine != Engine::Spool {
        assert!(desc.contains("the disk is full") && desc.contains("free"), "{desc}");
        published.check_served(server);
        assert_eq!(server.get("/archive/v1/export").status, 200);
        assert_eq!(server.metric("restante_archive_disk_full"), Some(1.0));
    }
}

/// What waits in the spool of a full disk is stored in an engine elsewhere.
fn check_drained(disk: &Disk, published: &Published) {
    disk.fill(0);
    let elsewhere = tempfile::tempdir().unwrap();
    let data = disk.path().join("data");
    let mut command = restante(disk.path());
    command.args([
        "serve",
        "--rest-port",
        "0",
        "--tcp-port",
        "0",
        "--records",
        "memory:",
        "--blobs",
        "memory:",
    ]);
    command.arg("--data").arg(&data).arg("--archive").arg(format!("log:{}", elsewhere.path().display()));
    command.env("RESTANTE_LOG__LEVEL", "warn");
    let server = Server::spawn(command);
    let waiting = || server.metric("restante_archive_spool_messages");
    wait_until("the spool is drained", || waiting() == Some(0.0));
    published.check_served(&server);
    wait_until("draining frees room", || disk.free_bytes() > 0);
}

fn log(disk: &Disk) -> String {
    fs::read_to_string(log_of(disk)).unwrap_or_default()
}

/// A disk whose space an archive has used up, and a server that is stopped.
fn filled(engine: Engine, seed: u64) -> (Disk, Published) {
    println!("{engine:?} seed {seed}");
    let disk = Disk::mount();
    let mut published = Published::new(seed);
    let server = engine.start(&disk);
    disk.fill(8 << 20);
    published.publish_until_full(&server);
    disk.fill(0);
    assert!(server.stop().success(), "{}", log(&disk));
    disk.fill(0);
    (disk, published)
}

fn prune_gives_room(engine: Engine) {
    let (disk, mut published) = filled(engine, RandomState::new().hash_one(0));
    let place = engine.place(&disk);
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let said = say(disk.path(), &[&["archive", "prune", "--policy", "capacity:20"], &place[..]].concat());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("removed "), "{}", said.out);
    assert!(disk.free_bytes() > 4 << 20, "{} bytes are free: {}", disk.free_bytes(), said.out);
    let server = engine.start(&disk);
    published.publish_until_taken(&server);
    // Retention removes the oldest messages: the newest are there.
    let newest =
        published.acknowledged.iter().filter(|payload| server.payloads(100).contains(payload)).count();
    assert!(newest >= 20, "{newest} messages are left");
}

fn retention_gives_room(engine: Engine) {
    let (disk, mut published) = filled(engine, RandomState::new().hash_one(0));
    let mut command = engine.serve(&disk);
    command.args(["--retention", "capacity:20"]);
    let server = Server::spawn(command);
    published.publish_until_taken(&server);
    wait_until("the archive is well again", || store_health(&server).0 == 200);
}

fn export_works(engine: Engine) {
    let (disk, published) = filled(engine, RandomState::new().hash_one(0));
    let place = engine.place(&disk);
    let place: Vec<&str> = place.iter().map(String::as_str).collect();
    let said = say(disk.path(), &[&["archive", "export"], &place[..]].concat());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.lines().count() >= published.acknowledged.len(), "{}", said.out.lines().count());
}

fn records_and_blobs_are_full() {
    let disk = Disk::mount();
    let mut published = Published::new(1);
    let server = Engine::All.start(&disk);
    let said = |part| health(&server, part).1;
    assert_eq!(["Records", "Blobs"].map(said), ["", ""]);
    disk.fill(0);
    published.publish_until_full(&server);
    for part in ["Records", "Blobs"] {
        assert!(said(part).contains("the disk is full"), "{part}: {}", said(part));
    }
    disk.empty();
    published.publish_until_taken(&server);
    assert_eq!(["Records", "Blobs"].map(said), ["", ""]);
    disk.fill(0);
    assert!(server.stop().success(), "{}", log(&disk));
}

/// A server that never ran before starts on a disk with little space, or reports what to do, and starts when there is space.
fn first_starts(engine: Engine) {
    for level in 0..FIRST_STEPS {
        let left = level * FIRST_STEP_BYTES;
        let disk = Disk::mount();
        disk.fill(left);
        let mut server = engine.serve(&disk).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            let code = server.wait().unwrap().code();
            let log = log(&disk);
            assert!(code == Some(1) && log.contains("free some"), "{left} bytes: {code:?}: {log}");
        } else {
            server.kill().unwrap();
            server.wait().unwrap();
        }
        disk.empty();
        let mut published = Published::new(level);
        let server = engine.start(&disk);
        assert_eq!(published.publish(&server, 10), 200, "{left} bytes: {}", log(&disk));
    }
}

/// The operator of a full disk must not find its log full as well.
fn log_stays_short() {
    for engine in [Engine::Log, Engine::Sqlite] {
        let disk = Disk::mount();
        let mut published = Published::new(1);
        let server = engine.start(&disk);
        disk.fill(1 << 20);
        published.publish_until_full(&server);
        disk.fill(0);
        let begun = std::time::Instant::now();
        let lines = log(&disk).lines().count();
        for _ in 0..300 {
            published.publish(&server, 60_000);
        }
        let lines = log(&disk).lines().count() - lines;
        // Not a measurement: a slow machine logs for more seconds.
        let text = log(&disk);
        let first: Vec<&str> = text.lines().take(20).collect();
        assert!(lines as u64 <= 1 + begun.elapsed().as_secs(), "{lines} lines: {first:#?}");
    }
}
