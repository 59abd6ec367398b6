//! What the /get methods of small objects share (RFC 8620 §5.1).

use restante_directory::Access;
use restante_records::AccountId;

use crate::core::{Args, Context, Exchange, Members, MethodError, answers::Answer, ids::account_id};

/// The arguments that every /get has.
#[derive(Debug)]
pub(super) struct GetArgs<P> {
    pub(super) account: AccountId,
    /// `None` for all.
    pub(super) ids: Option<Vec<String>>,
    /// The properties to return: by default all. The id, the first of `all`, is always included.
    pub(super) properties: Vec<P>,
}

impl<P: Copy + PartialEq> GetArgs<P> {
    /// Takes `accountId`, `ids` and `properties`; `all` has all properties, `name` returns the name of one.
    pub(super) async fn take(
        mut args: Args,
        context: &Context,
        exchange: &Exchange,
        all: &[P],
        name: impl Fn(P) -> &'static str,
    ) -> Result<Self, MethodError> {
        let account = args.account(context, Access::Read).await?;
        let ids = args.ids_to_get(context, &exchange.creations)?;
        let asked = args.nullable::<Vec<String>>("properties")?;
        args.done()?;
        let Some(asked) = asked else { return Ok(Self { account, ids, properties: all.to_vec() }) };
        let mut properties: Vec<P> = all.first().copied().into_iter().collect();
        for asked in asked {
            let Some(property) = all.iter().copied().find(|property| name(*property) == asked) else {
                return Err(MethodError::argument("properties", "names a property that there is not"));
            };
            if !properties.contains(&property) {
                properties.push(property);
            }
        }
        Ok(Self { account, ids, properties })
    }
}

/// Begins the answer of a /get.
pub(super) fn begin<'e>(exchange: &'e mut Exchange, account: AccountId, state: &str) -> Answer<'e> {
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    answer.field("state", state);
    answer
}

/// Selects from all objects those that are requested, in the order of the ids, and the ids that no object has.
pub(super) fn select<'o, T>(
    objects: &'o [T],
    asked: Option<Vec<String>>,
    find: impl Fn(&str) -> Option<&'o T>,
) -> (Vec<&'o T>, Vec<String>) {
    let Some(asked) = asked else { return (objects.iter().collect(), Vec::new()) };
    let mut list = Vec::with_capacity(asked.len());
    let mut not_found = Vec::new();
    for id in asked {
        match find(&id) {
            Some(object) => list.push(object),
            None => not_found.push(id),
        }
    }
    (list, not_found)
}
