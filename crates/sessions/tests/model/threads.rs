//! Threads that change one table at the same time: what each of them has opened is found, and no reader sees a part of a change.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_sessions::{Ended, SessionId};
use tokio::runtime::Handle;

use crate::common::{
    OwnedInfo, OwnedValue, Row,
    engines::{Engine, TestTable, run},
    node::Node,
    number, read_all, text,
};

const THREADS: usize = 4;
const ROUNDS: usize = 6;
const STEPS: usize = 700;
/// All threads have sessions of these users.
const USERS: usize = 12;
/// Resources that a thread has for each user, which no other thread has.
const RESOURCES: usize = 4;

/// The keys under which a session remembers what it is made of.
const SERIAL: u16 = 1;
const PADDING: u16 = 2;
const CHECKSUM: u16 = 3;

/// Runs threads with a node; a thread calls it by blocking.
fn in_threads(engine: Engine, work: impl AsyncFn(Arc<Node>, Handle)) {
    run(engine, async |table: Arc<TestTable>| {
        let node = Arc::new(table.node_with_limit(THREADS * RESOURCES).await);
        work(node, Handle::current()).await;
    });
}

/// A number that depends on everything that one change of a session writes.
fn checksum(serial: i64, padding: &str, priority: Option<i8>) -> i64 {
    let priority = priority.map_or(1_000, i64::from);
    serial.wrapping_mul(31) ^ (padding.len() as i64) << 20 ^ priority << 40
}

/// What is found was completely written by one change.
fn check(row: &Row) {
    let (Some(OwnedValue::Number(serial)), Some(OwnedValue::Text(padding)), Some(OwnedValue::Number(sum))) =
        (row.info.get(&SERIAL), row.info.get(&PADDING), row.info.get(&CHECKSUM))
    else {
        panic!("a part is missing: {row:?}");
    };
    assert!(padding.bytes().all(|byte| byte == b'x'), "{row:?}");
    assert_eq!(*sum, checksum(*serial, padding, row.priority), "half a change was seen: {row:?}");
}

/// A thread's own record of one of its sessions.
struct Mine {
    id: SessionId,
    priority: Option<i8>,
    info: OwnedInfo,
}

/// A thread with its sessions.
struct Worker {
    node: Arc<Node>,
    handle: Handle,
    thread: usize,
    random: ChaCha8Rng,
    serial: i64,
    mine: BTreeMap<(usize, usize), Mine>,
    /// Sessions that it has opened and then opened again.
    replaced: Vec<SessionId>,
}

impl Worker {
    fn new(node: Arc<Node>, handle: Handle, thread: usize) -> Self {
        let random = ChaCha8Rng::seed_from_u64(thread as u64);
        Self { node, handle, thread, random, serial: 0, mine: BTreeMap::new(), replaced: Vec::new() }
    }

    fn user(user: usize) -> String {
        format!("user {user}")
    }

    fn resource(&self, resource: usize) -> String {
        format!("{} {resource}", self.thread)
    }

    fn step(&mut self) {
        let at = (self.random.random_range(0..USERS), self.random.random_range(0..RESOURCES));
        match self.random.random_range(0..10) {
            0..3 => self.open(at),
            3..5 => self.close(at),
            5..8 => self.change(at),
            8 => self.look(at.0),
            _ => self.look_around(),
        }
    }

    /// What the next change writes for a priority.
    fn next_info(&mut self, priority: Option<i8>) -> (i64, String, i64) {
        self.serial += 1;
        let len = match self.random.random_range(0..20) {
            0 => self.random.random_range(0..3_000),
            1..5 => self.random.random_range(0..100),
            _ => self.random.random_range(0..10),
        };
        let padding = "x".repeat(len);
        (self.serial, padding.clone(), checksum(self.serial, &padding, priority))
    }

    fn open(&mut self, at: (usize, usize)) {
        let (serial, padding, sum) = self.next_info(None);
        let changes = [number(SERIAL, serial), text(PADDING, &padding), number(CHECKSUM, sum)];
        let (user, resource) = (Self::user(at.0), self.resource(at.1));
        let id = self.handle.block_on(self.node.open_with(&user, &resource, &changes));
        let info = changes.iter().map(|(key, value)| (key.0, value.unwrap().into())).collect();
        let before = self.mine.insert(at, Mine { id, priority: None, info });
        self.replaced.extend(before.map(|mine| mine.id));
    }

