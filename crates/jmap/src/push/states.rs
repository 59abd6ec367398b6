//! The states of the types that are pushed to clients, and how they are written.

use std::fmt::Write;

use restante_core::Error;
use restante_mail::{account, email, identity, mailbox, submission, thread, vacation};
use restante_records::{AccountId, Get, Query, Records, Revision};

use crate::{
    JmapParts,
    core::{
        Members, Object,
        content::number,
        ids::{account_id, read_account_id},
    },
    methods::QuotaState,
};

/// The types whose states are pushed. EmailDelivery changes when an email is added, and has no objects (RFC 8621 §1.5).
pub(crate) const ALL_TYPES: [&str; TYPES] = [
    "Mailbox",
    "Thread",
    "Email",
    "EmailDelivery",
    "Identity",
    "Quota",
    "EmailSubmission",
    "VacationResponse",
];
const TYPES: usize = 8;

/// The types that another user's account does not have: their methods return `accountNotSupportedByMethod` for it.
const PERSONAL_TYPES: [&str; 2] = ["Identity", "EmailSubmission"];

/// The states of one account, in the order of [`ALL_TYPES`]; `None` for a type that is not pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypeStates([Option<u64>; TYPES]);

/// States, with the revision of the account before they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    revision: Revision,
    pub(super) states: TypeStates,
}

impl Read {
    /// Merges a later read; two reads may finish in either order. Returns whether a state has changed.
    pub(super) fn replace(&mut self, other: Self) -> bool {
        if other.revision < self.revision {
            return false;
        }
        let before = std::mem::replace(self, other);
        before.states != self.states
    }
}

/// Reads the states of an account. The state of EmailDelivery is never newer than that of Email: both changes of a delivery are pushed
/// together.
pub(super) async fn read(parts: &JmapParts, of: AccountId) -> Result<Read, Error> {
    let records = parts.mail.records();
    let mut states = records.states(of).await?;
    let delivered = delivered(records.as_ref(), of).await?;
    if delivered > states.revision {
        // There was a delivery between the two reads.
        states = records.states(of).await?;
    }
    let kinds = [mailbox::KIND, thread::KIND, email::KIND, identity::KIND, account::KIND];
    let [mailboxes, threads, emails, identities, used] = kinds.map(|kind| states.of(kind).0);
    let [submissions, vacations] = [submission::KIND, vacation::KIND].map(|kind| states.of(kind).0);
    let QuotaState(quota) = QuotaState::new(Revision(used), parts.directory.quota_of(of).await?);
    let all = [mailboxes, threads, emails, delivered.0, identities, quota, submissions, vacations];
    Ok(Read { revision: states.revision, states: TypeStates(all.map(Some)) })
}

/// The revision of the last commit that added an email.
async fn delivered(records: &dyn Records, of: AccountId) -> Result<Revision, Error> {
    let found = records.query(of, &Query::new(account::KIND, account::ALL).limit(1)).await?;
    let found = records.get(of, &Get::small(account::KIND, found.ids)).await?;
    let found = found.into_iter().flatten().next();
    Ok(Revision(found.and_then(|record| number(&record, account::DELIVERED)).unwrap_or_default()))
}

/// A set of types, by their positions in [`ALL_TYPES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const ALL: Self = Self(u8::MAX);

    /// The types with these names; others are never pushed.
    pub(crate) fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut types = 0;
        for name in names {
            if let Some(at) = ALL_TYPES.iter().position(|known| *known == name) {
                types |= 1 << at;
            }
        }
        Self(types)
    }

    fn has(self, at: usize) -> bool {
        self.0 & 1 << at != 0
    }
}

/// All states that a client sees, by account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visible(pub(crate) Vec<(AccountId, TypeStates)>);

impl Visible {
    /// As the id of an event and as `pushState`: `a1024:1.2.3.4.5.6.7.8;a1025:...`.
    pub(crate) fn id(&self) -> String {
        let mut id = String::new();
        for (at, (account, TypeStates(states))) in self.0.iter().enumerate() {
            if at > 0 {
                id.push(';');
            }
            id.push_str(&account_id(*account));
            for (at, state) in states.iter().enumerate() {
                // Writing to a string can't fail. The state of a type that is not pushed is never compared.
                let _ = write!(id, "{}{}", if at == 0 { ':' } else { '.' }, state.unwrap_or_default());
            }
        }
        id
    }

