//! A naive table on the standard library: one lock, and a map of lists of maps.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use restante_bench::sessions::{Name, SessionTable, route};
use restante_sessions::{InfoChange, InfoKey};

type Info = HashMap<u16, String>;
type Users = HashMap<String, Vec<(String, Info)>>;

/// The key of the priority.
const PRIORITY: u16 = 0;

/// Users, and the resources of each. Sessions have no ids. Look-ups read under the lock and copy nothing.
#[derive(Default)]
pub(crate) struct Naive(RwLock<Users>);

impl Naive {
    fn read(&self) -> RwLockReadGuard<'_, Users> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Users> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, name: Name<'_>, key: u16, value: String) -> bool {
        let mut users = self.write();
        let Some(sessions) = users.get_mut(name.user) else { return false };
        for (resource, info) in sessions {
            if resource == name.resource {
                info.insert(key, value);
                return true;
            }
        }
        false
    }
}

fn priority(info: &Info) -> Option<i8> {
    info.get(&PRIORITY)?.parse().ok()
}

impl SessionTable for Naive {
    type Id = ();
    const NAME: &'static str = "naive";
    const HAS_IDS: bool = false;

    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<()> {
        let mut entries = Info::new();
        for (key, value) in info {
            if let Some(value) = value {
                entries.insert(key.0, value.to_string());
            }
        }
        let mut users = self.write();
        let sessions = users.entry(name.user.to_owned()).or_default();
        sessions.retain(|(resource, _)| resource != name.resource);
        sessions.push((name.resource.to_owned(), entries));
        Some(())
    }

    fn close(&self, name: Name<'_>, (): ()) -> bool {
        let mut users = self.write();
        let Some(sessions) = users.get_mut(name.user) else { return false };
        let before = sessions.len();
        sessions.retain(|(resource, _)| resource != name.resource);
        let was_there = sessions.len() < before;
        if sessions.is_empty() {
            users.remove(name.user);
        }
        was_there
    }

    fn by_user(&self, user: &str) -> u64 {
        let users = self.read();
        let sessions = users.get(user).map(Vec::as_slice).unwrap_or_default();
        route(sessions.iter().map(|(_, info)| priority(info)))
    }

    fn by_address(&self, name: Name<'_>) -> u64 {
        let users = self.read();
        let sessions = users.get(name.user).map(Vec::as_slice).unwrap_or_default();
        let found = sessions.iter().filter(|(resource, _)| resource == name.resource);
        route(found.map(|(_, info)| priority(info)))
    }

    fn by_id(&self, (): ()) -> u64 {
        0
    }

    fn merge_info(&self, name: Name<'_>, (): (), carbons: i64) -> bool {
        self.set(name, InfoKey::CARBONS.0, carbons.to_string())
    }

    fn set_presence(&self, name: Name<'_>, (): (), priority: i8) -> bool {
        self.set(name, PRIORITY, priority.to_string())
    }
}

#[cfg(test)]
mod tests {
    use restante_bench::sessions::assert_is_table;

    use super::*;

    #[test]
    fn the_naive_table_keeps_the_contract() {
        assert_is_table(&Naive::default());
    }
}
