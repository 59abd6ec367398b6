//! restante's own table, through the trait object that every door uses.

use std::sync::Arc;

use restante_sessions::{
    Answer, Config, Ended, EngineUrl, Found, InfoChange, InfoKey, InfoValue, NewSession, Opened, Owner,
    SessionId, Sessions, hub::Event, open,
};

use super::session_table::{Name, SessionTable, route};

/// The `memory` engine.
pub struct RestanteTable {
    opened: Opened,
}

/// The owner of sessions without connections: it ignores all notifications.
pub(super) struct NoOwner;

impl Owner for NoOwner {
    fn ended(&self, _: SessionId, _: Ended) {}
    fn received(&self, _: Event) {}
}

impl RestanteTable {
    /// Opens an empty table.
    ///
    /// # Errors
    /// When the engine does not open.
    pub async fn open() -> anyhow::Result<Self> {
        Ok(Self { opened: open(Config::new(EngineUrl::Memory), Arc::new(NoOwner)).await? })
    }

    pub(super) fn sessions(&self) -> &dyn Sessions {
        &*self.opened.sessions
    }
}

/// The value of an answer that is ready without a runtime; `None` for one that has to be awaited.
pub(super) fn now<T>(answer: Answer<'_, T>) -> Option<T> {
    answer.now().ok()
}

/// Counts without moving the sessions out of the answer, which would be measured too.
fn count(found: &Answer<'_, Result<Found, restante_sessions::Error>>) -> u64 {
    match found {
        Answer::Ready(Some(Ok(found))) => route(found.iter().map(|session| session.priority)),
        _ => 0,
    }
}

fn was_open(answer: Answer<'_, Result<bool, restante_sessions::Error>>) -> bool {
    matches!(now(answer), Some(Ok(true)))
}

impl SessionTable for RestanteTable {
    type Id = SessionId;
    const NAME: &'static str = "restante";
    const HAS_IDS: bool = true;

    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<SessionId> {
        let new = NewSession { user: name.user, resource: name.resource, info };
        now(self.opened.sessions.open(new))?.ok()
    }

    fn close(&self, _: Name<'_>, id: SessionId) -> bool {
        was_open(self.opened.sessions.close(id, Ended::Left))
    }

    fn by_user(&self, user: &str) -> u64 {
        count(&self.opened.sessions.by_user(user))
    }

    fn by_address(&self, name: Name<'_>) -> u64 {
        count(&self.opened.sessions.by_address(name.user, name.resource))
    }

    fn by_id(&self, id: SessionId) -> u64 {
        count(&self.opened.sessions.by_id(id))
    }

    fn merge_info(&self, _: Name<'_>, id: SessionId, carbons: i64) -> bool {
        let changes = [(InfoKey::CARBONS, Some(InfoValue::Number(carbons)))];
        was_open(self.opened.sessions.merge_info(id, &changes))
    }

    fn set_presence(&self, _: Name<'_>, id: SessionId, priority: i8) -> bool {
        was_open(self.opened.sessions.set_presence(id, Some(priority), &[]))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::session_table::assert_is_table, *};

    #[tokio::test]
    async fn the_table_of_restante_keeps_the_contract() {
        assert_is_table(&RestanteTable::open().await.unwrap());
    }
}
