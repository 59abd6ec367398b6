//! Email/query and Email/queryChanges (RFC 8621 §4.4 and §4.5).
//!
//! The usual query, a mailbox sorted by receivedAt, walks an index ([`plan`]). All others read the emails that may pass ([`result`])
//! and cache the result ([`views`]); a cached result is updated with the changes since.

pub(crate) mod filter;
pub(crate) mod fuzz;
mod list;
mod newest;
mod plan;
mod result;
mod select;
pub(crate) mod sort;
mod test;
pub(crate) mod text;
mod views;

use restante_core::{RecordId, Revision};
use restante_directory::Access;
use serde_json::Value;

use crate::core::{Args, Context, Creations, Exchange, Id, IdType, Members, MethodError, State, ids};

use self::{
    filter::Filter,
    result::Selection,
    select::{Selected, SinceResult, Start, Window},
    sort::Sort,
};

pub(crate) use self::views::{QueryMetrics, Views};

/// Email/query.
pub(crate) async fn query(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let (filter, sort) = filter_and_sort(context, &exchange.creations, &mut args)?;
    let position = args.optional::<i64>("position")?.unwrap_or_default();
    let anchor = args.nullable::<Id>("anchor")?;
    let offset = args.optional::<i64>("anchorOffset")?.unwrap_or_default();
    let limit = args.nullable::<u64>("limit")?;
    let with_total = args.optional::<bool>("calculateTotal")?.unwrap_or_default();
    let collapse = args.optional::<bool>("collapseThreads")?.unwrap_or_default();
    args.done()?;
    let start = match anchor {
        Some(anchor) => Start::Anchor(email_id(&exchange.creations, &anchor), offset),
        None => Start::Position(position),
    };
    let (limit, enforced) = limited(limit, context.config.query_limit_max.get());
    let selection = Selection::new(context, account, &filter, sort, collapse).await?;
    let selected = selection.select(Window { start, limit }, with_total).await?;
    let Selected { state, is_exact, partial_at, position, ids, total } = selected;
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &ids::account_id(account));
    // L5: once the index has caught up, more is found although no email has changed. No changes are calculated from such a state.
    let partial = partial_at.map(|index| format!("-i{}", index.0)).unwrap_or_default();
    answer.field("queryState", &format!("{}{partial}", State::from(state)));
    answer.field("canCalculateChanges", &(is_exact && selection.can_calculate_changes()));
    answer.field("position", &position);
    write_ids(&ids, answer.member("ids"));
    if let Some(total) = total {
        answer.field("total", &total);
    }
    if let Some(limit) = enforced {
        answer.field("limit", &limit);
    }
    Ok(())
}

/// Email/queryChanges.
pub(crate) async fn query_changes(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let (filter, sort) = filter_and_sort(context, &exchange.creations, &mut args)?;
    let old_state = args.required::<String>("sinceQueryState")?;
    let max = args.nullable::<u64>("maxChanges")?;
    if max == Some(0) {
        return Err(MethodError::argument("maxChanges", "expected a number above 0"));
    }
    let up_to = args.nullable::<Id>("upToId")?;
    let with_total = args.optional::<bool>("calculateTotal")?.unwrap_or_default();
    let collapse = args.optional::<bool>("collapseThreads")?.unwrap_or_default();
    args.done()?;
    let since = SinceResult {
        state: query_state(&old_state).ok_or(MethodError::CannotCalculateChanges)?,
        max,
        up_to: up_to.and_then(|id| email_id(&exchange.creations, &id)),
        with_total,
    };
    let selection = Selection::new(context, account, &filter, sort, collapse).await?;
    let changes = selection.changes(since).await?;
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &ids::account_id(account));
    answer.field("oldQueryState", &old_state);
    answer.field("newQueryState", &State::from(changes.state));
    if let Some(total) = changes.total {
        answer.field("total", &total);
    }
    write_ids(&changes.removed, answer.member("removed"));
    let mut added = answer.list("added");
    for (index, id) in &changes.added {
        let mut item = added.object();
        IdType::Email.write(RecordId(*id), item.member("id"));
        item.field("index", index);
    }
    Ok(())
}

fn filter_and_sort(
    context: &Context,
    creations: &Creations,
    args: &mut Args,
) -> Result<(Filter, Sort), MethodError> {
    let filter = args.nullable::<Value>("filter")?.unwrap_or_default();
    let sort = args.nullable::<Value>("sort")?.unwrap_or_default();
    Ok((Filter::parse(&filter, creations, &context.config)?, Sort::parse(&sort)?))
}

/// The email that an id names; `None` when no email can have that id.
fn email_id(creations: &Creations, id: &Id) -> Option<RecordId> {
    creations.resolve(id.as_str()).and_then(|id| IdType::Email.record(id))
}

/// The state of a result is that of all emails (L5).
fn query_state(text: &str) -> Option<Revision> {
    let state: State = text.parse().ok()?;
    state.whole()
}

/// The effective limit, and whether the server set it (L1).
fn limited(asked: Option<u64>, max: usize) -> (usize, Option<usize>) {
    let asked = asked.and_then(|limit| usize::try_from(limit).ok());
    match asked.filter(|limit| *limit <= max) {
        Some(limit) => (limit, None),
        None => (max, Some(max)),
    }
}

fn write_ids(ids: &[u64], out: &mut Vec<u8>) {
    out.push(b'[');
    for (place, id) in ids.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        IdType::Email.write(RecordId(*id), out);
    }
    out.push(b']');
}
