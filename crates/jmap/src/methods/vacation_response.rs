//! VacationResponse methods (RFC 8621 §8). Each account has one, with the id `singleton`.

use restante_mail::{MailError, VacationResponse};
use serde_json::{Map, Value};

use super::{
    email_edit::Invalid,
    get,
    mail_errors::of_edit,
    set_states::{self, Transitions},
};
use crate::core::{
    Args, Argument, Capability, Context, Exchange, Members, Method, MethodError, Object, Patch, SetAnswer,
    SetError, State,
    args::{UtcDate, write_utc_date},
};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "VacationResponse/get",
        capability: Capability::VacationResponse,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "VacationResponse/set",
        capability: Capability::VacationResponse,
        run: |context, exchange, args| Box::pin(set(context, exchange, args)),
    },
];

/// The id of the one object.
const ID: &str = "singleton";
/// The longest subject.
const SUBJECT_BYTES_MAX: usize = 998;

/// A property of a vacation response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VacationProperty {
    Id,
    IsEnabled,
    FromDate,
    ToDate,
    Subject,
    TextBody,
    HtmlBody,
}

impl VacationProperty {
    const ALL: [Self; 7] = [
        Self::Id,
        Self::IsEnabled,
        Self::FromDate,
        Self::ToDate,
        Self::Subject,
        Self::TextBody,
        Self::HtmlBody,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::IsEnabled => "isEnabled",
            Self::FromDate => "fromDate",
            Self::ToDate => "toDate",
            Self::Subject => "subject",
            Self::TextBody => "textBody",
            Self::HtmlBody => "htmlBody",
        }
    }

    fn write(self, response: &VacationResponse, object: &mut Object<'_>) {
        let name = self.name();
        match self {
            Self::Id => object.field(name, ID),
            Self::IsEnabled => object.field(name, &response.is_enabled),
            Self::FromDate => write_date(name, response.from_date, object),
            Self::ToDate => write_date(name, response.to_date, object),
            Self::Subject => object.field(name, &response.subject),
            Self::TextBody => object.field(name, &response.text_body),
            Self::HtmlBody => object.field(name, &response.html_body),
        }
    }
}

fn write_date(name: &str, date: Option<i64>, object: &mut Object<'_>) {
    match date {
        None => object.raw(name, "null"),
        Some(seconds) => write_utc_date(seconds, object.member(name)),
    }
}

/// VacationResponse/get.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &VacationProperty::ALL, VacationProperty::name).await?;
    let (response, state) = context.mail().vacation(args.account).await?;
    let responses = [response];
    let (list, not_found) = get::select(&responses, args.ids, |id| responses.first().filter(|_| id == ID));
    let mut answer = get::begin(exchange, args.account, &state.0.to_string());
    let mut written = answer.list("list");
    for response in list {
        let mut object = written.object();
        for property in &args.properties {
            property.write(response, &mut object);
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

/// Why an edit of the response was not made.
enum SetFailure {
    Object(SetError),
    Mail(MailError),
}

impl From<MailError> for SetFailure {
    fn from(error: MailError) -> Self {
        Self::Mail(error)
    }
}

/// VacationResponse/set.
async fn set(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let set = args.set(context).await?;
    args.done()?;
    let expected = set_states::expected(set.if_in_state.as_deref())?;
    let (_, state) = context.mail().vacation(set.account).await?;
    if expected.is_some_and(|expected| expected != state) {
        return Err(MethodError::StateMismatch);
    }
    let mut answer = SetAnswer::new(set.account, State::from(state));
    let mut transitions = Transitions::default();
    // RFC 8620 §5.3: there is exactly one, which can't be created or destroyed.
    let singleton = || SetError::new("singleton");
    answer.not_created.extend(set.create.into_iter().map(|(key, _)| (key, singleton())));
    let is_one = |id: &str| exchange.creations.resolve(id) == Some(ID);
    for (id, value) in set.update {
        if !is_one(&id) {
            answer.not_updated.push((id, SetError::not_found()));
            continue;
        }
        let Value::Object(patch) = value else {
            answer.not_updated.push((id, SetError::invalid_patch("expected an object")));
            continue;
        };
        let change = |response: &mut VacationResponse| {
            *response = patched(response, patch.clone()).map_err(SetFailure::Object)?;
            Ok(())
        };
        match context.mail().set_vacation(set.account, expected, change).await {
            Ok(states) => {
                transitions.add(states);
                answer.updated.push((ID.to_owned(), None));
            }
            Err(SetFailure::Object(error)) => answer.not_updated.push((id, error)),
            Err(SetFailure::Mail(error)) => {
                answer.not_updated.push((id, of_edit(error, !transitions.is_empty())?))
            }
        }
    }
    for id in exchange.creations.distinct(set.destroy) {
        let error = if id == ID { singleton() } else { SetError::not_found() };
        answer.not_destroyed.push((id, error));
    }
    transitions.put(&mut answer);
    answer.write(&mut exchange.answers);
    Ok(())
}

/// The response after a patch.
fn patched(before: &VacationResponse, patch: Map<String, Value>) -> Result<VacationResponse, SetError> {
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    for property in VacationProperty::ALL {
        property.write(before, &mut object);
    }
    drop(object);
    let mut after: Map<String, Value> = serde_json::from_slice(&json).unwrap_or_default(); // written as an object
    Patch::read(patch)?.apply(&mut after)?;
    let mut invalid = Invalid::default();
    if after.remove("id") != Some(Value::from(ID)) {
        invalid.add("id", "is set by the server");
    }
    let is_enabled = after.remove("isEnabled").as_ref().and_then(Value::as_bool);
    if is_enabled.is_none() {
        invalid.add("isEnabled", "must be true or false");
    }
    let response = VacationResponse {
        is_enabled: is_enabled.unwrap_or_default(),
        enabled_since: before.enabled_since,
        from_date: take(&mut after, "fromDate", read_date, &mut invalid),
        to_date: take(&mut after, "toDate", read_date, &mut invalid),
        subject: take(&mut after, "subject", read_subject, &mut invalid),
        text_body: take(&mut after, "textBody", read_text, &mut invalid),
        html_body: take(&mut after, "htmlBody", read_text, &mut invalid),
    };
    for name in after.keys() {
        invalid.add(name, "is no property of vacation responses");
    }
    if invalid.is_empty() { Ok(response) } else { Err(invalid.into_error()) }
}

/// Takes a property that may be null; an invalid value is added to `invalid`.
fn take<T>(
    object: &mut Map<String, Value>,
    name: &str,
    read: fn(Value) -> Result<T, &'static str>,
    invalid: &mut Invalid,
) -> Option<T> {
    let value = object.remove(name).filter(|value| !value.is_null())?;
    read(value).inspect_err(|problem| invalid.add(name, *problem)).ok()
}

fn read_date(value: Value) -> Result<i64, &'static str> {
    let date = UtcDate::read(value);
    let date = date.ok_or("must be a valid time in UTC, as 2014-10-30T06:12:00Z, or null")?;
    Ok(date.0)
}

/// The subject becomes a field of a header.
fn read_subject(value: Value) -> Result<String, &'static str> {
    let subject = read_text(value)?;
    if subject.chars().any(char::is_control) {
        return Err("must be one line without control characters");
    }
    if subject.len() > SUBJECT_BYTES_MAX {
        return Err("must have at most 998 bytes");
    }
    Ok(subject)
}

fn read_text(value: Value) -> Result<String, &'static str> {
    String::read(value).ok_or("must be a text or null")
}

#[cfg(test)]
mod tests;
