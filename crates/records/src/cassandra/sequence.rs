//! Positions in the feed and numbers of bodies.
//!
//! A commit takes its position before it is applied. The same batch writes the row in the feed for that position: the counter and
//! the rows of the feed are one partition, and change together or not at all. So positions are dense and rise, and a reader sees
//! every position that was taken. The head of the account shows whether the commit was applied. One task per server takes
//! positions for all pending commits.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use restante_lmdb::key::{Pack, take_number};
use scylla::value::CqlValue;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    Shared,
    connect::{Answer, BACK_OFF_MIN, Bound, bigint, blob, bytes, jittered, text},
    schema::{
        HEAD_SLOT, RESTORE_BITS, SEGMENT_SLOTS, account_number, first_segment, position_of, restores_of,
        slot_of,
    },
};
use crate::{AccountId, Error, Position};

/// The most requests that wait; further ones wait for room.
const WAITING_MAX: usize = 1_024;
/// The most positions that one statement takes.
const GROUP: usize = 256;
/// How long a server lets another one go first after it has met it.
const YIELD: Duration = Duration::from_millis(6);

const READ: &str = "SELECT value FROM feed WHERE store = ? AND segment = ? AND slot = ?";
const BEGIN: &str = "INSERT INTO feed (store, segment, slot, value) VALUES (?, ?, ?, ?) IF NOT EXISTS";
const COUNT: &str = "UPDATE feed SET value = ? WHERE store = ? AND segment = ? AND slot = ? IF value = ?";
const TAKE: &str = "INSERT INTO feed (store, segment, slot, account) VALUES (?, ?, ?, ?)";
const WHAT: &str = "take a position in the feed";

/// The numbers that a commit gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) position: Position,
    /// The number of its first body.
    pub(super) first_body: u64,
}

/// A commit that needs a position.
pub(super) struct Request {
    account: AccountId,
    bodies: u64,
    reply: oneshot::Sender<Result<Numbers, Error>>,
}

/// The handle of the task.
#[derive(Clone)]
pub(super) struct Sequence(mpsc::Sender<Request>);

/// The queue of the task.
pub(super) type Requests = mpsc::Receiver<Request>;

pub(super) fn sequence() -> (Sequence, Requests) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Sequence(sender), receiver)
}

impl Sequence {
    /// Takes a position, and numbers for `bodies` bodies, for a commit.
    pub(super) async fn take(&self, account: AccountId, bodies: usize) -> Result<Numbers, Error> {
        let (reply, answer) = oneshot::channel();
        let request = Request { account, bodies: bodies as u64, reply };
        self.0.send(request).await.map_err(|_| super::commit::closed())?;
        answer.await.unwrap_or_else(|_| Err(super::commit::closed()))
    }
}

/// How many positions and body numbers a segment of the feed has assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    pub(super) segment: u64,
    /// The next slot.
    pub(super) slot: u64,
    /// The next body.
    body: u64,
    /// The row as it is stored; `None` when the segment has not been begun.
    stored: Option<Vec<u8>>,
}

impl Counter {
    /// The counter of a segment before its first position.
    fn before(segment: u64, body: u64) -> Self {
        let slot = u64::from(segment == 0); // position 0 is before the first commit
        Self { segment, slot, body, stored: None }
    }

    fn decode(segment: u64, value: &[u8]) -> Option<Self> {
        let mut rest = value;
        let slot = take_number(&mut rest).filter(|slot| *slot <= SEGMENT_SLOTS)?;
        let body = take_number(&mut rest)?;
        rest.is_empty().then(|| Self { segment, slot, body, stored: Some(value.to_vec()) })
    }

    /// The statement that advances the counter, and the counter after it.
    fn moved(&self, store: &str, slot: u64, body: u64) -> (Bound, Self) {
        let mut value = Vec::new();
        value.put_number(slot);
        value.put_number(body);
        let place = [text(store), bigint(self.segment), CqlValue::Int(HEAD_SLOT)];
        let statement = match &self.stored {
            None => {
                let mut values = place.to_vec();
                values.push(blob(value.clone()));
                (BEGIN, values)
            }
            Some(stored) => {
                let mut values = vec![blob(value.clone())];
                values.extend(place);
                values.push(blob(stored.clone()));
                (COUNT, values)
            }
        };
        (statement, Self { segment: self.segment, slot, body, stored: Some(value) })
    }

