//! EmailSubmission methods (RFC 8621 §7).

mod address;
mod create;
mod envelope;
mod properties;
mod query;
mod set;

use restante_directory::Access;
use restante_mail::submission;
use restante_records::RecordId;

use self::{properties::SubmissionProperty, query::Selection};
use super::{
    changes, get,
    small_query::{QueryArgs, QueryChangesArgs},
};
use crate::core::{Args, Capability, Context, Exchange, IdType, Members, Method, MethodError, State};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "EmailSubmission/get",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "EmailSubmission/changes",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(changes(context, exchange, args)),
    },
    Method {
        name: "EmailSubmission/query",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(query(context, exchange, args)),
    },
    Method {
        name: "EmailSubmission/queryChanges",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(query_changes(context, exchange, args)),
    },
    Method {
        name: "EmailSubmission/set",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(set::set(context, exchange, args)),
    },
];

/// EmailSubmission/get.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &SubmissionProperty::ALL, SubmissionProperty::name)
            .await?;
    let state = context.records().states(args.account).await?.of(submission::KIND);
    let mut not_found = Vec::new();
    let records: Vec<RecordId> = match args.ids {
        None => {
            let (heads, _) = context.mail().submission_heads(args.account).await?;
            context.check_objects_in_get(heads.len())?;
            heads.into_iter().map(|head| head.id).collect()
        }
        Some(ids) => {
            let mut records = Vec::with_capacity(ids.len());
            for id in ids {
                match IdType::EmailSubmission.record(&id) {
                    Some(record) => records.push(record),
                    None => not_found.push(id),
                }
            }
            records
        }
    };
    let found = context.mail().submissions(args.account, &records).await?;
    let mut answer = get::begin(exchange, args.account, &State::from(state).to_string());
    let mut written = answer.list("list");
    for (record, submission) in records.into_iter().zip(&found) {
        let Some(submission) = submission else {
            not_found.push(IdType::EmailSubmission.id(record));
            continue;
        };
        let mut object = written.object();
        for property in &args.properties {
            object.field(property.name(), &property.value(submission));
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

/// EmailSubmission/changes.
async fn changes(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let page = changes::page(context, account, submission::KIND, &mut args).await?;
    args.done()?;
    let mut answer = exchange.answers.begin();
    page.write(account, IdType::EmailSubmission, &mut answer);
    Ok(())
}

/// EmailSubmission/query.
async fn query(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let query = QueryArgs::take(&mut args, context, exchange).await?;
    args.done()?;
    let selection =
        Selection::parse(context, &exchange.creations, query.filter.as_ref(), query.sort.as_ref())?;
    let (heads, state) = context.mail().submission_heads(query.account).await?;
    query.answer(context, exchange, &state.0.to_string(), true, &selection.of(&heads))
}

/// EmailSubmission/queryChanges.
async fn query_changes(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let query = QueryChangesArgs::take(&mut args, context).await?;
    args.done()?;
    let selection =
        Selection::parse(context, &exchange.creations, query.filter.as_ref(), query.sort.as_ref())?;
    let since: State = query.since.parse().map_err(|()| MethodError::CannotCalculateChanges)?;
    let (heads, state) = context.mail().submission_heads(query.account).await?;
    let since = since.whole().filter(|since| *since <= state).ok_or(MethodError::CannotCalculateChanges)?;
    let changed = changes::changed_since(context, query.account, submission::KIND, since).await?;
    let changed = changed.into_iter().map(|id| IdType::EmailSubmission.id(id)).collect();
    query.answer(exchange, &state.0.to_string(), &selection.of(&heads), &changed)
}

#[cfg(test)]
mod tests;
