//! Quota methods (RFC 9425). An account has at most one quota: the bytes of its mail, if the directory limits them.

use std::{collections::HashSet, fmt};

use restante_directory::Access;
use restante_records::{AccountId, Revision};
use serde_json::Value;

use super::{
    get,
    small_query::{Comparator, Filter, FilterLimits, QueryArgs, QueryChangesArgs, folded},
};
use crate::core::{
    Args, Capability, Context, Exchange, Members, Method, MethodError, Object, State, ids::account_id,
};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Quota/get",
        capability: Capability::Quota,
        run: |context, exchange, args| Box::pin(get(context, exchange, args)),
    },
    Method {
        name: "Quota/changes",
        capability: Capability::Quota,
        run: |context, exchange, args| Box::pin(changes(context, exchange, args)),
    },
    Method {
        name: "Quota/query",
        capability: Capability::Quota,
        run: |context, exchange, args| Box::pin(query(context, exchange, args)),
    },
    Method {
        name: "Quota/queryChanges",
        capability: Capability::Quota,
        run: |context, exchange, args| Box::pin(query_changes(context, exchange, args)),
    },
];

/// The id of the quota of bytes.
const ID: &str = "octets";
const RESOURCE_TYPE: &str = "octets";
const SCOPE: &str = "account";
/// The types that the quota counts, by their names in RFC 8620's registry.
const TYPES: [&str; 1] = ["Email"];

/// A property of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaProperty {
    Id,
    ResourceType,
    Used,
    HardLimit,
    Scope,
    Name,
    Types,
    WarnLimit,
    SoftLimit,
    Description,
}

impl QuotaProperty {
    const ALL: [Self; 10] = [
        Self::Id,
        Self::ResourceType,
        Self::Used,
        Self::HardLimit,
        Self::Scope,
        Self::Name,
        Self::Types,
        Self::WarnLimit,
        Self::SoftLimit,
        Self::Description,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::ResourceType => "resourceType",
            Self::Used => "used",
            Self::HardLimit => "hardLimit",
            Self::Scope => "scope",
            Self::Name => "name",
            Self::Types => "types",
            Self::WarnLimit => "warnLimit",
            Self::SoftLimit => "softLimit",
            Self::Description => "description",
        }
    }

    fn write(self, quota: &Quota, object: &mut Object<'_>) {
        let name = self.name();
        match self {
            Self::Id => object.field(name, ID),
            Self::ResourceType => object.field(name, RESOURCE_TYPE),
            Self::Used => object.field(name, &quota.used),
            Self::HardLimit => object.field(name, &quota.limit),
            Self::Scope => object.field(name, SCOPE),
            Self::Name => object.field(name, &quota.name),
            Self::Types => object.field(name, &TYPES),
            Self::WarnLimit | Self::SoftLimit | Self::Description => object.raw(name, "null"),
        }
    }
}

/// The quota of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Quota {
    used: u64,
    limit: u64,
    /// The address of the account.
    name: String,
}

/// The bits of a state that encode the limit.
const LIMIT_BITS: u32 = 24;

/// The state of an account's quota: the state of the used bytes, and a mark of the limit, which the directory changes without a commit
/// in the account. As a number it increases with each change of the used bytes, so states can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaState(pub(crate) u64);

impl QuotaState {
    /// `used` is the state of [`restante_mail::account`].
    pub(crate) fn new(used: Revision, limit: Option<u64>) -> Self {
        Self(used.0 << LIMIT_BITS | limit.map_or(0, mark))
    }

    fn used(self) -> u64 {
        self.0 >> LIMIT_BITS
    }

    /// 0 without a limit.
    fn limit_mark(self) -> u64 {
        self.0 & ((1 << LIMIT_BITS) - 1)
    }
}

/// A number from 1 to 2^24-1 that differs for two limits, except for one pair in 16 million: the top bits of a product with a random
/// odd number.
fn mark(limit: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (limit.wrapping_add(1).wrapping_mul(ODD) >> (u64::BITS - LIMIT_BITS)).max(1)
}

