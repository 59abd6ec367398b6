//! Identity methods (RFC 8621 §6). Each address of an account has an identity.

mod set;

use restante_directory::Access;
use restante_mail::{Identity, NamedAddress, identity};
use restante_records::AccountId;

use super::{changes, get};
use crate::core::{Args, Capability, Context, Exchange, IdType, Members, Method, MethodError, Object};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Identity/get",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "Identity/changes",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(changes(context, exchange, args)),
    },
    Method {
        name: "Identity/set",
        capability: Capability::Submission,
        run: |context, exchange, args| Box::pin(set::set(context, exchange, args)),
    },
];

/// A property of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdentityProperty {
    Id,
    Name,
    Email,
    ReplyTo,
    Bcc,
    TextSignature,
    HtmlSignature,
    MayDelete,
}

impl IdentityProperty {
    const ALL: [Self; 8] = [
        Self::Id,
        Self::Name,
        Self::Email,
        Self::ReplyTo,
        Self::Bcc,
        Self::TextSignature,
        Self::HtmlSignature,
        Self::MayDelete,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Name => "name",
            Self::Email => "email",
            Self::ReplyTo => "replyTo",
            Self::Bcc => "bcc",
            Self::TextSignature => "textSignature",
            Self::HtmlSignature => "htmlSignature",
            Self::MayDelete => "mayDelete",
        }
    }

    fn write(self, identity: &Identity, object: &mut Object<'_>) {
        let name = self.name();
        match self {
            Self::Id => IdType::Identity.write(identity.id, object.member(name)),
            Self::Name => object.field(name, &identity.name),
            Self::Email => object.field(name, &identity.email),
            Self::ReplyTo => write_addresses(name, identity.reply_to.as_deref(), object),
            Self::Bcc => write_addresses(name, identity.bcc.as_deref(), object),
            Self::TextSignature => object.field(name, &identity.text_signature),
            Self::HtmlSignature => object.field(name, &identity.html_signature),
            Self::MayDelete => object.field(name, &identity.may_delete),
        }
    }
}

fn write_addresses(name: &str, addresses: Option<&[NamedAddress]>, object: &mut Object<'_>) {
    object.field(name, &addresses);
}

/// The addresses of an account; their identities can't be destroyed.
async fn addresses(context: &Context, account: AccountId) -> Result<Vec<String>, MethodError> {
    let addresses = context.directory().addresses_of(account).await?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}

/// Identity/changes.
async fn changes(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    // A new address of the account gets its identity here, which is a change.
    context.mail().identities(account, &addresses(context, account).await?).await?;
    let page = changes::page(context, account, identity::KIND, &mut args).await?;
    args.done()?;
    let mut answer = exchange.answers.begin();
    page.write(account, IdType::Identity, &mut answer);
    Ok(())
}

/// Identity/get.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &IdentityProperty::ALL, IdentityProperty::name).await?;
    let addresses = addresses(context, args.account).await?;
    let (identities, state) = context.mail().identities(args.account, &addresses).await?;
    let find = |id: &str| {
        let record = IdType::Identity.record(id)?;
        identities.iter().find(|identity| identity.id == record)
    };
    let (list, not_found) = get::select(&identities, args.ids, find);
    context.check_objects_in_get(list.len())?;
    let mut answer = get::begin(exchange, args.account, &state.0.to_string());
    let mut written = answer.list("list");
    for identity in list {
        let mut object = written.object();
        for property in &args.properties {
            property.write(identity, &mut object);
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

#[cfg(test)]
mod tests;
