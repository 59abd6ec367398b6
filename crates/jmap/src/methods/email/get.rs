//! Email/get (RFC 8621 §4.2).

use restante_core::{AccountId, Error, ErrorKind, RecordId};
use restante_directory::Access;
use restante_mail::{Keywords, email, keyword, message::Structure, row::Row};
use restante_records::{Get, Query, Record, Value, get_each};
use tracing::warn;

use crate::core::{
    Args, BlobRef, Context, Exchange, IdType, Members, MethodError, State, content::Content, ids,
};

use super::{
    load::{self, Loaded},
    properties::{EmailProperty, Wanted},
    render::{Ready, Rendering, Stored},
};

/// Emails are read in chunks of this many; records read these without another thread.
const CHUNK: usize = 32;

/// Email/get.
pub(crate) async fn get(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let asked = args.ids_to_get(context, &exchange.creations)?;
    let wanted = Wanted::take(&mut args, true)?;
    args.done()?;
    let with_row = wanted.needs_row();
    let of = |ids: &[RecordId]| Get { kind: email::KIND, ids: ids.to_vec(), with_body: with_row };
    // The state is read before the emails or with the first ones, so that /changes since that state misses nothing.
    let (state, ids, mut not_found, mut first) = match asked {
        Some(asked) => {
            let (ids, not_found) = known(asked);
            let begin = ids.get(..CHUNK).unwrap_or(&ids);
            match context.records().get_with_state(account, &of(begin)).await {
                Ok((state, first)) => (state, ids, not_found, Some(first.into_iter().map(Ok).collect())),
                // The emails are read one by one below.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    (context.records().states(account).await?.of(email::KIND), ids, not_found, None)
                }
                Err(error) => return Err(error.into()),
            }
        }
        None => {
            let state = context.records().states(account).await?.of(email::KIND);
            (state, all(context, account).await?, Vec::new(), None)
        }
    };
    let bytes_max = context.config.response_bytes_max.get();
    let bytes_before = exchange.answers.bytes();
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &ids::account_id(account));
    answer.field("state", &State::from(state));
    let mut list = answer.list("list");
    let mut bytes = bytes_before;
    let mut unreadable = Unreadable::default();
    for chunk in ids.chunks(CHUNK) {
        let records = match first.take() {
            Some(records) => records,
            None => get_each(context.records(), account, &of(chunk)).await?,
        };
        let keywords = keywords(context, account, &records, &wanted).await?;
        for (id, record) in chunk.iter().zip(records) {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    unreadable.note(account, *id, &error);
                    continue;
                }
            };
            let Some(record) = record.filter(is_visible) else {
                not_found.push(IdType::Email.id(*id));
                continue;
            };
            let message = match read(context, account, &record, &wanted, with_row).await {
                Err(error) if is_damage(&error) => {
                    unreadable.note(account, *id, &error);
                    continue;
                }
                read => read?,
            };
            let out = list.item();
            let from = out.len();
            write(&record, message.as_ref(), &keywords, &wanted, out);
            unreadable.is_any_read = true;
            bytes += out.len() - from;
            if bytes > bytes_max {
                let text = format!(
                    "the answer has more than {bytes_max} bytes: ask for fewer emails or smaller bodies"
                );
                return Err(MethodError::RequestTooLarge(text));
            }
        }
    }
    drop(list);
    answer.field("notFound", &not_found);
    unreadable.into_outcome()
}

/// The damaged emails of one call. RFC 8620 has no error for one object of a /get: they are left out of the response.
#[derive(Default)]
struct Unreadable {
    is_any: bool,
    is_any_read: bool,
}

impl Unreadable {
    fn note(&mut self, account: AccountId, id: RecordId, error: &Error) {
        warn!(account = account.0, email = id.0, %error, "an email can't be read and is left out of an answer");
        self.is_any = true;
    }

    /// The call fails when all its emails are damaged.
    fn into_outcome(self) -> Result<(), MethodError> {
        match self.is_any && !self.is_any_read {
            true => Err(MethodError::ServerFail),
            false => Ok(()),
        }
    }
}

