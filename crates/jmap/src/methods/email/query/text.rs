//! Conditions on text: the index returns the emails that match, and emails that are newer than the index are matched directly.

use std::{collections::HashSet, sync::OnceLock, time::Duration};

use restante_core::{AccountId, ErrorKind, RecordId, Revision};
use restante_mail::email;
use restante_records::{ChangesSince, Query};
use restante_search as search;
use restante_search::{Field, HeaderName, Hit, Search, SearchText};
use tokio::time::{Instant, sleep};

use crate::{
    core::{Context, MethodError},
    methods::email::document,
};

use super::{
    filter::{Condition, Filter, TextField},
    test::Test,
};

/// The most emails that are matched directly because the index does not have them yet, the newest ones. While an index is rebuilt,
/// older emails are found once it has them.
const DIRECT_MAX: usize = 512;

/// How long a query waits for an index that lacks more emails: after a large import it usually catches up soon.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// How often the index is polled during the wait.
const WAIT_STEP: Duration = Duration::from_millis(100);

/// A query does not wait for an index that lacks more emails than this: the index of the account is being rebuilt, and would not catch
/// up in time.
const LACKING_MAX: usize = 16_384;

/// Emails with the times when they were received, ascending by id, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits(Vec<Hit>);

impl Hits {
    /// When an email was received; `None` when it is not among them.
    pub(crate) fn received(&self, id: u64) -> Option<i64> {
        let place = self.0.binary_search_by_key(&id, |hit| hit.id.0).ok()?;
        self.0.get(place).map(|hit| hit.received)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hit> {
        self.0.iter()
    }
}

impl From<Vec<Hit>> for Hits {
    fn from(mut hits: Vec<Hit>) -> Self {
        hits.sort(); // most of them are in order already, which makes the stable sort fast
        hits.dedup_by_key(|hit| hit.id);
        Self(hits)
    }
}

/// Emails that match conditions on text.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// For each condition the emails that match.
    pub(crate) emails: Vec<Hits>,
    /// Whether some of them may have been destroyed; those that are known to be destroyed are left out.
    pub(crate) may_be_gone: bool,
    /// The revision of the index, if it lags so far that emails may be missing.
    pub(crate) partial_at: Option<Revision>,
}

/// The time that one query waits for the index: at most [`WAIT_MAX`] in total, even if its result is built several times.
#[derive(Debug, Default)]
pub(crate) struct IndexWait {
    until: OnceLock<Instant>,
}