impl fmt::Display for QuotaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The quota of an account, if it has one that the request may see, and the state.
///
/// # Errors
/// Those of the stores.
async fn read(context: &Context, account: AccountId) -> Result<(Option<Quota>, QuotaState), MethodError> {
    let usage = context.mail().usage(account).await?;
    let limit = context.quota_bytes(account).await?;
    let state = QuotaState::new(usage.state, limit);
    // RFC 9425 §4.1: types whose capability the request does not use are left out, and so are quotas without remaining types.
    let Some(limit) = limit.filter(|_| context.using.has(Capability::Mail)) else { return Ok((None, state)) };
    let address = context.directory().address_of(account).await?;
    let name = address.map(|address| address.to_string()).unwrap_or_default();
    Ok((Some(Quota { used: usage.bytes, limit, name }), state))
}

/// Quota/get.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args = get::GetArgs::take(args, context, exchange, &QuotaProperty::ALL, QuotaProperty::name).await?;
    let (quota, state) = read(context, args.account).await?;
    let quotas: Vec<Quota> = quota.into_iter().collect();
    let (list, not_found) = get::select(&quotas, args.ids, |id| quotas.first().filter(|_| id == ID));
    let mut answer = get::begin(exchange, args.account, &state.to_string());
    let mut written = answer.list("list");
    for quota in list {
        let mut object = written.object();
        for property in &args.properties {
            property.write(quota, &mut object);
        }
    }
    drop(written);
    answer.field("notFound", &not_found);
    Ok(())
}

/// How the quota has changed between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuotaChange {
    None,
    Created,
    /// Only the used bytes have changed.
    Used,
    Updated,
    Destroyed,
}

impl QuotaChange {
    fn between(old: QuotaState, new: QuotaState) -> Self {
        match (old.limit_mark(), new.limit_mark()) {
            (0, 0) => Self::None,
            (0, _) => Self::Created,
            (_, 0) => Self::Destroyed,
            (old, new) if old != new => Self::Updated,
            _ if old.used() != new.used() => Self::Used,
            _ => Self::None,
        }
    }
}

/// What has changed since a state of the client.
fn since(text: &str, new: QuotaState) -> Result<QuotaChange, MethodError> {
    let old: State = text.parse().map_err(|()| MethodError::CannotCalculateChanges)?;
    let old = QuotaState(old.revision.0);
    if old.to_string() != text || old.used() > new.used() {
        return Err(MethodError::CannotCalculateChanges);
    }
    Ok(QuotaChange::between(old, new))
}

/// Quota/changes.
async fn changes(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let old: String = args.required("sinceState")?;
    let changes_max = args.nullable::<u64>("maxChanges")?;
    args.done()?;
    if changes_max == Some(0) {
        return Err(MethodError::argument("maxChanges", "expected a number above 0"));
    }
    let (_, new) = read(context, account).await?;
    let mut change = since(&old, new)?;
    if !context.using.has(Capability::Mail) {
        change = QuotaChange::None;
    }
    let ids = |is_listed: bool| if is_listed { vec![ID] } else { Vec::new() };
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    answer.field("oldState", &old);
    answer.field("newState", &new.to_string());
    answer.field("hasMoreChanges", &false);
    // S7: the used bytes change with each email, the rest hardly ever.
    let properties = (change == QuotaChange::Used).then_some([QuotaProperty::Used.name()]);
    answer.field("updatedProperties", &properties);
    answer.field("created", &ids(change == QuotaChange::Created));
    answer.field("updated", &ids(matches!(change, QuotaChange::Used | QuotaChange::Updated)));
    answer.field("destroyed", &ids(change == QuotaChange::Destroyed));
    Ok(())
}

/// A condition on a quota.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    /// Folded.
    NameContains(String),
    Scope(String),
    ResourceType(String),
    Type(String),
}

impl Condition {
    fn parse(name: &str, value: &Value) -> Result<Self, MethodError> {
        let kind: fn(String) -> Self = match name {
            "name" => |text| Self::NameContains(folded(&text)),
            "scope" => Self::Scope,
            "resourceType" => Self::ResourceType,
            "type" => Self::Type,
            _ => return Err(MethodError::UnsupportedFilter(format!("quotas have no condition {name}"))),
        };
        let text = value.as_str().ok_or_else(|| {
            MethodError::InvalidArguments(format!("the condition {name} has a value of another type"))
        })?;
        Ok(kind(text.to_owned()))
    }

    fn holds(&self, quota: &Quota) -> bool {
        match self {
            Self::NameContains(part) => folded(&quota.name).contains(part.as_str()),
            Self::Scope(scope) => scope == SCOPE,
            Self::ResourceType(resource_type) => resource_type == RESOURCE_TYPE,
            Self::Type(name) => TYPES.contains(&name.as_str()),
        }
    }
}