/// Properties of one email as Email/get returns them; `None` when there is no such email.
pub(crate) async fn render(
    context: &Context,
    account: AccountId,
    id: RecordId,
    properties: &[&str],
) -> Result<Option<Vec<u8>>, MethodError> {
    let wanted = Wanted::named(properties)?;
    let records = context.records().get(account, &Get::whole(email::KIND, vec![id])).await?;
    let records: Vec<_> = records.into_iter().map(Ok).collect();
    let keywords = keywords(context, account, &records, &wanted).await?;
    let Some(record) = records.into_iter().flatten().flatten().find(is_visible) else { return Ok(None) };
    let message = read(context, account, &record, &wanted, true).await?;
    let mut out = Vec::new();
    write(&record, message.as_ref(), &keywords, &wanted, &mut out);
    Ok(Some(out))
}

/// The record ids, and the ids that can't be those of an email.
fn known(asked: Vec<String>) -> (Vec<RecordId>, Vec<String>) {
    let mut found = Vec::with_capacity(asked.len());
    let mut not_found = Vec::new();
    for id in asked {
        match IdType::Email.record(&id) {
            Some(record) => found.push(record),
            None => not_found.push(id),
        }
    }
    (found, not_found)
}

/// All emails, if they are not too many (G1).
async fn all(context: &Context, account: AccountId) -> Result<Vec<RecordId>, MethodError> {
    let max = context.config.objects_in_get_max.get();
    let mut query = Query::new(email::KIND, email::BY_RECEIVED).descending();
    let mut ids = Vec::new();
    loop {
        let page = context.records().query(account, &query).await?;
        ids.extend(page.ids);
        context.check_objects_in_get(ids.len().min(max + 1))?;
        match page.next {
            Some(next) => query = query.after(next),
            None => return Ok(ids),
        }
    }
}

/// An email without a mailbox exists only for IMAP, until it is expunged.
fn is_visible(record: &Record) -> bool {
    record.properties.values(email::MAILBOX).next().is_some()
}

/// The names of the keywords of these emails, if they are requested and not all well-known.
async fn keywords(
    context: &Context,
    account: AccountId,
    records: &[Result<Option<Record>, Error>],
    wanted: &Wanted,
) -> Result<std::sync::Arc<Keywords>, MethodError> {
    if !wanted.has(&EmailProperty::Keywords) {
        return Ok(std::sync::Arc::default());
    }
    let values =
        records.iter().flatten().flatten().flat_map(|record| record.properties.values(email::KEYWORD));
    let mut numbers: Vec<u64> = values
        .filter_map(|value| match value {
            Value::Number(number) if *number >= keyword::FIRST_OTHER => Some(*number),
            _ => None,
        })
        .collect();
    if numbers.is_empty() {
        return Ok(std::sync::Arc::default());
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(context.mail().keywords(account, &numbers).await?)
}

/// What is requested of an email and is not in its properties.
struct Message {
    row: Row,
    loaded: Loaded,
}

/// Reads what is requested of an email and is not in its properties; `None` when that is nothing.
async fn read(
    context: &Context,
    account: AccountId,
    record: &Record,
    wanted: &Wanted,
    with_row: bool,
) -> Result<Option<Message>, Error> {
    if !with_row {
        return Ok(None);
    }
    let row = Row::read(record.body.bytes.clone())?;
    let blob = record.body.blobs.first().copied();
    let blob = blob.ok_or_else(|| Error::corrupt(format!("the email {} refers to no blob", record.id.0)))?;
    let content = Content::Stored { blob, size: row.size() };
    let loaded = match load::beside_row(context, &content, &row, wanted).await {
        Err(error) if is_damage(&error) => {
            let loaded = load::without_message(&row, wanted)?.ok_or_else(|| error.duplicate())?;
            warn!(account = account.0, email = record.id.0, %error, "the message of an email can't be read");
            loaded
        }
        loaded => loaded?,
    };
    Ok(Some(Message { row, loaded }))
}

/// Whether only this email is damaged, so that others may still be readable.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

fn write(
    record: &Record,
    message: Option<&Message>,
    keywords: &Keywords,
    wanted: &Wanted,
    out: &mut Vec<u8>,
) {
    let stored = Some(Stored { id: record.id, properties: &record.properties, keywords });
    let blob = &BlobRef::email(record.id);
    let no_parts = Structure::default();
    let rendering = match message {
        Some(Message { row, loaded }) => Rendering {
            stored,
            blob,
            size: row.size(),
            ready: loaded.message.as_ref().map_or(Ready::Row(row), Ready::Message),
            structure: &loaded.structure,
            raw: &loaded.raw,
            values: &loaded.values,
        },
        None => Rendering {
            stored,
            blob,
            size: 0,
            ready: Ready::Unread,
            structure: &no_parts,
            raw: &[],
            values: &[],
        },
    };
    rendering.write(wanted, out);
}
