//! What is measured side by side: restante's table of sessions, and two that others would write.

mod naive;
mod ours;
mod sharded;

use std::{fmt::Write, hint::black_box, net::SocketAddr};

use restante_sessions::{InfoChange, InfoKey, InfoValue};

pub(super) use naive::Naive;
pub(super) use ours::{Nobody, Ours, now};
pub(super) use sharded::Sharded;

/// Bytes of a user's name.
const USER_BYTES: usize = 13;
/// Bytes of both parts of a name.
pub(super) const NAME_BYTES: usize = USER_BYTES + 11;
/// Users have eight digits in their names.
pub(super) const USERS_MAX: u32 = 100_000_000;

/// A table of sessions: the largest priority of what is found is looked at, as routing does.
pub(super) trait Subject: Send + Sync {
    /// Names a session.
    type Id: Copy + Send + Sync;
    /// Who it is, in reports.
    const NAME: &'static str;
    /// Whether a session can be found by its id alone.
    const HAS_IDS: bool;

    /// Opens a session; nothing when the table refused.
    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<Self::Id>;
    /// Ends it; whether it was there.
    fn close(&self, name: Name<'_>, id: Self::Id) -> bool;
    /// How many sessions a user has.
    fn by_user(&self, user: &str) -> u64;
    /// How many sessions have this name: 1 or 0.
    fn by_address(&self, name: Name<'_>) -> u64;
    /// How many sessions have this id: 1 or 0.
    fn by_id(&self, id: Self::Id) -> u64;
    /// Remembers by which version a session wants carbons; whether it was there.
    fn merge_info(&self, name: Name<'_>, id: Self::Id, carbons: i64) -> bool;
    /// Sets its priority; whether it was there.
    fn set_presence(&self, name: Name<'_>, id: Self::Id, priority: i8) -> bool;
}

/// Whose session it is, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    pub(super) user: &'a str,
    pub(super) resource: &'a str,
}

impl<'a> Name<'a> {
    /// Reads what [`write_name`] has written.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (user, resource) = text.split_at_checked(USER_BYTES)?;
        Some(Self { user, resource })
    }
}

/// Writes the name of the user with a number: 13 bytes, and 11 of the resource, as MongooseIM's were when it was measured.
pub(super) fn write_name(number: u32, out: &mut String) {
    let _ = write!(out, "user-{number:08}mobile-{:04}", number % 10_000); // a string takes everything
}

/// What MongooseIM remembers about each of its sessions: where from, by what kind of connection, and carbons.
pub(super) fn info_of(number: u32) -> [InfoChange<'static>; 3] {
    let [_, second, third, fourth] = number.to_be_bytes();
    let address = SocketAddr::from(([10, second, third, fourth], 49_152 + (number % 16_384) as u16));
    [
        (InfoKey::DOOR, Some(InfoValue::Text("c2s_tls"))),
        (InfoKey::ADDRESS, Some(InfoValue::Address(address))),
        (InfoKey::CARBONS, Some(InfoValue::Number(1))),
    ]
}

/// What routing does with the sessions of a user: it looks for the largest priority. How many there were.
#[inline]
fn route(priorities: impl Iterator<Item = Option<i8>>) -> u64 {
    let (mut count, mut largest) = (0, None);
    for priority in priorities {
        count += 1;
        largest = largest.max(priority);
    }
    black_box(largest);
    count
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn names_have_the_length_that_they_should_have() {
        let mut text = String::new();
        write_name(USERS_MAX - 1, &mut text);
        assert_eq!(text.len(), NAME_BYTES);
        assert_eq!(Name::of(&text), Some(Name { user: "user-99999999", resource: "mobile-9999" }));
    }

    /// Every table must do the same, or their times can't be compared.
    fn keeps_the_contract<T: Subject>(table: &T) {
        let (one, other) = (Name { user: "u", resource: "a" }, Name { user: "u", resource: "b" });
        let first = table.open(one, &info_of(1)).unwrap();
        let second = table.open(other, &[]).unwrap();
        assert_eq!((table.by_user("u"), table.by_user("v")), (2, 0), "{}", T::NAME);
        assert_eq!(table.by_address(one) + table.by_address(other), 2);
        assert_eq!(table.by_address(Name { user: "u", resource: "c" }), 0);
        assert!(table.merge_info(one, first, 2) && table.set_presence(other, second, -1));
        assert!(table.close(other, second) && !table.close(other, second));
        assert_eq!((table.by_user("u"), table.by_address(other)), (1, 0));
        if T::HAS_IDS {
            assert_eq!((table.by_id(first), table.by_id(second)), (1, 0));
        }
        assert!(!table.merge_info(other, second, 2) && !table.set_presence(other, second, 1));
        let again = table.open(one, &[]).unwrap();
        assert_eq!(table.by_user("u"), 1, "the same resource takes the place of the old one");
        assert!(table.close(one, again));
        assert_eq!(table.by_user("u"), 0);
    }

    #[tokio::test]
    async fn all_tables_do_the_same() {
        keeps_the_contract(&Ours::open().await.unwrap());
        keeps_the_contract(&Naive::default());
        keeps_the_contract(&Sharded::new());
    }
}
