//! What changed of a kind of objects since a state (RFC 8620 §5.2): shared by Mailbox/changes, Thread/changes and Email/changes.
//!
//! A commit may have more changes than a client accepts at once. Then a state is a revision and an id: all changes up to the revision,
//! and those of the next revision up to the id, in the order of ids (S6).

use std::collections::{BTreeMap, HashSet};

use restante_core::{AccountId, ErrorKind, Kind, RecordId, Revision};
use restante_mail::email;
use restante_records::{Changes, ChangesSince, Get, Record, Records};

use crate::core::{Args, Context, Exchange, IdType, Members, MethodError, State, ids};
use restante_directory::Access;

/// How often a page is read again because of a commit between its reads, or because it had nothing new.
const ATTEMPTS_MAX: usize = 16;

/// Records read a page of this many changes without another thread.
const INLINE_PAGE: usize = 256;

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChangesPage {
    pub(crate) old: State,
    pub(crate) new: State,
    pub(crate) has_more: bool,
    pub(crate) created: Vec<RecordId>,
    pub(crate) updated: Vec<RecordId>,
    pub(crate) destroyed: Vec<RecordId>,
}

/// Email/changes.
pub(crate) async fn email(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let page = page(context, account, email::KIND, &mut args).await?;
    args.done()?;
    let mut answer = exchange.answers.begin();
    page.write(account, IdType::Email, &mut answer);
    Ok(())
}

impl ChangesPage {
    /// Writes the members of the response.
    pub(crate) fn write(&self, account: AccountId, id_type: IdType, answer: &mut impl Members) {
        answer.field("accountId", &ids::account_id(account));
        answer.field("oldState", &self.old);
        answer.field("newState", &self.new);
        answer.field("hasMoreChanges", &self.has_more);
        let lists = [("created", &self.created), ("updated", &self.updated), ("destroyed", &self.destroyed)];
        for (name, changed) in lists {
            let mut list = answer.list(name);
            for id in changed {
                id_type.write(*id, list.item());
            }
        }
    }

    fn add(&mut self, id: RecordId, what: What) {
        match what {
            What::Created => self.created.push(id),
            What::Updated => self.updated.push(id),
            What::Destroyed => self.destroyed.push(id),
        }
    }

    fn extend(&mut self, changes: &Changes) {
        self.created.extend(changes.created.iter().map(|changed| changed.id));
        self.updated.extend(changes.updated.iter().map(|changed| changed.id));
        self.destroyed.extend(changes.destroyed.iter().map(|changed| changed.id));
    }
}

/// Takes `sinceState` and `maxChanges`, and reads what changed.
///
/// # Errors
/// `cannotCalculateChanges` for a state that is unknown or too old, `invalidArguments` for `maxChanges` of 0.
pub(crate) async fn page(
    context: &Context,
    account: AccountId,
    kind: Kind,
    args: &mut Args,
) -> Result<ChangesPage, MethodError> {
    let since = args.required::<String>("sinceState")?;
    let max = args.nullable::<u64>("maxChanges")?;
    // RFC 8620 §5.2: maxChanges must be above 0.
    if max == Some(0) {
        return Err(MethodError::argument("maxChanges", "expected a number above 0"));
    }
    let since = since.parse().map_err(|()| MethodError::CannotCalculateChanges)?;
    let max = max.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX);
    let max = max.min(context.config.changes_max.get()).min(restante_records::CHANGES_MAX);
    History { records: context.records(), account, kind }.page(since, max).await
}

/// The objects that changed since a revision, including those that were destroyed.
///
/// # Errors
/// `cannotCalculateChanges` for a revision that is unknown or too old.
pub(crate) async fn changed_since(
    context: &Context,
    account: AccountId,
    kind: Kind,
    since: Revision,
) -> Result<HashSet<RecordId>, MethodError> {
    let history = History { records: context.records(), account, kind };
    let mut changed = HashSet::new();
    let mut since = since;
    loop {
        let page = history.changes(since, INLINE_PAGE).await?;
        let all = page.created.iter().chain(&page.updated).chain(&page.destroyed);
        changed.extend(all.map(|changed| changed.id));
        if !page.has_more {
            return Ok(changed);
        }
        since = page.revision;
    }
}