    fn close(&mut self, at: (usize, usize)) {
        if let Some(mine) = self.mine.remove(&at) {
            assert!(self.handle.block_on(self.node.close(mine.id, Ended::Left)), "{} is open", mine.id);
            assert!(!self.handle.block_on(self.node.close(mine.id, Ended::Left)), "{} is closed", mine.id);
        }
    }

    fn change(&mut self, at: (usize, usize)) {
        let priority = self.random.random_bool(0.5).then(|| self.random.random());
        let (serial, padding, sum) = self.next_info(priority);
        let changes = [number(SERIAL, serial), text(PADDING, &padding), number(CHECKSUM, sum)];
        let Some(mine) = self.mine.get_mut(&at) else { return };
        assert!(self.handle.block_on(self.node.presence(mine.id, priority, &changes)), "{} is open", mine.id);
        mine.priority = priority;
        mine.info = changes.iter().map(|(key, value)| (key.0, value.unwrap().into())).collect();
    }

    /// A user's sessions are complete, and among them are all that this thread has opened.
    fn look(&mut self, user: usize) {
        let rows = self.handle.block_on(self.node.user(&Self::user(user)));
        rows.iter().for_each(check);
        let prefix = format!("{} ", self.thread);
        let found = rows.into_iter().filter(|row| row.resource.starts_with(&prefix));
        let found: BTreeMap<String, Row> = found.map(|row| (row.resource.clone(), row)).collect();
        for resource in 0..RESOURCES {
            let name = self.resource(resource);
            let mine = self.mine.get(&(user, resource));
            let row = found.get(&name);
            assert_eq!(row.map(|row| row.id), mine.map(|mine| mine.id), "{user} {name}");
            if let (Some(row), Some(mine)) = (row, mine) {
                assert_eq!((row.priority, &row.info), (mine.priority, &mine.info), "{user} {name}");
                let by_id = self.handle.block_on(self.node.id(mine.id));
                assert_eq!(by_id.as_ref(), Some(row));
            }
        }
    }

    /// Everything that is returned is complete, and this thread's sessions are among it.
    fn look_around(&mut self) {
        let all = self.handle.block_on(read_all(self.node.sessions.all()));
        let given: Vec<&Row> = all.iter().flat_map(|(_, rows)| rows).collect();
        given.iter().for_each(|row| check(row));
        for ((user, resource), mine) in &self.mine {
            let mut of_mine = given.iter().filter(|row| row.id == mine.id);
            let row = of_mine.next().expect("it is open all the time");
            assert_eq!((&row.user, &row.resource), (&Self::user(*user), &self.resource(*resource)));
            assert_eq!((row.priority, &row.info), (mine.priority, &mine.info));
            assert_eq!(of_mine.next(), None, "it is given once");
        }
    }
}

/// Between rounds all threads have ended, and the table is what their records say together.
pub(crate) fn keeps_what_each_thread_has_opened(engine: Engine) {
    in_threads(engine, async |node, handle| {
        let worker = |thread| Worker::new(node.clone(), handle.clone(), thread);
        let mut workers: Vec<Worker> = (0..THREADS).map(worker).collect();
        for _ in 0..ROUNDS {
            thread::scope(|scope| {
                for worker in &mut workers {
                    scope.spawn(|| (0..STEPS).for_each(|_| worker.step()));
                }
            });
            // In a thread again: one that drives the runtime may not block.
            thread::scope(|scope| {
                for worker in &mut workers {
                    scope.spawn(|| (0..USERS).for_each(|user| worker.look(user)));
                }
            });
            let open: usize = workers.iter().map(|worker| worker.mine.len()).sum();
            let all = node.all().await;
            assert_eq!(all.values().map(Vec::len).sum::<usize>(), open);
            assert_eq!(node.totals().await, (open as u64, all.len() as u64));
        }
        let mut replaced: Vec<_> = workers.into_iter().flat_map(|worker| worker.replaced).collect();
        replaced.sort();
        let replaced: Vec<_> = replaced.into_iter().map(|id| (id, Ended::Replaced)).collect();
        assert!(
            node.ended_sessions().await == replaced,
            "the owner was notified of each replaced session and of no other"
        );
    });
}