    pub(super) fn is_full(&self) -> bool {
        self.slot >= SEGMENT_SLOTS
    }

    /// The last position that was taken.
    pub(super) fn last(&self) -> Position {
        Position(position_of(self.segment, self.slot as i32).0.saturating_sub(1))
    }

    /// The last body whose number was taken.
    pub(super) fn last_body(&self) -> u64 {
        self.body.saturating_sub(1)
    }
}

impl Shared {
    /// The counter of a segment; `None` when it has not been begun.
    pub(super) async fn counter(&self, segment: u64) -> Result<Option<Counter>, Error> {
        let values = vec![text(self.store()), bigint(segment), CqlValue::Int(HEAD_SLOT)];
        let rows = self.database.read("read the feed", READ, values).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let counter = bytes(row, 0).and_then(|value| Counter::decode(segment, value));
        let damaged = || Error::corrupt(format!("the head of segment {segment} of the feed is damaged"));
        counter.map(Some).ok_or_else(damaged)
    }

    /// The counter of the last segment begun after this many restores. Segments are begun in order, each when the previous one is
    /// full.
    pub(super) async fn last_counter(&self, restores: u64) -> Result<Option<Counter>, Error> {
        let first = first_segment(restores);
        let Some(mut found) = self.counter(first).await? else { return Ok(None) };
        if !found.is_full() {
            return Ok(Some(found));
        }
        let mut step = 1;
        while let Some(next) = self.counter(first + step).await? {
            found = next;
            step *= 2;
        }
        // The last one is between the one that was found and this end.
        let mut end = first + step;
        while found.segment + 1 < end {
            let middle = found.segment + (end - found.segment) / 2;
            match self.counter(middle).await? {
                Some(next) => found = next,
                None => end = middle,
            }
        }
        Ok(Some(found))
    }

    /// The counter from which the next positions are taken.
    async fn next_counter(&self) -> Result<Counter, Error> {
        self.next_counter_after(self.restores()).await
    }

    /// The counter from which positions were taken, or would have been, after this many restores.
    async fn next_counter_after(&self, restores: u64) -> Result<Counter, Error> {
        let first_body = (restores << RESTORE_BITS).max(1);
        let found = self.last_counter(restores).await?;
        Ok(found.unwrap_or_else(|| Counter::before(first_segment(restores), first_body)))
    }

    /// Takes numbers for copied bodies, and no position; returns the first one. Even in a store that was restored, these are
    /// numbers of the time before the first restore: they stay below those that commits take.
    pub(super) async fn take_bodies(&self, count: u64) -> Result<u64, Error> {
        let deadline = self.database.deadline();
        loop {
            let counter = self.next_counter_after(0).await?;
            if self.put_counter(&counter, counter.slot, counter.body + count, deadline).await? {
                return Ok(counter.body);
            }
        }
    }

    /// Marks all positions up to `last` as taken, as far as they are not: commits take later ones.
    pub(super) async fn skip_positions(&self, last: Position) -> Result<(), Error> {
        let (end, slot) = slot_of(last);
        let first = self.next_counter_after(restores_of(end)).await?;
        let (mut segment, mut body) = (first.segment, first.body);
        let deadline = self.database.deadline();
        // In order, as commits would begin them.
        while segment <= end {
            let counter = self.counter(segment).await?.unwrap_or_else(|| Counter::before(segment, body));
            let next_slot = if segment == end { slot as u64 + 1 } else { SEGMENT_SLOTS };
            let is_there = counter.slot >= next_slot;
            body = body.max(counter.body);
            if is_there || self.put_counter(&counter, next_slot, body, deadline).await? {
                segment += 1;
            }
        }
        Ok(())
    }

    /// Advances a counter; returns whether that certainly happened. Otherwise the caller reads the counter again and retries.
    async fn put_counter(
        &self,
        counter: &Counter,
        slot: u64,
        body: u64,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let (statement, _) = counter.moved(self.store(), slot, body);
        match self.database.compare(WHAT, &[statement]).await? {
            Answer::Applied => Ok(true),
            Answer::Refused(_) | Answer::Unknown(_) if Instant::now() < deadline => {
                tokio::time::sleep(jittered(BACK_OFF_MIN)).await;
                Ok(false)
            }
            Answer::Refused(_) => Err(busy()),
            Answer::Unknown(error) => Err(error),
        }
    }
}

