//! Users with and without a session, and lists of keys drawn from both before the clock runs.

use std::collections::VecDeque;

use anyhow::{Context, ensure};

use super::session_table::{NAME_BYTES, Name, SessionTable, info_of, write_name};
use crate::random::Random;

/// Users with a session per user without one. A user that opens a session closed its last one long ago and is in no cache.
const PRESENT_PER_ABSENT: u32 = 4;

/// A user with a session.
#[derive(Clone, Copy)]
struct Member<I> {
    number: u32,
    id: I,
}

/// All users of a table under measurement.
pub(super) struct Population<I> {
    present: Vec<Member<I>>,
    absent: VecDeque<u32>,
    random: Random,
}

/// Names in one buffer, so that reading them causes no cache miss, and their ids.
pub(super) struct Keys<I> {
    names: String,
    numbers: Vec<u32>,
    ids: Vec<I>,
}

impl<I: Copy> Keys<I> {
    fn with_capacity(count: usize) -> Self {
        Self {
            names: String::with_capacity(count * NAME_BYTES),
            numbers: Vec::with_capacity(count),
            ids: Vec::with_capacity(count),
        }
    }

    fn push(&mut self, number: u32) {
        write_name(number, &mut self.names);
        self.numbers.push(number);
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    pub(super) fn names(&self) -> impl Iterator<Item = Name<'_>> {
        (0..self.len()).filter_map(|at| Name::of(self.names.get(at * NAME_BYTES..(at + 1) * NAME_BYTES)?))
    }

    /// Names and ids; users without a session have none.
    pub(super) fn named_ids(&self) -> impl Iterator<Item = (Name<'_>, I)> {
        self.names().zip(self.ids.iter().copied())
    }
}

impl<I: Copy> Population<I> {
    /// Opens this many sessions in a table.
    pub(super) fn fill<T: SessionTable<Id = I>>(
        table: &T,
        sessions: u32,
        has_info: bool,
    ) -> anyhow::Result<Self> {
        let mut name = String::with_capacity(NAME_BYTES);
        let mut present = Vec::with_capacity(sessions as usize);
        for number in 0..sessions {
            name.clear();
            write_name(number, &mut name);
            let info = info_of(number);
            let info = if has_info { info.as_slice() } else { &[] };
            let id = Name::of(&name).and_then(|name| table.open(name, info));
            present.push(Member { number, id: id.context("a session could not be opened")? });
        }
        let absent = (sessions..sessions + sessions.div_ceil(PRESENT_PER_ABSENT)).collect();
        Ok(Self { present, absent, random: Random::new(u64::from(sessions), 32) })
    }

    #[cfg(test)]
    pub(super) fn sessions(&self) -> usize {
        self.present.len()
    }

    pub(super) fn absent(&self) -> usize {
        self.absent.len()
    }

    /// Keys of users with a session, in random order; one may occur twice.
    pub(super) fn draw(&mut self, count: usize) -> Keys<I> {
        let mut keys = Keys::with_capacity(count);
        for _ in 0..count {
            let at = self.random.below(self.present.len() as u64) as usize;
            if let Some(member) = self.present.get(at) {
                keys.push(member.number);
                keys.ids.push(member.id);
            }
        }
        keys
    }

    /// Removes users whose sessions will be closed, and returns their keys.
    pub(super) fn take(&mut self, count: usize) -> anyhow::Result<Keys<I>> {
        ensure!(count < self.present.len(), "{count} sessions to close are too many");
        let mut keys = Keys::with_capacity(count);
        for _ in 0..count {
            let at = self.random.below(self.present.len() as u64) as usize;
            let member = self.present.swap_remove(at);
            keys.push(member.number);
            keys.ids.push(member.id);
        }
        Ok(keys)
    }

    /// Removes users who will open a session, and returns their keys.
    pub(super) fn invite(&mut self, count: usize) -> anyhow::Result<Keys<I>> {
        ensure!(count <= self.absent.len(), "{count} sessions to open are too many");
        let mut keys = Keys::with_capacity(count);
        for number in self.absent.drain(..count) {
            keys.push(number);
        }
        Ok(keys)
    }

    /// Adds users whose sessions were closed.
    pub(super) fn leave(&mut self, keys: &Keys<I>) {
        self.absent.extend(keys.numbers());
    }

    /// Adds users whose sessions were opened.
    pub(super) fn join(&mut self, keys: &Keys<I>, ids: &[I]) {
        let members = keys.numbers().iter().zip(ids);
        self.present.extend(members.map(|(number, id)| Member { number: *number, id: *id }));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::restante_table::RestanteTable, *};

    #[tokio::test]
    async fn users_come_and_go_and_are_counted() {
        let table = RestanteTable::open().await.unwrap();
        let mut users = Population::fill(&table, 100, true).unwrap();
        assert_eq!((users.sessions(), users.absent()), (100, 25));
        let taken = users.take(10).unwrap();
        assert_eq!((users.sessions(), taken.named_ids().count()), (90, 10));
        let drawn = users.draw(500);
        assert!(drawn.numbers().iter().all(|number| !taken.numbers().contains(number)));
        assert!(taken.named_ids().all(|(name, id)| table.close(name, id)));
        users.leave(&taken);
        let invited = users.invite(5).unwrap();
        assert_eq!(
            invited.numbers(),
            [100, 101, 102, 103, 104],
            "users without a session are in order of closing"
        );
        let ids: Vec<_> = invited.names().map(|name| table.open(name, &[]).unwrap()).collect();
        users.join(&invited, &ids);
        assert_eq!((users.sessions(), users.absent()), (95, 30));
        assert!(users.draw(1_000).names().all(|name| table.by_user(name.user) == 1));
        assert!(users.take(95).is_err() && users.invite(31).is_err());
    }
}