/// Checks a sort by `name` and `used`; with one quota, every order is the same.
fn check_sort(sort: Option<&Value>) -> Result<(), MethodError> {
    let is_known = |name: &str| matches!(name, "name" | "used").then_some(());
    Comparator::parse_all(sort, is_known).map(|_| ())
}

/// The ids of the quotas that match a filter.
fn matching(
    context: &Context,
    quota: Option<&Quota>,
    filter: Option<&Value>,
    sort: Option<&Value>,
) -> Result<Vec<String>, MethodError> {
    let filter = Filter::parse(filter, FilterLimits::of(context), Condition::parse)?;
    check_sort(sort)?;
    let matches = |quota: &&Quota| filter.holds(&|condition: &Condition| condition.holds(quota));
    Ok(quota.filter(matches).map(|_| ID.to_owned()).into_iter().collect())
}

/// Quota/query.
async fn query(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let query = QueryArgs::take(&mut args, context, exchange).await?;
    args.done()?;
    let (quota, state) = read(context, query.account).await?;
    let ids = matching(context, quota.as_ref(), query.filter.as_ref(), query.sort.as_ref())?;
    query.answer(context, exchange, &state.to_string(), true, &ids)
}

/// Quota/queryChanges.
async fn query_changes(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let query = QueryChangesArgs::take(&mut args, context).await?;
    args.done()?;
    let (quota, state) = read(context, query.account).await?;
    let ids = matching(context, quota.as_ref(), query.filter.as_ref(), query.sort.as_ref())?;
    let changed = match since(&query.since, state)? {
        QuotaChange::None => HashSet::new(),
        _ => HashSet::from([ID.to_owned()]),
    };
    query.answer(exchange, &state.to_string(), &ids, &changed)
}

#[cfg(test)]
mod tests {
    use restante_directory::Operation;
    use serde_json::json;

    use super::*;
    use crate::testing::TestServer;

    async fn call(server: &TestServer, name: &str, arguments: Value) -> Value {
        let mut arguments = arguments;
        arguments["accountId"] = json!(server.alice.id);
        server.call(name, arguments).await
    }

    async fn limit(server: &TestServer, quota_bytes: Option<u64>) {
        let address = server.alice.address.clone();
        server.operate(Operation::SetQuota { address, quota_bytes }).await;
    }

    async fn deliver(server: &TestServer) {
        let inbox =
            call(server, "Mailbox/query", json!({"filter": {"role": "inbox"}})).await["ids"][0].clone();
        let blob = server.upload("Subject: a\r\n\r\nb\r\n").await;
        let email = json!({"blobId": blob, "mailboxIds": {inbox.as_str().unwrap(): true}});
        let answer = call(server, "Email/import", json!({"emails": {"k": email}})).await;
        assert_eq!(answer["notCreated"], Value::Null, "{answer}");
    }

    #[tokio::test]
    async fn quota_get_has_what_is_used_and_the_limit_of_the_directory() {
        let server = TestServer::new().await;
        assert_eq!(call(&server, "Quota/get", json!({})).await["list"], json!([]), "there is no limit");
        limit(&server, Some(10_000)).await;
        deliver(&server).await;
        let answer = call(&server, "Quota/get", json!({"ids": ["octets", "count"]})).await;
        let expected = json!([{
            "id": "octets", "resourceType": "octets", "used": 17, "hardLimit": 10_000, "scope": "account",
            "name": "alice@example.org", "types": ["Email"], "warnLimit": null, "softLimit": null, "description": null,
        }]);
        assert_eq!((&answer["list"], &answer["notFound"]), (&expected, &json!(["count"])));
    }

    #[tokio::test]
    async fn quota_types_whose_capability_is_not_used_are_left_out() {
        let server = TestServer::new().await;
        limit(&server, Some(10_000)).await;
        let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:quota"];
        let calls = json!([["Quota/get", {"accountId": server.alice.id}, "c"]]);
        let request = json!({"using": using, "methodCalls": calls}).to_string();
        let (_, answer) = server.post(&server.alice, request).await;
        assert_eq!(answer["methodResponses"][0][1]["list"], json!([]));
    }

