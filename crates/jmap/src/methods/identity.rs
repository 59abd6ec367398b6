//! Identity/get (RFC 8621 §6.1). Each address of an account has an identity.

use restante_mail::Identity;

use super::get;
use crate::core::{Args, Capability, Context, Exchange, IdType, Members, Method, MethodError, Object};

pub(crate) const METHODS: &[Method] = &[Method {
    name: "Identity/get",
    capability: Capability::Submission,
    run: |context, exchange, args| Box::pin(get(context, exchange, args)),
}];

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
            Self::ReplyTo | Self::Bcc => object.raw(name, "null"),
            Self::TextSignature => object.field(name, &identity.text_signature),
            Self::HtmlSignature => object.field(name, &identity.html_signature),
            Self::MayDelete => object.field(name, &identity.may_delete),
        }
    }
}

/// Identity/get.
async fn get(context: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    let args =
        get::GetArgs::take(args, context, exchange, &IdentityProperty::ALL, IdentityProperty::name).await?;
    let address = context.directory().address_of(args.account).await?;
    let addresses: Vec<String> = address.into_iter().map(|address| address.to_string()).collect();
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
mod tests {
    use serde_json::{Value, json};

    use crate::testing::TestServer;

    async fn call(server: &TestServer, arguments: Value) -> Value {
        let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:submission"];
        let call = json!(["Identity/get", arguments, "c"]);
        let request = json!({"using": using, "methodCalls": [call]});
        let (_, answer) = server.post(&server.alice, request.to_string()).await;
        answer["methodResponses"][0][1].clone()
    }

    #[tokio::test]
    async fn identity_of_the_address_is_there_from_the_beginning_and_stays_the_same() {
        let server = TestServer::new().await;
        let answer = call(&server, json!({"accountId": server.alice.id})).await;
        let id = answer["list"][0]["id"].clone();
        let expected = json!([{
            "id": id, "name": "", "email": "alice@example.org", "replyTo": null, "bcc": null, "textSignature": "",
            "htmlSignature": "", "mayDelete": false,
        }]);
        assert_eq!((&answer["list"], &answer["notFound"]), (&expected, &json!([])));
        let again = call(
            &server,
            json!({"accountId": server.alice.id, "ids": [id, "i999", "x"], "properties": ["email"]}),
        )
        .await;
        assert_eq!(again["list"], json!([{"id": id, "email": "alice@example.org"}]));
        assert_eq!((&again["notFound"], &again["state"]), (&json!(["i999", "x"]), &answer["state"]));
    }

    #[tokio::test]
    async fn q4_identities_need_the_capability_of_submissions() {
        let server = TestServer::new().await;
        let answer = server.call("Identity/get", json!({"accountId": server.alice.id})).await;
        assert_eq!(answer["type"], "unknownMethod");
    }
}
