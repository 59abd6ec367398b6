//! restante's own table, through the public trait and as an object, as every door sees it.

use std::sync::Arc;

use restante_sessions::{
    Answer, Config, Ended, EngineUrl, Found, InfoChange, InfoKey, InfoValue, NewSession, Opened, Owner,
    SessionId, Sessions, hub::Event, open,
};

use super::{Name, Subject, route};

/// The `memory` engine.
pub(in super::super) struct Ours {
    opened: Opened,
}

/// A node without doors: nobody is told anything.
pub(in super::super) struct Nobody;

impl Owner for Nobody {
    fn ended(&self, _: SessionId, _: Ended) {}
    fn heard(&self, _: Event) {}
}

impl Ours {
    pub(in super::super) async fn open() -> anyhow::Result<Self> {
        Ok(Self { opened: open(Config::new(EngineUrl::Memory), Arc::new(Nobody)).await? })
    }

    pub(in super::super) fn sessions(&self) -> &dyn Sessions {
        &*self.opened.sessions
    }
}

/// What an answer says at once, without a runtime; nothing when it only comes later.
pub(in super::super) fn now<T>(answer: Answer<'_, T>) -> Option<T> {
    answer.now().ok()
}

/// Looks at what was found where it lies: moving it out of the answer is work of its own.
fn count(found: &Answer<'_, Result<Found, restante_sessions::Error>>) -> u64 {
    match found {
        Answer::Ready(Some(Ok(found))) => route(found.iter().map(|session| session.priority)),
        _ => 0,
    }
}

fn was_there(answer: Answer<'_, Result<bool, restante_sessions::Error>>) -> bool {
    matches!(now(answer), Some(Ok(true)))
}

impl Subject for Ours {
    type Id = SessionId;
    const NAME: &'static str = "restante";
    const HAS_IDS: bool = true;

    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<SessionId> {
        let new = NewSession { user: name.user, resource: name.resource, info };
        now(self.opened.sessions.open(new))?.ok()
    }

    fn close(&self, _: Name<'_>, id: SessionId) -> bool {
        was_there(self.opened.sessions.close(id, Ended::Left))
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
        was_there(self.opened.sessions.merge_info(id, &changes))
    }

    fn set_presence(&self, _: Name<'_>, id: SessionId, priority: i8) -> bool {
        was_there(self.opened.sessions.set_presence(id, Some(priority), &[]))
    }
}