    /// Parses an id; an invalid text yields no states, so that all states count as newer.
    pub(crate) fn of_id(id: &str) -> Self {
        let account = |text: &str| -> Option<(AccountId, TypeStates)> {
            let (account, states) = text.split_once(':')?;
            let states: Option<Vec<u64>> = states.split('.').map(|state| state.parse().ok()).collect();
            let states: [u64; TYPES] = states?.try_into().ok()?;
            Some((read_account_id(account)?, TypeStates(states.map(Some))))
        };
        let accounts: Option<Vec<_>> = id.split(';').map(account).collect();
        Self(accounts.unwrap_or_default())
    }

    /// Whether a type has another state than in `seen`.
    pub(crate) fn differs(&self, seen: &Self, types: Types) -> bool {
        self.0.iter().any(|(account, states)| states.changed(seen.of(*account), types).next().is_some())
    }

    /// Writes `@type` and `changed` of a StateChange: the types that have another state than in `seen` (RFC 8620 §7.1).
    pub(crate) fn write_change(&self, seen: &Self, types: Types, out: &mut Object<'_>) {
        out.field("@type", "StateChange");
        let mut changed = out.object("changed");
        for (account, states) in &self.0 {
            let mut of_account = states.changed(seen.of(*account), types).peekable();
            if of_account.peek().is_none() {
                continue;
            }
            let mut members = changed.object(&account_id(*account));
            for (name, state) in of_account {
                members.field(name, &state.to_string());
            }
        }
    }

    /// The same, with the accounts first that have another state than in `seen`.
    pub(crate) fn changed_first(mut self, seen: &Self, types: Types) -> Self {
        self.0.sort_by_key(|(account, states)| states.changed(seen.of(*account), types).next().is_none());
        self
    }

    /// Replaces the states of the accounts that `newer` has.
    pub(crate) fn merge(&mut self, newer: &Self) {
        for (account, states) in &newer.0 {
            match self.0.iter_mut().find(|(known, _)| known == account) {
                Some((_, known)) => *known = *states,
                None => self.0.push((*account, *states)),
            }
        }
    }

    /// Whether an email was added since `seen` in an account that `seen` has.
    pub(crate) fn has_delivered_since(&self, seen: &Self, types: Types) -> bool {
        self.0.iter().any(|(account, states)| {
            let known = seen.of(*account);
            known.is_some() && states.changed(known, types).any(|(name, _)| name == "EmailDelivery")
        })
    }

    fn of(&self, account: AccountId) -> Option<TypeStates> {
        self.0.iter().find(|(known, _)| *known == account).map(|(_, states)| *states)
    }
}

impl TypeStates {
    /// The states that are pushed to users other than the owner of the account.
    pub(super) fn without_personal(self) -> Self {
        let mut states = self.0;
        for (name, state) in ALL_TYPES.iter().zip(&mut states) {
            if PERSONAL_TYPES.contains(name) {
                *state = None;
            }
        }
        Self(states)
    }