/// The changes of one kind in one account.
#[derive(Clone, Copy)]
struct History<'r> {
    records: &'r dyn Records,
    account: AccountId,
    kind: Kind,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Created,
    Updated,
    Destroyed,
}

impl History<'_> {
    /// At most `max` changes since a state.
    async fn page(self, since: State, max: usize) -> Result<ChangesPage, MethodError> {
        // Nearly all requests are from clients that are up to date.
        let state = self.state().await?;
        if since == State::from(state) {
            return Ok(ChangesPage { old: since, new: since, ..ChangesPage::default() });
        }
        let mut from = since.revision;
        if let Some(up_to) = since.up_to {
            match self.rest(since.revision, up_to, max).await? {
                Some(page) => return Ok(ChangesPage { old: since, ..page }),
                None => from = Revision(from.0.saturating_add(1)),
            }
        }
        Ok(ChangesPage { old: since, ..self.since(from, max).await? })
    }

    /// At most `max` changes since a revision.
    async fn since(self, asked: Revision, max: usize) -> Result<ChangesPage, MethodError> {
        let mut since = asked;
        for _ in 0..ATTEMPTS_MAX {
            let changes = self.changes(since, max).await?;
            let count = count(&changes);
            if count > max {
                // The page is of one commit: only such a page is cut.
                match self.part_of_first(since, None, max).await? {
                    Some(page) => return Ok(page),
                    None => continue,
                }
            }
            if count == 0 && changes.has_more {
                since = changes.revision;
                continue;
            }
            return self.whole(&changes).await;
        }
        if since > asked {
            // RFC 8620 §5.2: the state may be an intermediate one. The client continues from there, not from the beginning.
            return Ok(ChangesPage { new: since.into(), has_more: true, ..ChangesPage::default() });
        }
        Err(MethodError::ServerUnavailable)
    }

    /// A page of whole commits.
    async fn whole(self, changes: &Changes) -> Result<ChangesPage, MethodError> {
        let mut page = ChangesPage::default();
        page.extend(changes);
        let state = self.state().await?;
        // S3: the same state as that of a /get right after, unless there are more changes already.
        let is_all = !changes.has_more && state <= changes.revision;
        page.new = if is_all { state } else { changes.revision }.into();
        page.has_more = !is_all;
        Ok(page)
    }

    /// The rest of a commit whose changes up to an id were returned; `None` when nothing of it is left.
    async fn rest(
        self,
        before: Revision,
        up_to: RecordId,
        max: usize,
    ) -> Result<Option<ChangesPage>, MethodError> {
        let revision = Revision(before.0.saturating_add(1));
        for _ in 0..ATTEMPTS_MAX {
            let first = self.changes(before, 1).await?;
            if count(&first) == 0 && first.has_more {
                return Ok(None); // the following changes are of later commits
            }
            match self.revision_of(before, &first).await? {
                Found::Nothing => return Ok(None),
                Found::Changed => continue,
                Found::At(found) if found != revision => return Ok(None),
                Found::At(_) => {}
            }
            let left = sorted(&first).into_iter().filter(|(id, _)| *id > up_to).count();
            if left == 0 {
                return Ok(None);
            }
            if let Some(page) = self.part_of_first(before, Some(up_to), max).await? {
                return Ok(Some(page));
            }
        }
        Err(MethodError::ServerUnavailable)
    }

    /// The changes of the first commit after a revision, those with ids greater than `behind`, at most `max`. `None`: another commit is
    /// the first one now.
    async fn part_of_first(
        self,
        since: Revision,
        behind: Option<RecordId>,
        max: usize,
    ) -> Result<Option<ChangesPage>, MethodError> {
        let first = self.changes(since, 1).await?;
        let Found::At(revision) = self.revision_of(since, &first).await? else { return Ok(None) };
        let mut page = ChangesPage::default();
        let mut left = 0;
        let mut last = None;
        for (id, what) in sorted(&first) {
            if behind.is_some_and(|behind| id <= behind) {
                continue;
            }
            if left == max {
                page.has_more = true;
                break;
            }
            left += 1;
            last = Some(id);
            page.add(id, what);
        }
        if page.has_more {
            page.new = State::part(Revision(revision.0.saturating_sub(1)), last);
            return Ok(Some(page));
        }
        let state = self.state().await?;
        page.new = revision.into();
        page.has_more = state > revision;
        Ok(Some(page))
    }

    /// The revision of the changes of a page, all of which are of one commit.
    async fn revision_of(self, since: Revision, first: &Changes) -> Result<Found, MethodError> {
        if let Some(created) = first.created.first() {
            let record = self.record(created.id).await?;
            return Ok(record.map_or(Found::Changed, |record| Found::At(record.created)));
        }
        if let Some(updated) = first.updated.first() {
            let record = self.record(updated.id).await?;
            let record = record.filter(|record| record.revision <= first.revision);
            return Ok(record.map_or(Found::Changed, |record| Found::At(record.revision)));
        }
        match first.destroyed.first() {
            Some(destroyed) => self.revision_of_destroyed(since, destroyed.id, first.revision).await,
            None => Ok(Found::Nothing),
        }
    }

    /// The revision of the first commit after `since`, when all that is still known of it is that it destroyed an object. The record is
    /// gone, so this searches for the last revision after which the commit is still the first one.
    async fn revision_of_destroyed(
        self,
        since: Revision,
        id: RecordId,
        last: Revision,
    ) -> Result<Found, MethodError> {
        let (mut before, mut at_or_after) = (since.0, last.0);
        while at_or_after.saturating_sub(before) > 1 {
            let middle = before + (at_or_after - before) / 2;
            let page = self.changes(Revision(middle), 1).await?;
            if page.destroyed.iter().any(|destroyed| destroyed.id == id) {
                before = middle;
            } else {
                at_or_after = middle;
            }
        }
        Ok(Found::At(Revision(at_or_after)))
    }

    async fn record(self, id: RecordId) -> Result<Option<Record>, MethodError> {
        let found = self.records.get(self.account, &Get::small(self.kind, vec![id])).await?;
        Ok(found.into_iter().next().flatten())
    }

    async fn state(self) -> Result<Revision, MethodError> {
        Ok(self.records.states(self.account).await?.of(self.kind))
    }

    async fn changes(self, since: Revision, limit: usize) -> Result<Changes, MethodError> {
        let question = ChangesSince { kind: Some(self.kind), since, limit };
        self.records.changes(self.account, &question).await.map_err(|error| match error.kind() {
            // The state is older than what is kept, or was never issued.
            ErrorKind::NotFound | ErrorKind::Invalid => MethodError::CannotCalculateChanges,
            _ => error.into(),
        })
    }
}

/// The revision of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    At(Revision),
    /// Another commit has changed the object in the meantime.
    Changed,
    /// There is no commit.
    Nothing,
}

fn count(changes: &Changes) -> usize {
    changes.created.len() + changes.updated.len() + changes.destroyed.len()
}

/// The changes in the order of ids.
fn sorted(changes: &Changes) -> BTreeMap<RecordId, What> {
    let created = changes.created.iter().map(|changed| (changed.id, What::Created));
    let updated = changes.updated.iter().map(|changed| (changed.id, What::Updated));
    let destroyed = changes.destroyed.iter().map(|changed| (changed.id, What::Destroyed));
    created.chain(updated).chain(destroyed).collect()
}
