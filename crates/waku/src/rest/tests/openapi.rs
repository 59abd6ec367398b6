use std::collections::BTreeSet;

use restante_waku_wire::message_hash;

use super::{peers::operator_route, *};
use restante_operate::{CLOSE_NAMES, LIST_NAMES};

use crate::rest::{
    about,
    live::LIVE_NAMES,
    store::{EXPORT_NAMES, STORE_NAMES},
};

const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

/// Routes that are documented here and added by the server.
const OF_THE_SERVER: &[(&str, &str)] = &[
    ("post", "/admin/v1/backup"),
    ("post", "/admin/v1/directory"),
    ("post", "/admin/v1/dkim"),
    ("post", "/admin/v1/dmarc"),
    ("post", "/admin/v1/mail"),
    ("get", "/admin/v1/mail/account"),
    ("get", "/admin/v1/mail/accounts"),
    ("get", "/admin/v1/mail/deliveries"),
    ("post", "/admin/v1/mail/moving"),
    ("get", "/admin/v1/mail/outgoing"),
    ("get", "/admin/v1/operations"),
    ("post", "/admin/v1/quarantine"),
    ("post", "/admin/v1/queue"),
    ("get", "/admin/v1/records"),
    ("get", "/admin/v1/search"),
    ("post", "/admin/v1/search/rebuild"),
];

fn document() -> Value {
    serde_json::from_str(about::OPENAPI).unwrap()
}

fn documented() -> BTreeSet<(String, String)> {
    let document = document();
    let mut operations = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            operations.insert((method.clone(), path.clone()));
        }
    }
    operations
}

