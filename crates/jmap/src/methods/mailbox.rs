//! Mailbox methods (RFC 8621 §2).

mod properties;
mod query;
mod set;

use std::collections::HashSet;

use restante_directory::Access;
use restante_mail::{Mailbox, mailbox};
use restante_records::RecordId;

use self::{
    properties::{COUNTS, MailboxProperty, Writer},
    query::Selection,
};
use super::{
    changes, get,
    small_query::{QueryArgs, QueryChangesArgs},
};
use crate::core::{Args, Capability, Context, Exchange, IdType, Members, Method, MethodError, State};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Mailbox/get",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "Mailbox/changes",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(changes(context, exchange, args)),
    },
    Method {
        name: "Mailbox/query",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(query(context, exchange, args)),
    },
    Method {
        name: "Mailbox/queryChanges",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(query_changes(context, exchange, args)),
    },
    Method {
        name: "Mailbox/set",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(set::set(context, exchange, args)),
    },
];

/// The mailbox that an id names.
fn find<'m>(mailboxes: &'m [Mailbox], id: &str) -> Option<&'m Mailbox> {
    let record = IdType::Mailbox.record(id)?;
    let index = mailboxes.binary_search_by_key(&record, |mailbox| mailbox.id).ok()?;
    mailboxes.get(index)
}

/// Mailbox/get: one read of the mailboxes, whose records have their counts.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &MailboxProperty::ALL, MailboxProperty::name).await?;
    let (mailboxes, state) = context.mail().mailboxes(args.account).await?;
    let (list, not_found) = get::select(&mailboxes, args.ids, |id| find(&mailboxes, id));
    context.check_objects_in_get(list.len())?;
    let writer = Writer::new(context.access(args.account).unwrap_or(Access::Read));
    let mut answer = get::begin(exchange, args.account, &state.0.to_string());
    let mut written = answer.list("list");
    for mailbox in list {
        let mut object = written.object();
        for property in &args.properties {
            writer.write(*property, mailbox, &mut object);
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

/// Mailbox/changes: names the count properties when nothing else has changed in the updated mailboxes (S7), since the client's state
/// or, between two pages, since the state at which the first page began.
async fn changes(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let mut page = changes::page(context, account, mailbox::KIND, &mut args).await?;
    args.done()?;
    let (mailboxes, _) = context.mail().mailboxes(account).await?;
    // RFC 8621 §2.2: a mailbox that changes twice is only on the page of its last change, which may be one of counts.
    let known = page.old.known();
    if page.has_more {
        page.new = page.new.paged_since(known);
    }
    let have_counts_changed = |id: &RecordId| {
        let index = mailboxes.binary_search_by_key(id, |mailbox| mailbox.id);
        let mailbox = index.ok().and_then(|index| mailboxes.get(index));
        mailbox.is_some_and(|mailbox| mailbox.shape <= known)
    };
    let is_counts = !page.updated.is_empty() && page.updated.iter().all(have_counts_changed);
    let mut answer = exchange.answers.begin();
    page.write(account, IdType::Mailbox, &mut answer);
    answer.field("updatedProperties", &is_counts.then_some(COUNTS));
    Ok(())
}

/// Mailbox/query.
async fn query(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let query = QueryArgs::take(&mut args, context, exchange).await?;
    let selection = Selection::take(&mut args, context, query.filter.as_ref(), query.sort.as_ref())?;
    args.done()?;
    let (mailboxes, state) = context.mail().mailboxes(query.account).await?;
    let ids = ids(&selection, &mailboxes);
    query.answer(context, exchange, &state.0.to_string(), selection.can_calculate_changes(), &ids)
}

fn ids(selection: &Selection, mailboxes: &[Mailbox]) -> Vec<String> {
    selection.of(mailboxes).into_iter().map(|id| IdType::Mailbox.id(id)).collect()
}

/// Mailbox/queryChanges.
async fn query_changes(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let query = QueryChangesArgs::take(&mut args, context).await?;
    let selection = Selection::take(&mut args, context, query.filter.as_ref(), query.sort.as_ref())?;
    args.done()?;
    if !selection.can_calculate_changes() {
        return Err(MethodError::CannotCalculateChanges);
    }
    let since: State = query.since.parse().map_err(|()| MethodError::CannotCalculateChanges)?;
    let (mailboxes, state) = context.mail().mailboxes(query.account).await?;
    let since = since.whole().filter(|since| *since <= state).ok_or(MethodError::CannotCalculateChanges)?;
    let mut changed = changes::changed_since(context, query.account, mailbox::KIND, since).await?;
    // Filters and sorts do not depend on counts, and most changes are changes of counts.
    let have_counts_changed = |mailbox: &&Mailbox| mailbox.shape <= since;
    for mailbox in mailboxes.iter().filter(have_counts_changed) {
        changed.remove(&mailbox.id);
    }
    let changed: HashSet<String> = changed.into_iter().map(|id| IdType::Mailbox.id(id)).collect();
    query.answer(exchange, &state.0.to_string(), &ids(&selection, &mailboxes), &changed)
}

#[cfg(test)]
mod tests;