/// Threads open and close sessions of thousands of users, so that the table grows, shrinks and moves its records. Readers
/// look up others that stay all the time, and always find them.
pub(crate) fn always_finds_sessions_that_stay(engine: Engine) {
    const STAY: usize = 300;
    const COME_AND_GO: usize = 2_500;
    in_threads(engine, async |node, handle| {
        let mut staying = Vec::new();
        for n in 0..STAY {
            let user = format!("stays {n}");
            node.open_with(&user, "phone", &[text(1, &"x".repeat(n % 120))]).await;
            staying.push(node.user(&user).await);
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (node, handle, staying, stop) = (&node, &handle, &staying, &stop);
            let readers =
                [0, 1].map(|_| scope.spawn(move || look_up_repeatedly(node, handle, staying, stop)));
            let come_and_go = |thread: usize| {
                for round in 0..4 {
                    let user = |n: usize| format!("{thread} passes {n}");
                    let open = |n: usize| handle.block_on(node.open(&user(n), "phone"));
                    let ids: Vec<_> = (0..COME_AND_GO >> round).map(open).collect();
                    let close = |id: &SessionId| assert!(handle.block_on(node.close(*id, Ended::Left)));
                    ids.iter().for_each(close);
                }
            };
            let writers = [0, 1].map(|thread| scope.spawn(move || come_and_go(thread)));
            let written = writers.map(thread::ScopedJoinHandle::join);
            stop.store(true, Ordering::SeqCst);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            written.into_iter().for_each(Result::unwrap);
        });
        assert_eq!(node.totals().await, (STAY as u64, STAY as u64));
    });
}

fn look_up_repeatedly(node: &Node, handle: &Handle, staying: &[Vec<Row>], stop: &AtomicBool) {
    while !stop.load(Ordering::SeqCst) {
        for rows in staying {
            let row = &rows[0];
            assert_eq!(&handle.block_on(node.user(&row.user)), rows);
            assert_eq!(handle.block_on(node.id(row.id)).as_ref(), Some(row));
        }
    }
}

/// Threads add to numbers of the same sessions: each has a key of its own, and each of its merges is seen by itself at once
/// and by all in the end, while readers never see a number go back.
pub(crate) fn keeps_sums_that_threads_change(engine: Engine) {
    const STEPS: i64 = 3_000;
    in_threads(engine, async |node, handle| {
        let mut ids = Vec::new();
        for resource in ["a", "b", "c"] {
            ids.push(node.open("ann", resource).await);
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (node, handle, ids, stop) = (&node, &handle, &ids, &stop);
            let reader = scope.spawn(move || read_sums(node, handle, stop));
            let add = |key: u16| {
                for step in 1..=STEPS {
                    let id = ids[(step as usize + usize::from(key)) % ids.len()];
                    assert!(handle.block_on(node.merge(id, &[number(key, step)])));
                    let info = handle.block_on(node.id(id)).expect("it stays open").info;
                    assert_eq!(info.get(&key), Some(&OwnedValue::Number(step)), "its own merge is seen");
                }
            };
            let adders = [0, 1, 2].map(|key| scope.spawn(move || add(key)));
            let added = adders.map(thread::ScopedJoinHandle::join);
            stop.store(true, Ordering::SeqCst);
            reader.join().unwrap();
            added.into_iter().for_each(Result::unwrap);
        });
        for row in node.user("ann").await {
            assert_eq!(row.info.len(), 3);
            assert!(row.info.values().all(|value| matches!(value, OwnedValue::Number(n) if *n > STEPS - 3)));
        }
    });
}

fn read_sums(node: &Node, handle: &Handle, stop: &AtomicBool) {
    let mut last: BTreeMap<(SessionId, u16), i64> = BTreeMap::new();
    while !stop.load(Ordering::SeqCst) {
        let rows = handle.block_on(node.user("ann"));
        assert_eq!(rows.len(), 3);
        for row in rows {
            for (key, value) in row.info {
                let OwnedValue::Number(number) = value else { panic!("all are numbers") };
                let before = last.insert((row.id, key), number);
                assert!(before <= Some(number), "{number} is older than {before:?}");
            }
        }
    }
}
