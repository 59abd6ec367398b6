//! The searchable text of an email, for emails that the index does not have yet, and for snippets.

use restante_core::{AccountId, Error, RecordId};
use restante_mail::{email, message, row::Row, searched_end};
use restante_records::{Get, Record, Value};
use restante_search::Document;
use tracing::warn;

use super::get::is_damage;
use crate::core::{
    Context,
    content::{Content, on_a_core},
};

/// The document of an email; `None` when there is no such email.
///
/// # Errors
/// Those of the stores; see [`is_damage`].
pub(crate) async fn read(
    context: &Context,
    account: AccountId,
    id: RecordId,
) -> Result<Option<Document>, Error> {
    let records = context.records().get(account, &Get::whole(email::KIND, vec![id])).await?;
    match records.into_iter().flatten().next() {
        Some(record) => of_record(context, record).await,
        None => Ok(None),
    }
}

/// The document of an email, for a search. Also `None` for a damaged one, which is logged: a search finds nothing in it.
pub(crate) async fn read_to_search(
    context: &Context,
    account: AccountId,
    id: RecordId,
) -> Result<Option<Document>, Error> {
    match read(context, account, id).await {
        Err(error) if is_damage(&error) => {
            warn!(account = account.0, email = id.0, %error, "an email can't be searched");
            Ok(None)
        }
        document => document,
    }
}

async fn of_record(context: &Context, record: Record) -> Result<Option<Document>, Error> {
    let row = Row::read(record.body.bytes.clone())?;
    let Some(blob) = record.body.blobs.first().copied() else { return Ok(None) };
    let received = match record.properties.values(email::RECEIVED).next() {
        Some(Value::Number(seconds)) => i64::try_from(*seconds).unwrap_or(i64::MAX),
        _ => 0,
    };
    let structure = row.structure()?;
    let end = structure.as_ref().map_or(row.size(), |structure| searched_end(&row, structure));
    let raw = context.bytes(&Content::Stored { blob, size: row.size() }, 0..end).await?;
    let document = on_a_core(raw.len(), move || {
        let structure = structure.unwrap_or_else(|| message::structure(&raw));
        restante_mail::document(record.id, received, &raw, &structure)
    });
    Ok(Some(document.await?))
}