fn query_names(operation: &Value) -> BTreeSet<&str> {
    let parameters = operation["parameters"].as_array().unwrap().iter();
    let in_query = parameters.filter(|parameter| parameter["in"] == "query");
    in_query.map(|parameter| parameter["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_document_is_served() {
    assert_eq!(door().await.get("/openapi.json").await.json(), document());
    assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(document()["openapi"].as_str().unwrap().starts_with("3.1."));
}

#[tokio::test]
async fn every_route_is_documented_and_every_documented_operation_has_a_route() {
    let door = door_with(RestConfig { admin: true, ..RestConfig::default() }).await;
    let routes = routes_of(&door.rest, &door.parts);
    let routed = routes.iter().map(|route| (route.method.to_owned(), route.path.to_owned()));
    let of_the_server = OF_THE_SERVER.iter().map(|(method, path)| ((*method).to_owned(), (*path).to_owned()));
    assert_eq!(documented(), routed.chain(of_the_server).collect());
}

/// Sends requests to the router itself, so that the table of routes can't be wrong about a method.
#[tokio::test]
async fn documented_methods_are_taken_and_others_are_not() {
    let of_the_server = OF_THE_SERVER.iter().map(|(method, path)| operator_route(method, path));
    let door = door_with(RestConfig { admin: true, ..RestConfig::default() }).await;
    let door = door.with_operator_routes(of_the_server.collect());
    let documented = documented();
    for (_, path) in &documented {
        for method in METHODS {
            let mut url = path.replace("{pubsubTopic}", "%2Fwaku%2F2%2Fx").replace(['{', '}'], "");
            if path.ends_with("/live") {
                url.push_str("?cursor=none"); // refused, because a stream would never end
            }
            let answer = door.send(&method.to_uppercase(), &url, "").await;
            let is_taken = answer.status != 405 && !answer.text().starts_with("no such path");
            let is_documented = documented.contains(&(method.to_owned(), path.clone()));
            assert_eq!(is_taken, is_documented, "{method} {path}: {}", answer.status);
        }
    }
}

#[test]
fn documented_names_are_those_that_are_understood() {
    let document = document();
    let store = &document["paths"]["/store/v3/messages"]["get"];
    assert_eq!(query_names(store), STORE_NAMES.iter().copied().collect());
    let live = &document["paths"]["/live"]["get"];
    assert_eq!(query_names(live), LIVE_NAMES.iter().copied().collect());
    let export = &document["paths"]["/archive/v1/export"]["get"];
    assert_eq!(query_names(export), EXPORT_NAMES.iter().copied().collect());
    let sessions = &document["paths"]["/admin/v1/sessions"];
    assert_eq!(query_names(&sessions["get"]), LIST_NAMES.iter().copied().collect());
    assert_eq!(query_names(&sessions["delete"]), CLOSE_NAMES.iter().copied().collect());
    let body = document["components"]["schemas"]["StoreQuery"]["properties"].as_object().unwrap();
    assert_eq!(
        body.keys().map(String::as_str).collect::<BTreeSet<_>>(),
        STORE_NAMES.iter().copied().collect()
    );
}

#[test]
fn references_lead_somewhere_and_nothing_is_left_over() {
    let document = document();
    let mut named = BTreeSet::new();
    collect_references(&document, &mut named);
    let components = document["components"].as_object().unwrap();
    let all: BTreeSet<String> = components
        .iter()
        .flat_map(|(kind, items)| {
            items.as_object().unwrap().keys().map(move |name| format!("#/components/{kind}/{name}"))
        })
        .collect();
    assert_eq!(named, all);
}

fn collect_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").map(|target| target.as_str().unwrap().to_owned()));
            fields.values().for_each(|field| collect_references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}

/// The examples are a conversation that works: the answer contains what was published, under the hash in the example.
#[tokio::test]
async fn the_examples_work() {
    let document = document();
    let publish = &document["paths"]["/relay/v1/messages/{pubsubTopic}"]["post"];
    let topic = publish["parameters"][0]["example"].as_str().unwrap();
    let message = &publish["requestBody"]["content"]["application/json"]["example"];
    let store = &document["paths"]["/store/v3/messages"];
    let expected = &store["get"]["responses"]["200"]["content"]["application/json"]["example"]["messages"];

    let door = door().await;
    door.clock.set(Timestamp(message["timestamp"].as_i64().unwrap()));
    let path = format!("/relay/v1/messages/{}", topic.replace('/', "%2F"));
    assert_eq!(door.post(&path, message).await.refusal(), (200, "OK"));
    assert_eq!(&door.get("/store/v3/messages?includeData=true").await.json()["messages"], expected);
    let query = &store["post"]["requestBody"]["content"]["application/json"]["example"];
    assert_eq!(&door.post("/store/v3/messages", query).await.json()["messages"], expected);
    let payload = base64_simd::STANDARD.decode_to_vec(message["payload"].as_str().unwrap()).unwrap();
    let content_topic = message["contentTopic"].as_str().unwrap();
    let hash = message_hash(topic, &payload, content_topic, b"", message["timestamp"].as_i64().unwrap());
    assert_eq!(expected[0]["messageHash"], hash.to_string());
    for parameter in store["get"]["parameters"].as_array().unwrap() {
        let name = parameter["name"].as_str().unwrap();
        let example = match &parameter["example"] {
            Value::Null => continue,
            Value::Array(items) => items[0].as_str().unwrap().to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let answer = door.get(&format!("/store/v3/messages?{name}={example}")).await;
        assert_eq!(answer.status, 200, "{name}={example}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_examples_of_health_are_what_is_answered() {
    let document = document();
    let responses = &document["paths"]["/health"]["get"]["responses"];
    let example = |status: &str| responses[status]["content"]["application/json"]["example"].clone();
    let well = |name| RoleCheck { name, problem: Arc::new(|| None) };
    let kept = || vec![well("Records"), well("Blobs")];
    assert_eq!(door().await.with_roles(kept()).get("/health").await.json(), example("200"));
    let away = super::about::door_with_health(super::about::away()).await.with_roles(kept());
    let answer = away.get("/health").await;
    assert_eq!(answer.status, 503);
    assert_eq!(serde_json::from_slice::<Value>(&answer.body).unwrap(), example("503"));
}
