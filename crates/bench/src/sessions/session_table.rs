//! The interface of a measured table of sessions, and the users that all tables get.

use std::{fmt::Write, hint::black_box, net::SocketAddr};

use restante_sessions::{InfoChange, InfoKey, InfoValue};

/// Bytes of a user's name.
const USER_BYTES: usize = 13;
/// Bytes of a name: user and resource.
pub(super) const NAME_BYTES: usize = USER_BYTES + 11;
/// Users have eight digits in their names.
pub(super) const USERS_MAX: u32 = 100_000_000;

/// A table of sessions. Look-ups read the priorities of what they find, as routing does.
pub trait SessionTable: Send + Sync + 'static {
    /// Identifies a session.
    type Id: Copy + Send + Sync;
    /// The table's name in reports.
    const NAME: &'static str;
    /// Whether a session can be found by its id alone.
    const HAS_IDS: bool;

    /// Opens a session. `None` if the table refuses it.
    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<Self::Id>;
    /// Closes a session. `false` if it is not open.
    fn close(&self, name: Name<'_>, id: Self::Id) -> bool;
    /// The number of a user's sessions.
    fn by_user(&self, user: &str) -> u64;
    /// The number of sessions with this name: 1 or 0.
    fn by_address(&self, name: Name<'_>) -> u64;
    /// The number of sessions with this id: 1 or 0.
    fn by_id(&self, id: Self::Id) -> u64;
    /// Sets the version of carbons that a session uses. `false` if it is not open.
    fn merge_info(&self, name: Name<'_>, id: Self::Id, carbons: i64) -> bool;
    /// Sets a session's priority. `false` if it is not open.
    fn set_presence(&self, name: Name<'_>, id: Self::Id, priority: i8) -> bool;
}

/// A user and one of its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The user.
    pub user: &'a str,
    /// The resource.
    pub resource: &'a str,
}

impl<'a> Name<'a> {
    /// Parses what [`write_name`] has written.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (user, resource) = text.split_at_checked(USER_BYTES)?;
        Some(Self { user, resource })
    }
}

/// Appends the name of a numbered user: 13 bytes and 11 of the resource, the lengths in MongooseIM's measurement.
pub(super) fn write_name(number: u32, out: &mut String) {
    let _ = write!(out, "user-{number:08}mobile-{:04}", number % 10_000); // writing to a string never fails
}

/// The info that MongooseIM keeps for each session: address, kind of connection, carbons.
pub(super) fn info_of(number: u32) -> [InfoChange<'static>; 3] {
    let [_, second, third, fourth] = number.to_be_bytes();
    let address = SocketAddr::from(([10, second, third, fourth], 49_152 + (number % 16_384) as u16));
    [
        (InfoKey::DOOR, Some(InfoValue::Text("c2s_tls"))),
        (InfoKey::ADDRESS, Some(InfoValue::Address(address))),
        (InfoKey::CARBONS, Some(InfoValue::Number(1))),
    ]
}

/// Finds the largest priority, as routing does, and returns the number of sessions.
#[inline]
pub fn route(priorities: impl Iterator<Item = Option<i8>>) -> u64 {
    let (mut count, mut largest) = (0, None);
    for priority in priorities {
        count += 1;
        largest = largest.max(priority);
    }
    black_box(largest);
    count
}

/// Checks that a table meets the contract, without which times can't be compared. For tests.
///
/// # Panics
/// When it does not.
pub fn assert_is_table<T: SessionTable>(table: &T) {
    let (one, other) = (Name { user: "u", resource: "a" }, Name { user: "u", resource: "b" });
    let refused = "the table refused a session";
    let first = table.open(one, &info_of(1)).expect(refused);
    let second = table.open(other, &[]).expect(refused);
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
    let again = table.open(one, &[]).expect(refused);
    assert_eq!(table.by_user("u"), 1, "a session replaces the one with the same resource");
    assert!(table.close(one, again));
    assert_eq!(table.by_user("u"), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_published_lengths() {
        let mut text = String::new();
        write_name(USERS_MAX - 1, &mut text);
        assert_eq!(text.len(), NAME_BYTES);
        assert_eq!(Name::of(&text), Some(Name { user: "user-99999999", resource: "mobile-9999" }));
    }
}