    #[tokio::test]
    async fn s7_quota_changes_name_used_when_nothing_else_changed() {
        let server = TestServer::new().await;
        limit(&server, Some(10_000)).await;
        let state = call(&server, "Quota/get", json!({})).await["state"].clone();
        deliver(&server).await;
        let used = call(&server, "Quota/changes", json!({ "sinceState": state })).await;
        assert_eq!((&used["updated"], &used["updatedProperties"]), (&json!(["octets"]), &json!(["used"])));
        limit(&server, Some(20_000)).await;
        let limited = call(&server, "Quota/changes", json!({"sinceState": used["newState"]})).await;
        assert_eq!((&limited["updated"], &limited["updatedProperties"]), (&json!(["octets"]), &json!(null)));
        limit(&server, None).await;
        let gone = call(&server, "Quota/changes", json!({"sinceState": limited["newState"]})).await;
        assert_eq!((&gone["destroyed"], &gone["updated"]), (&json!(["octets"]), &json!([])));
        let nothing = call(&server, "Quota/changes", json!({"sinceState": gone["newState"]})).await;
        assert_eq!((&nothing["newState"], &nothing["destroyed"]), (&gone["newState"], &json!([])));
        let answer = call(&server, "Quota/changes", json!({"sinceState": "1", "maxChanges": 0})).await;
        assert_eq!(answer["type"], "invalidArguments");
        let answer = call(&server, "Quota/changes", json!({"sinceState": "x"})).await;
        assert_eq!(answer["type"], "cannotCalculateChanges");
    }

    #[tokio::test]
    async fn quota_query_filters_and_reports_changes() {
        let server = TestServer::new().await;
        limit(&server, Some(10_000)).await;
        for (filter, is_found) in [
            (json!({}), true),
            (json!({"name": "ALICE", "scope": "account", "resourceType": "octets", "type": "Email"}), true),
            (json!({"name": "bob"}), false),
            (json!({"scope": "domain"}), false),
            (json!({"resourceType": "count"}), false),
            (json!({"type": "Calendar"}), false),
        ] {
            let arguments = json!({"filter": filter, "sort": [{"property": "used"}, {"property": "name"}]});
            let answer = call(&server, "Quota/query", arguments).await;
            assert_eq!(answer["ids"] == json!(["octets"]), is_found, "{filter}: {answer}");
        }
        assert_eq!(
            call(&server, "Quota/query", json!({"filter": {"id": "x"}})).await["type"],
            "unsupportedFilter"
        );
        assert_eq!(
            call(&server, "Quota/query", json!({"sort": [{"property": "id"}]})).await["type"],
            "unsupportedSort"
        );
        let state = call(&server, "Quota/query", json!({})).await["queryState"].clone();
        deliver(&server).await;
        let changes = call(&server, "Quota/queryChanges", json!({ "sinceQueryState": state })).await;
        assert_eq!(
            (&changes["removed"], &changes["added"]),
            (&json!(["octets"]), &json!([{"id": "octets", "index": 0}]))
        );
    }

    fn state(used: u64, limit: Option<u64>) -> QuotaState {
        QuotaState::new(Revision(used), limit)
    }

    #[test]
    fn s7_a_new_limit_is_no_change_of_what_is_used() {
        let change = |old: QuotaState, new| since(&old.to_string(), new).unwrap();
        assert_eq!(change(state(3, Some(9)), state(4, Some(9))), QuotaChange::Used);
        assert_eq!(change(state(3, Some(9)), state(4, Some(8))), QuotaChange::Updated);
        assert_eq!(change(state(3, Some(9)), state(3, None)), QuotaChange::Destroyed);
        assert_eq!(change(state(3, None), state(3, Some(9))), QuotaChange::Created);
        assert_eq!(change(state(3, None), state(4, None)), QuotaChange::None);
        assert_eq!(change(state(3, Some(9)), state(3, Some(9))), QuotaChange::None);
    }

    #[test]
    fn s2_a_state_that_was_never_given_has_no_changes() {
        let later = state(5, Some(9)).to_string();
        for text in ["", "x", "04", "4-9", "+4", &later] {
            assert_eq!(since(text, state(4, Some(9))), Err(MethodError::CannotCalculateChanges), "{text}");
        }
    }

    #[test]
    fn s4_limits_have_marks_of_their_own() {
        let marks: HashSet<u64> = (0..1_000).map(|gib| mark(gib << 30)).collect();
        assert!(
            marks.len() == 1_000 && !marks.contains(&0) && marks.iter().all(|mark| *mark < 1 << LIMIT_BITS)
        );
    }
}