    /// The types with another state than in `seen`.
    fn changed(&self, seen: Option<Self>, types: Types) -> impl Iterator<Item = (&'static str, u64)> {
        let all = ALL_TYPES.into_iter().zip(self.0).enumerate();
        all.filter_map(move |(at, (name, state))| {
            let state = state?;
            let before = seen.and_then(|seen| seen.0.get(at).copied().flatten());
            (types.has(at) && before != Some(state)).then_some((name, state))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use restante_records::testing::{Hook, Hooked};
    use tokio::sync::oneshot;

    use super::*;
    use crate::{JmapConfig, testing};

    /// The next query signals that it begins, and waits for another event.
    #[derive(Default)]
    struct NextQuery(Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>);

    #[async_trait]
    impl Hook for NextQuery {
        async fn before_query(&self, _: &dyn Records, _: AccountId, _: &Query) {
            let next = self.0.lock().unwrap().take();
            if let Some((begun, happened)) = next {
                begun.send(()).unwrap();
                happened.await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn p1_the_state_of_deliveries_is_never_newer_than_that_of_emails() {
        let mut interrupted = None;
        let wrap = |inner: Arc<dyn Records>| {
            let records = Arc::new(Hooked { inner, hook: NextQuery::default() });
            interrupted = Some(records.clone());
            records as Arc<dyn Records>
        };
        let server = testing::TestServer::with_records(JmapConfig::default(), wrap).await;
        let interrupted = interrupted.unwrap();
        let parts = testing::parts(&server.mail, &server.directory);
        let account = server.alice.account;
        server.deliver("From: a@b.example\nSubject: one\n\nhello\n").await;
        let before = read(&parts, account).await.unwrap();

        let ((begun, begins), (happened, happens)) = (oneshot::channel(), oneshot::channel());
        *interrupted.hook.0.lock().unwrap() = Some((begun, happens));
        let delivered = async {
            begins.await.unwrap();
            server.deliver("From: a@b.example\nSubject: two\n\nhello\n").await;
            happened.send(()).unwrap();
        };
        let (read, ()) = tokio::join!(read(&parts, account), delivered);
        let (read, seen) = (read.unwrap(), Some(before.states));
        let types = Types::of(["Email", "EmailDelivery"]);
        let changed: Vec<&str> = read.states.changed(seen, types).map(|(name, _)| name).collect();
        assert_eq!(changed, ["Email", "EmailDelivery"]);
        assert_eq!(read.revision, server.records.records.states(account).await.unwrap().revision);
    }

    fn states(states: [u64; TYPES]) -> TypeStates {
        TypeStates(states.map(Some))
    }

    fn visible() -> Visible {
        Visible(vec![(AccountId(1024), states([1, 2, 3, 4, 5, 6, 7, 8])), (AccountId(1025), states([0; 8]))])
    }

    fn change(visible: &Visible, seen: &Visible, types: Types) -> String {
        let mut out = Vec::new();
        visible.write_change(seen, types, &mut Object::open(&mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn p2_an_id_is_the_whole_visible_state() {
        let visible = visible();
        assert_eq!(visible.id(), "a1024:1.2.3.4.5.6.7.8;a1025:0.0.0.0.0.0.0.0");
        assert_eq!(Visible::of_id(&visible.id()), visible);
        for wrong in ["", "x", "a1024:1", "a1024:1.2.3.4.5.6", "a1024:1.2.3.4.5.6.7.x", ";"] {
            assert_eq!(Visible::of_id(wrong), Visible::default(), "{wrong}");
        }
    }

    #[test]
    fn p1_a_change_has_the_types_of_each_account_that_changed() {
        let (new, mut old) = (visible(), visible());
        assert!(!new.differs(&old, Types::ALL));
        old.0[0].1.0[2] = Some(1);
        old.0[0].1.0[3] = Some(1);
        let expected = r#"{"@type":"StateChange","changed":{"a1024":{"Email":"3","EmailDelivery":"4"}}}"#;
        assert_eq!(change(&new, &old, Types::ALL), expected);
        let email = Types::of(["Email", "CalendarEvent"]);
        let expected = r#"{"@type":"StateChange","changed":{"a1024":{"Email":"3"}}}"#;
        assert_eq!(change(&new, &old, email), expected);
        assert!(!new.differs(&old, Types::of(["Mailbox"])));
        assert!(new.differs(&Visible::default(), Types::of(["Mailbox"])));
    }

    #[test]
    fn p5_accounts_that_changed_come_first_and_are_merged() {
        let (new, mut seen) = (visible(), visible());
        seen.0[1].1.0[3] = Some(9);
        let sorted = new.clone().changed_first(&seen, Types::ALL);
        assert_eq!(sorted.0[0].0, AccountId(1025));
        assert!(new.has_delivered_since(&seen, Types::ALL));
        assert!(!new.has_delivered_since(&seen, Types::of(["Email"])));
        assert!(!new.has_delivered_since(&Visible::default(), Types::ALL), "nothing is known of before");
        let mut merged = Visible(vec![seen.0[1]]);
        merged.merge(&new);
        assert!(!new.differs(&merged, Types::ALL) && merged.0.len() == 2);
    }

    #[test]
    fn p4_an_older_read_that_ends_later_is_left_out() {
        let read = |revision, of| Read { revision: Revision(revision), states: states(of) };
        let mut shown = Read::default();
        assert!(shown.replace(read(5, [5, 1, 0, 0, 0, 7, 0, 0])));
        assert!(!shown.replace(read(4, [4, 1, 0, 0, 0, 6, 0, 0])));
        assert!(!shown.replace(read(6, [5, 1, 0, 0, 0, 7, 0, 0])), "something else has changed");
        assert!(shown.replace(read(6, [5, 1, 0, 0, 0, 6, 0, 0])));
        assert_eq!(shown.states, states([5, 1, 0, 0, 0, 6, 0, 0]));
    }
}