/// Takes positions until all senders are dropped.
pub(super) async fn run(shared: Arc<Shared>, mut requests: Requests) {
    let mut counter = None;
    while let Some(first) = requests.recv().await {
        let mut group = VecDeque::from([first]);
        while group.len() < GROUP
            && let Ok(next) = requests.try_recv()
        {
            group.push_back(next);
        }
        let deadline = shared.database.deadline();
        while !group.is_empty() {
            if let Err(error) = step(&shared, &mut counter, &mut group, deadline).await {
                for request in group.drain(..) {
                    let _ = request.reply.send(Err(error.duplicate()));
                }
            }
        }
    }
}

/// Takes positions for the first requests of a group, as many as the segment has room for.
async fn step(
    shared: &Shared,
    known: &mut Option<Counter>,
    group: &mut VecDeque<Request>,
    deadline: Instant,
) -> Result<(), Error> {
    let is_of_restore = |counter: &Counter| restores_of(counter.segment) == shared.restores();
    let counter = match known.take().filter(is_of_restore) {
        Some(counter) if counter.is_full() => {
            let next = shared.counter(counter.segment + 1).await?;
            next.unwrap_or_else(|| Counter::before(counter.segment + 1, counter.body))
        }
        Some(counter) => counter,
        None => shared.next_counter().await?,
    };
    if counter.is_full() {
        *known = Some(counter);
        return Ok(());
    }
    let room = (SEGMENT_SLOTS - counter.slot) as usize;
    let (statements, after) = statements(shared.store(), &counter, group.iter().take(room));
    match shared.database.compare(WHAT, &statements).await? {
        Answer::Applied => {
            let mut body = counter.body;
            for slot in counter.slot..after.slot {
                let Some(request) = group.pop_front() else { break };
                let position = position_of(counter.segment, slot as i32);
                let _ = request.reply.send(Ok(Numbers { position, first_body: body }));
                body += request.bodies;
            }
            *known = Some(after);
            Ok(())
        }
        Answer::Refused(columns) => {
            shared.metrics.cassandra_refused.inc();
            *known = match columns.get("value") {
                Some(CqlValue::Blob(value)) => Counter::decode(counter.segment, value),
                _ => None,
            };
            // The loser retries at once, and has more requests to serve in its next attempt. A server that is farther from all
            // nodes than others may lose until its deadline.
            if Instant::now() < deadline { Ok(()) } else { Err(busy()) }
        }
        // If it was executed after all, no commit uses those positions, and the next commit of the account settles them.
        Answer::Unknown(error) if Instant::now() >= deadline => Err(error),
        Answer::Unknown(_) => {
            tokio::time::sleep(jittered(BACK_OFF_MIN)).await;
            Ok(())
        }
    }
}

fn busy() -> Error {
    Error::unavailable("other servers take all positions of the feed: try again later")
}

/// The statements that take the next positions for some requests, and the counter after them.
fn statements<'r>(
    store: &str,
    counter: &Counter,
    requests: impl Iterator<Item = &'r Request>,
) -> (Vec<Bound>, Counter) {
    let (segment, mut slot, mut body) = (bigint(counter.segment), counter.slot, counter.body);
    let mut statements = Vec::new();
    for request in requests {
        let account = CqlValue::BigInt(account_number(request.account));
        let values = vec![text(store), segment.clone(), CqlValue::Int(slot as i32), account];
        statements.push((TAKE, values));
        slot += 1;
        body += request.bodies;
    }
    let (head, after) = counter.moved(store, slot, body);
    statements.insert(0, head);
    (statements, after)
}

/// Lets other servers go first for a moment.
pub(super) async fn give_way() {
    tokio::time::sleep(jittered(YIELD)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_read_back() {
        let requests: Vec<Request> = [3, 0, 2]
            .map(|bodies| Request { account: AccountId(7), bodies, reply: oneshot::channel().0 })
            .into();
        let first = Counter::before(0, 1);
        let (statements, after) = statements("records", &first, requests.iter());
        assert_eq!(statements.len(), 4);
        assert_eq!((after.slot, after.body, after.last()), (4, 6, Position(3)));
        let stored = after.stored.clone().unwrap();
        assert_eq!(Counter::decode(0, &stored), Some(after));
        assert_eq!(Counter::decode(0, b"\x01"), None);
    }
}