impl IndexWait {
    /// Waits until the index lacks no more emails than are matched directly; returns whether it caught up during the wait. Returns at
    /// once if it already lacks no more than that, or is being built from scratch.
    pub(crate) async fn wait(
        &self,
        search: &dyn Search,
        account: AccountId,
        newer: &Newer,
    ) -> Result<bool, MethodError> {
        let Some(enough_from) = newer.enough_from else { return Ok(false) };
        let until = *self.until.get_or_init(|| Instant::now() + WAIT_MAX);
        // A response without hits reports the revision of the index, too.
        let nothing = search::Filter::Or(Vec::new());
        let query = search::Query { limit: 1, ..search::Query::new(nothing) };
        while Instant::now() < until {
            sleep(WAIT_STEP).await;
            if search.query(account, &query).await?.revision >= enough_from {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The emails for which each of these conditions is true.
pub(crate) async fn find(
    context: &Context,
    account: AccountId,
    conditions: &[Condition],
    wait: &IndexWait,
) -> Result<Found, MethodError> {
    let search = context.search().ok_or_else(|| unsupported("this server does not search texts"))?;
    let filters = of_conditions(conditions)?;
    let (mut found, mut complete_up_to) = all_indexed(search, account, &filters).await?;
    let mut newer = self::newer(context, account, complete_up_to).await?;
    if wait.wait(search, account, &newer).await? {
        (found, complete_up_to) = all_indexed(search, account, &filters).await?;
        newer = self::newer(context, account, complete_up_to).await?;
    }
    for id in newer.ids {
        let Some(document) = document::read_to_search(context, account, id).await? else { continue };
        for (filter, found) in filters.iter().zip(&mut found) {
            if search::matches(&document, filter) {
                found.push(Hit { id, received: document.received });
            }
        }
    }
    let destroyed: HashSet<RecordId> = newer.destroyed.into_iter().collect();
    if !destroyed.is_empty() {
        found.iter_mut().for_each(|found| found.retain(|hit| !destroyed.contains(&hit.id)));
    }
    let emails = found.into_iter().map(Hits::from).collect();
    let partial_at = newer.is_partial.then_some(complete_up_to);
    Ok(Found { emails, may_be_gone: newer.may_be_gone, partial_at })
}

/// Emails that were created or destroyed after a revision.
pub(crate) struct Newer {
    /// At most [`DIRECT_MAX`], the newest ones.
    pub(crate) ids: Vec<RecordId>,
    /// Whether there are more.
    pub(crate) is_partial: bool,
    /// If there are more, the revision that the index must reach to have the others; `None` when that takes too long.
    enough_from: Option<Revision>,
    destroyed: Vec<RecordId>,
    /// Whether emails were destroyed that are not known here.
    may_be_gone: bool,
}

/// The changes that an index which is complete up to a revision does not have.
pub(crate) async fn newer(
    context: &Context,
    account: AccountId,
    revision: Revision,
) -> Result<Newer, MethodError> {
    const PAGE: usize = 256;
    let records = context.records();
    let (mut created, mut destroyed, mut is_partial) = (Vec::new(), Vec::new(), false);
    let mut pages = Vec::new();
    let mut since = revision;
    loop {
        let question = ChangesSince { kind: Some(email::KIND), since, limit: PAGE };
        let page = match records.changes(account, &question).await {
            Ok(page) => page,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => {
                let newest = Query::new(email::KIND, email::BY_RECEIVED).descending().limit(DIRECT_MAX);
                let page = records.query(account, &newest).await?;
                let is_partial = page.next.is_some();
                return Ok(Newer {
                    ids: page.ids,
                    is_partial,
                    enough_from: None,
                    destroyed: Vec::new(),
                    may_be_gone: true,
                });
            }
            Err(error) => return Err(error.into()),
        };
        created.extend(page.created.iter().map(|changed| changed.id));
        pages.push((page.revision, page.created.len()));
        destroyed.extend(page.destroyed.iter().map(|changed| changed.id));
        let too_many = created.len().saturating_sub(DIRECT_MAX);
        created.drain(..too_many);
        is_partial |= too_many > 0;
        if !page.has_more {
            // At revision 0 the index of the account is being built from scratch.
            let enough_from = if revision > Revision(0) { enough_from(&pages) } else { None };
            return Ok(Newer { ids: created, is_partial, enough_from, destroyed, may_be_gone: false });
        }
        since = page.revision;
    }
}

/// The revision at the end of the first page after which at most [`DIRECT_MAX`] emails were created. Each page has the revision at its
/// end and the number of emails created in it. `None` when there are no more emails than that, or more than [`LACKING_MAX`].
fn enough_from(pages: &[(Revision, usize)]) -> Option<Revision> {
    let mut lacking: usize = pages.iter().map(|(_, created)| created).sum();
    if !(DIRECT_MAX + 1..=LACKING_MAX).contains(&lacking) {
        return None;
    }
    for (revision, created) in pages {
        lacking -= created;
        if lacking <= DIRECT_MAX {
            return Some(*revision);
        }
    }
    None
}

/// The hits of the index for each filter, and the revision up to which all of them are complete.
async fn all_indexed(
    search: &dyn Search,
    account: AccountId,
    filters: &[search::Filter],
) -> Result<(Vec<Vec<Hit>>, Revision), MethodError> {
    let mut found = Vec::with_capacity(filters.len());
    let mut complete_up_to = Revision(u64::MAX);
    for filter in filters {
        let (hits, revision) = indexed(search, account, filter).await?;
        found.push(hits);
        complete_up_to = complete_up_to.min(revision);
    }
    Ok((found, complete_up_to))
}

/// The hits of the index.
async fn indexed(
    search: &dyn Search,
    account: AccountId,
    filter: &search::Filter,
) -> Result<(Vec<Hit>, Revision), MethodError> {
    let mut hits = Vec::new();
    let mut revision = Revision(u64::MAX);
    let mut query = search::Query::new(filter.clone());
    loop {
        let page = search.query(account, &query).await?;
        revision = revision.min(page.revision);
        hits.extend(page.hits);
        match hits.last().filter(|_| page.has_more) {
            Some(last) => query.after = Some(*last),
            None => return Ok((hits, revision)),
        }
    }
}

/// Splits a test into what emails must contain, and the rest; `None` when a text is an alternative to something else.
pub(crate) fn apart(test: &Test, conditions: &[Condition]) -> Result<Option<Apart>, MethodError> {
    let filters = of_conditions(conditions)?;
    let (mut texts, mut rest) = (Vec::new(), Vec::new());
    for conjunct in test.conjuncts() {
        match texts_alone(conjunct, &filters) {
            Some(filter) => texts.push(filter),
            None if conjunct.has_texts() => return Ok(None),
            None => rest.push(conjunct.clone()),
        }
    }
    let texts = search::Filter::And(texts);
    Ok(texts.check().is_ok().then_some(Apart { texts, rest: Test::And(rest) }))
}

/// A conjunction of conditions on text and of others.
pub(crate) struct Apart {
    pub(crate) texts: search::Filter,
    pub(crate) rest: Test,
}

/// A test as a filter of the index, if it has only conditions on text.
fn texts_alone(test: &Test, filters: &[search::Filter]) -> Option<search::Filter> {
    let all = |parts: &[Test]| {
        let parts = parts.iter().map(|part| texts_alone(part, filters)).collect::<Option<Vec<_>>>();
        parts.filter(|parts| !parts.is_empty())
    };
    match test {
        Test::And(parts) => Some(search::Filter::And(all(parts)?)),
        Test::Or(parts) => Some(search::Filter::Or(all(parts)?)),
        Test::Not(parts) => Some(search::Filter::Not(all(parts)?)),
        Test::Found(place) => filters.get(*place).cloned(),
        _ => None,
    }
}

fn of_conditions(conditions: &[Condition]) -> Result<Vec<search::Filter>, MethodError> {
    conditions.iter().map(of_condition).collect()
}

/// The conditions on text of a filter, for highlighting; all others are left out.
pub(crate) fn of_filter(filter: &Filter) -> Result<search::Filter, MethodError> {
    let all = |parts: &[Filter]| parts.iter().map(of_filter).collect::<Result<Vec<_>, _>>();
    match filter {
        Filter::And(parts) => Ok(search::Filter::And(all(parts)?)),
        Filter::Or(parts) => Ok(search::Filter::Or(all(parts)?)),
        Filter::Not(parts) => Ok(search::Filter::Not(all(parts)?)),
        Filter::Is(condition @ (Condition::Text(..) | Condition::Header { .. })) => of_condition(condition),
        Filter::Is(_) => Ok(search::Filter::And(Vec::new())),
    }
}

fn of_condition(condition: &Condition) -> Result<search::Filter, MethodError> {
    match condition {
        Condition::Text(TextField::Any, text) => Ok(search::Filter::Text(parse(text)?)),
        Condition::Text(field, text) => Ok(search::Filter::In(field_of(*field), parse(text)?)),
        Condition::Header { name, text } => {
            let name =
                HeaderName::new(name).ok_or_else(|| unsupported("the name of a header field is too long"))?;
            let text = text.as_deref().map(parse).transpose()?;
            Ok(search::Filter::Header(name, text))
        }
        _ => Err(MethodError::ServerFail), // all other conditions are not on text
    }
}

fn field_of(field: TextField) -> Field {
    match field {
        TextField::From => Field::From,
        TextField::To => Field::To,
        TextField::Cc => Field::Cc,
        TextField::Bcc => Field::Bcc,
        TextField::Subject => Field::Subject,
        TextField::Body | TextField::Any => Field::Body,
    }
}

fn parse(text: &str) -> Result<SearchText, MethodError> {
    SearchText::parse(text).map_err(|error| unsupported(error.to_string()))
}

fn unsupported(why: impl Into<String>) -> MethodError {
    MethodError::UnsupportedFilter(why.into())
}
