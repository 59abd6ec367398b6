//! A real file system of limited size, and stores that are stopped and started on it while it is full.

use std::{
    collections::BTreeSet,
    env,
    fs::{self, File, OpenOptions},
    io::{BufRead, BufReader, Lines, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Trial};
use restante_core::ErrorKind;

use super::run_or_ignore;

/// Set for a process that runs a test inside the namespace: the mounted folder.
const DISK: &str = "RESTANTE_SMALL_DISK";
/// Set for a process that writes to a store until it is stopped: the folder of the store.
const WORK: &str = "RESTANTE_SMALL_DISK_WORK";
/// How many fill levels are tried, if not the default.
const LEVELS: &str = "RESTANTE_TEST_LEVELS";
const LEVELS_DEFAULT: u64 = 12;
/// The size of the file system.
const DISK_MIB: u64 = 24;
/// How long a store may take to accept writes again.
const COMES_BACK_WITHIN: Duration = Duration::from_secs(60);

/// A store that is tested on a full disk. Item `n` is the same in every process.
pub trait Store: Sized {
    /// Opens the store, and creates it when it does not exist.
    ///
    /// # Errors
    /// The text of the error.
    fn open(folder: &Path) -> Result<Self, String>;
    /// Stores item `n` durably.
    ///
    /// # Errors
    /// The kind and text of the error.
    fn put(&self, n: u64) -> Result<(), (ErrorKind, String)>;
    /// The numbers of all items that can be read as they were put.
    fn all(&self) -> BTreeSet<u64>;
    /// Removes what is no longer needed, for example a part of the items; returns the numbers of those that may be gone.
    ///
    /// # Errors
    /// The kind and text of the error.
    fn clean_up(&self) -> Result<Vec<u64>, (ErrorKind, String)>;
    /// Whether the store reports that it is healthy.
    fn is_healthy(&self) -> bool;
    /// Closes the store, like a server that is stopped.
    ///
    /// # Errors
    /// The text of the error.
    fn close(self) -> Result<(), String>;
}

/// The rest of `main` of a test binary without the standard harness, after [`run_if_child`]: one test that stops a store on a
/// full disk and starts it again. It is reported as ignored where no tmpfs can be mounted, and as failed there when
/// `RESTANTE_TEST_REQUIRE` names `tmpfs`.
pub fn run_test(name: &str) {
    let trial = Trial::ignorable_test(name, || run_or_ignore("tmpfs", stops_and_starts()?, || {}));
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}

/// Runs the test in a separate process; `Ok` with the reason when that is not possible here.
fn stops_and_starts() -> Result<Option<String>, String> {
    let mount = |command: &mut Command| {
        command.args(["--map-root-user", "--mount", "sh", "-c"]);
        command.arg(format!("mount -t tmpfs -o size={DISK_MIB}m tmpfs \"$0\" && exec \"$@\""));
    };
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut probe = Command::new("unshare");
    mount(&mut probe);
    let probed = probe.arg(place.path()).arg("true").output();
    if !probed.is_ok_and(|output| output.status.success()) {
        return Ok(Some("no tmpfs can be mounted here: run as root, or allow user namespaces".to_owned()));
    }
    let mut run = Command::new("unshare");
    mount(&mut run);
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let output = run.arg(place.path()).arg(this).env(DISK, place.path()).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        return Ok(None);
    }
    Err(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

/// If this is a process that the test started, does its work and does not return.
pub fn run_if_child<S: Store>() {
    if let Some(folder) = env::var_os(WORK) {
        work::<S>(Path::new(&folder));
        std::process::exit(0);
    }
    if let Some(disk) = env::var_os(DISK) {
        let levels = env::var(LEVELS).ok().and_then(|levels| levels.parse().ok()).unwrap_or(LEVELS_DEFAULT);
        run_levels::<S>(&SmallDisk { path: disk.into() }, levels);
        std::process::exit(0);
    }
}

/// Puts items until standard input ends, and prints `ack <n>` for each that was stored and `full` for each that was refused.
fn work<S: Store>(folder: &Path) {
    let store = S::open(folder).unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stops = is_stopped.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stops.store(true, Ordering::SeqCst);
    });
    let mut n = 0;
    while !is_stopped.load(Ordering::SeqCst) {
        match store.put(n) {
            Ok(()) => println!("ack {n}"),
            Err((ErrorKind::Full, _)) => println!("full"),
            Err((kind, error)) => panic!("item {n} was refused with {kind:?}: {error}"),
        }
        n += 1;
    }
    store.close().unwrap_or_else(|error| panic!("the store does not close: {error}"));
}

/// A process that puts items.
struct Worker {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(folder: &Path) -> Self {
        let this = env::current_exe().unwrap_or_else(|error| panic!("{error}"));
        let mut command = Command::new(this);
        command.env(WORK, folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{error}"));
        let Some(output) = process.stdout.take() else { panic!("the worker has no output") };
        Self { process, lines: BufReader::new(output).lines() }
    }

    fn next(&mut self) -> Option<String> {
        self.lines.next()?.ok()
    }

