//! PushSubscription/get and PushSubscription/set (RFC 8620 §7.2).
//!
//! A subscription belongs to the password or the token that created it: other log-ins can't see it. These methods have no accounts and
//! no states.

mod set;

use crate::{
    core::{
        Args, Capability, Context, Exchange, IdType, Members, Method, MethodError, Object,
        args::write_utc_date,
    },
    push::subscriptions::{Found, list},
};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "PushSubscription/get",
        capability: Capability::Core,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "PushSubscription/set",
        capability: Capability::Core,
        run: |context, exchange, args| Box::pin(set::set(context, exchange, args)),
    },
];

/// A property that is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PushProperty {
    Id,
    DeviceClientId,
    VerificationCode,
    Expires,
    Types,
}

impl PushProperty {
    const ALL: [Self; 5] =
        [Self::Id, Self::DeviceClientId, Self::VerificationCode, Self::Expires, Self::Types];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::DeviceClientId => "deviceClientId",
            Self::VerificationCode => "verificationCode",
            Self::Expires => "expires",
            Self::Types => "types",
        }
    }

    fn write(self, found: &Found, out: &mut Object<'_>) {
        let (name, stored) = (self.name(), &found.stored);
        match self {
            Self::Id => IdType::PushSubscription.write(found.id, out.member(name)),
            Self::DeviceClientId => out.field(name, &stored.device_client_id),
            // Only a client that has already sent the code back may see it.
            Self::VerificationCode => out.field(name, &stored.is_verified.then_some(&stored.code)),
            Self::Expires => write_expires(stored.expires, out),
            Self::Types => out.field(name, &stored.types),
        }
    }
}

fn write_expires(expires: Option<i64>, out: &mut Object<'_>) {
    match expires {
        None => out.raw("expires", "null"),
        Some(seconds) => write_utc_date(seconds, out.member("expires")),
    }
}

/// PushSubscription/get.
async fn get(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let ids = args.ids_to_get(context, &exchange.creations)?;
    let asked = args.nullable::<Vec<String>>("properties")?;
    args.done()?;
    let properties = properties(asked)?;
    let found = visible(context).await?;
    let find = |id: &str| {
        let record = IdType::PushSubscription.record(id)?;
        found.iter().find(|found| found.id == record)
    };
    let (listed, not_found) = super::get::select(&found, ids, find);
    context.check_objects_in_get(listed.len())?;
    let mut answer = exchange.answers.begin();
    let mut written = answer.list("list");
    for found in listed {
        let mut object = written.object();
        for property in &properties {
            property.write(found, &mut object);
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

/// The properties to return; always includes the id.
fn properties(asked: Option<Vec<String>>) -> Result<Vec<PushProperty>, MethodError> {
    let Some(asked) = asked else { return Ok(PushProperty::ALL.to_vec()) };
    let mut properties = vec![PushProperty::Id];
    for asked in asked {
        // RFC 8620 §7.2.1: they may hold secrets of the client.
        if ["url", "keys"].contains(&asked.as_str()) {
            return Err(MethodError::Forbidden("url and keys are never returned"));
        }
        let property = PushProperty::ALL.into_iter().find(|property| property.name() == asked);
        let property = property
            .ok_or_else(|| MethodError::argument("properties", "names a property that there is not"))?;
        if !properties.contains(&property) {
            properties.push(property);
        }
    }
    Ok(properties)
}

/// The subscriptions of the log-in that have not expired.
async fn visible(context: &Context) -> Result<Vec<Found>, MethodError> {
    let mut found = list(context.mail(), context.login.account).await?.subscriptions;
    found.retain(|found| is_visible(context, found));
    Ok(found)
}

fn is_visible(context: &Context, found: &Found) -> bool {
    found.stored.credential == context.login.credential() && found.ends > context.clock().now().seconds()
}

#[cfg(test)]
mod tests;
