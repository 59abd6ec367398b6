//! Blob/lookup (RFC 9404 §4.3).

use restante_core::Error;
use restante_directory::Access;
use restante_mail::{EmailState, email};
use restante_records::{AccountId, Get};

use crate::core::{
    Args, BlobRef, Capability, Context, Exchange, IdType, Members, MethodError,
    ids::{BlobBase, account_id},
};

/// The types whose objects are searched for blobs. The names are in the session object, too.
pub(crate) const TYPES: [&str; 3] = ["Mailbox", "Thread", "Email"];

pub(super) async fn lookup(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let mut names: Vec<String> = args.required("typeNames")?;
    let ids = args.ids_to_get(context, &exchange.creations)?;
    let ids = ids.ok_or_else(|| MethodError::argument("ids", "expected an array"))?;
    args.done()?;
    if let Some(unknown) = names.iter().find(|name| !TYPES.contains(&name.as_str())) {
        let unknown = restante_http::reply::cut(unknown, 60);
        return Err(MethodError::UnknownDataType(format!("blobs are not looked up in the type {unknown}")));
    }
    // RFC 9404 §4.3: all of these types belong to this capability.
    if let Some(name) = names.first().filter(|_| !context.using.has(Capability::Mail)) {
        let uri = Capability::Mail.uri();
        return Err(MethodError::UnknownDataType(format!("the type {name} needs the capability {uri}")));
    }
    names.sort_unstable();
    names.dedup();
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    let mut list = answer.list("list");
    for id in ids {
        let found = find(context, account, &id).await?;
        let mut object = list.object();
        object.field("id", &id);
        let mut matched = object.object("matchedIds");
        for name in &names {
            matched.field(name, &found.of(name));
        }
    }
    Ok(())
}

/// The objects that refer to a blob.
#[derive(Default)]
struct Found {
    emails: Vec<String>,
    threads: Vec<String>,
    mailboxes: Vec<String>,
}

impl Found {
    fn of(&self, type_name: &str) -> &[String] {
        match type_name {
            "Mailbox" => &self.mailboxes,
            "Thread" => &self.threads,
            _ => &self.emails,
        }
    }
}

/// A blob id names the email that it belongs to; an upload belongs to none.
async fn find(context: &Context, account: AccountId, id: &str) -> Result<Found, Error> {
    let Ok(BlobRef { base: BlobBase::Email(email), .. }) = id.parse::<BlobRef>() else {
        return Ok(Found::default());
    };
    let found = context.records().get(account, &Get::small(email::KIND, vec![email])).await?;
    let Some(record) = found.into_iter().flatten().next() else { return Ok(Found::default()) };
    let state = EmailState::of(&record)?;
    Ok(Found {
        emails: vec![IdType::Email.id(email)],
        threads: vec![IdType::Thread.id(state.thread)],
        mailboxes: state.mailboxes.iter().map(|mailbox| IdType::Mailbox.id(*mailbox)).collect(),
    })
}