    /// Stops the process with SIGKILL, or by the end of its input; returns what it had printed.
    fn stop(mut self, kill: bool) -> Vec<String> {
        if kill {
            self.process.kill().unwrap_or_else(|error| panic!("{error}"));
        } else {
            drop(self.process.stdin.take());
        }
        let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        let status = self.process.wait().unwrap_or_else(|error| panic!("{error}"));
        assert!(kill || status.success(), "a clean stop on a full disk ended with {status}");
        rest
    }
}

struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Fills the disk until `free_bytes` are left, or fewer in whole pages.
    fn fill(&self, free_bytes: u64) {
        let opened = OpenOptions::new().append(true).create(true).open(self.filler());
        let mut filler: File = opened.unwrap_or_else(|error| panic!("{error}"));
        while filler.write_all(&[0; 4_096]).is_ok() {}
        let len = filler.metadata().map_or(0, |metadata| metadata.len());
        let cut = filler.set_len(len.saturating_sub(free_bytes));
        cut.unwrap_or_else(|error| panic!("{error}"));
    }

    fn clear(&self) {
        let _ = fs::remove_file(self.filler());
    }

    fn free_bytes(&self) -> u64 {
        crate::free_bytes(&self.path).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Random numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// The output of a worker.
#[derive(Default)]
struct Seen {
    acked: Vec<u64>,
    refused: u64,
}

impl Seen {
    fn note(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("ack", n)) => self.acked.extend(n.parse::<u64>()),
            _ if line == "full" => self.refused += 1,
            _ => panic!("the worker printed {line}"),
        }
    }
}

fn run_levels<S: Store>(disk: &SmallDisk, levels: u64) {
    let (mut refused, mut killed, mut cleaned) = (0, 0, 0);
    for level in 0..levels {
        let mut random = Random(level);
        let folder = disk.path.join("store");
        disk.clear();
        let _ = fs::remove_dir_all(&folder);
        let kill = random.below(2) == 0;
        let seen = fill_and_stop(disk, &folder, kill, &mut random);
        disk.fill(0);
        assert_eq!(disk.free_bytes(), 0);
        refused += seen.refused;
        killed += u64::from(kill);
        cleaned += u64::from(start::<S>(disk, &folder, level, seen.acked));
    }
    assert!(refused > 0, "no put met a full disk");
    assert!(levels < 10 || (killed > 0 && killed < levels), "{killed} of {levels} were killed");
    println!(
        "{levels} fill levels, {killed} killed, {refused} puts refused, {cleaned} cleaned up while full"
    );
}

/// Has a worker put items while the disk fills, and stops it at a random moment.
fn fill_and_stop(disk: &SmallDisk, folder: &Path, kill: bool, random: &mut Random) -> Seen {
    let mut seen = Seen::default();
    let mut worker = Worker::start(folder);
    let before = 1 + random.below(700);
    while (seen.acked.len() as u64) < before {
        let Some(line) = worker.next() else { panic!("the worker ended early") };
        seen.note(&line);
    }
    disk.fill(random.below(1 << 20));
    // Either it is stopped after the first refusals, or at any moment.
    let (refusals, lines) = if random.below(2) == 0 { (3, u64::MAX) } else { (u64::MAX, random.below(500)) };
    for _ in 0..lines {
        let Some(line) = worker.next() else { panic!("the worker ended early") };
        seen.note(&line);
        if seen.refused >= refusals {
            break;
        }
    }
    worker.stop(kill).iter().for_each(|line| seen.note(line));
    seen
}

/// Opens the store with no byte free; returns whether it could clean up.
fn start<S: Store>(disk: &SmallDisk, folder: &Path, level: u64, mut there: Vec<u64>) -> bool {
    let open =
        || S::open(folder).unwrap_or_else(|error| panic!("level {level}: the store does not open: {error}"));
    let store = open();
    assert_all(&store, &there, level);
    let next = there.last().map_or(0, |last| last + 1_000_000);
    match store.put(next) {
        Ok(()) => there.push(next), // space that is already allocated is used
        Err((kind, error)) => {
            assert_eq!(kind, ErrorKind::Full, "level {level}: {error}");
            assert!(error.contains("free some space"), "level {level}: {error}");
            assert!(!store.is_healthy(), "level {level}: a store that refuses puts says so");
        }
    }
    let cleaned = store.clean_up();
    let has_cleaned = match cleaned {
        Ok(gone) => {
            there.retain(|n| !gone.contains(n));
            true
        }
        Err((kind, error)) => {
            assert_eq!(kind, ErrorKind::Full, "level {level}: {error}");
            false
        }
    };
    assert_all(&store, &there, level);
    disk.clear();
    let begun = Instant::now();
    loop {
        match store.put(next + 1) {
            Ok(()) => break,
            Err((kind, error)) => {
                assert_eq!(kind, ErrorKind::Full, "level {level}: {error}");
                assert!(begun.elapsed() < COMES_BACK_WITHIN, "level {level}: {error} with space left");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    there.push(next + 1);
    while !store.is_healthy() {
        assert!(begun.elapsed() < COMES_BACK_WITHIN, "level {level}: not healthy with space left");
        thread::sleep(Duration::from_millis(20));
    }
    assert_all(&store, &there, level);
    store.close().unwrap_or_else(|error| panic!("level {level}: {error}"));
    let store = open();
    assert_all(&store, &there, level);
    store.close().unwrap_or_else(|error| panic!("level {level}: {error}"));
    has_cleaned
}

fn assert_all<S: Store>(store: &S, there: &[u64], level: u64) {
    let all = store.all();
    let lost: Vec<u64> = there.iter().copied().filter(|n| !all.contains(n)).collect();
    assert!(
        lost.is_empty(),
        "level {level}: {} of {} acknowledged items are lost: {lost:?}",
        lost.len(),
        there.len()
    );
}
