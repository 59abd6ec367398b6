//! Filter subscriptions of REST clients. In nwaku this interface queries another node; here this node itself is the filter
//! service, and the messages of a subscription wait in the cache until they are fetched.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{Request, StatusCode, Uri},
    response::Response,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{App, cache::Feed, path, reply, reply::Refusal, topics};

/// The longest request id; ids are repeated in answers.
const REQUEST_ID_BYTES_MAX: usize = 256;
/// The request id in the answer to a request that could not be read, as in nwaku.
const UNKNOWN_REQUEST_ID: &str = "unknown";

/// `POST` and `PUT /filter/v2/subscriptions`: an existing subscription is unchanged.
pub(crate) async fn subscribe(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    reply_to(&app, request, async |asked, deadline| {
        topics::subscribe(&app, &feeds_of(&app, &asked)?, deadline).await
    })
    .await
}

/// `DELETE /filter/v2/subscriptions`
pub(crate) async fn unsubscribe(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    reply_to(&app, request, async |asked, deadline| end(&app, &feeds_of(&app, &asked)?, deadline).await).await
}

/// `DELETE /filter/v2/subscriptions/all`
pub(crate) async fn unsubscribe_all(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    reply_to(&app, request, async |_, deadline| end(&app, &app.rest.cache.filter_feeds(), deadline).await)
        .await
}

/// `GET /filter/v2/subscriptions/{requestId}`: whether there is any subscription.
pub(crate) async fn ping(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let request_id = match path::last(&uri, "requestId") {
        Ok(id) if id.len() <= REQUEST_ID_BYTES_MAX => id,
        Ok(_) => return answer(UNKNOWN_REQUEST_ID, Err(long_id())),
        Err(refusal) => return answer(UNKNOWN_REQUEST_ID, Err(refusal)),
    };
    let is_any = !app.rest.cache.filter_feeds().is_empty();
    answer(&request_id, if is_any { Ok(()) } else { Err(not_subscribed()) })
}

/// `GET /filter/v2/messages/{contentTopic}`, from any pubsub topic.
pub(crate) async fn messages(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let content_topic = path::last(&uri, "contentTopic")?;
    topics::fetch(&app, |cache| cache.fetch_filter(&content_topic), not_subscribed_to()).await
}

/// `GET /filter/v2/messages/{pubsubTopic}/{contentTopic}`
pub(crate) async fn messages_on(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let content_topic = path::last(&uri, "contentTopic")?;
    let pubsub_topic = path::last_but_one(&uri, "pubsubTopic")?;
    let feed = Feed::Filter(topics::topics_of(&app, Some(&pubsub_topic), &content_topic)?);
    topics::fetch(&app, |cache| cache.fetch(&feed), not_subscribed_to()).await
}

/// `12/WAKU2-FILTER`: a client that ends a subscription that does not exist gets an error.
async fn end(app: &App, feeds: &[Feed], deadline: Instant) -> Result<(), Refusal> {
    let ended = topics::unsubscribe(app, feeds, deadline).await?;
    if ended == 0 { Err(not_subscribed()) } else { Ok(()) }
}

fn not_subscribed() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no such subscription")
}

/// nwaku answers 400 here, and 404 on the route of relay's messages.
fn not_subscribed_to() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "not subscribed to this content topic: POST it to the subscriptions first",
    )
}

fn long_id() -> Refusal {
    Refusal::field("requestId", "is longer than 256 bytes")
}

/// Handles a request, and answers with its id if it could be read.
async fn reply_to(
    app: &App,
    request: Request<Body>,
    act: impl AsyncFnOnce(Value, Instant) -> Result<(), Refusal>,
) -> Response {
    let deadline = app.deadline();
    match read(request.into_body(), deadline).await {
        Ok((request_id, asked)) => answer(&request_id, act(asked, deadline).await),
        Err(refusal) => answer(UNKNOWN_REQUEST_ID, Err(refusal)),
    }
}

async fn read(body: Body, deadline: Instant) -> Result<(String, Value), Refusal> {
    let json = topics::read_body(body, deadline).await?;
    let asked = serde_json::from_slice(&json).map_err(|error| Refusal::json(&error))?;
    Ok((read_request_id(&asked)?, asked))
}

fn answer(request_id: &str, acted: Result<(), Refusal>) -> Response {
    let (status, desc) = match acted {
        Ok(()) => (StatusCode::OK, "OK".into()),
        Err(refusal) => (refusal.status, refusal.text),
    };
    reply::json_with(status, json!({"requestId": request_id, "statusDesc": desc}).to_string())
}

fn read_request_id(request: &Value) -> Result<String, Refusal> {
    match request.get("requestId") {
        Some(Value::String(id)) if id.len() > REQUEST_ID_BYTES_MAX => Err(long_id()),
        Some(Value::String(id)) => Ok(id.clone()),
        None | Some(Value::Null) => Err(Refusal::field("requestId", "is missing")),
        Some(_) => Err(Refusal::field("requestId", "expected a string")),
    }
}

fn feeds_of(app: &App, request: &Value) -> Result<Vec<Feed>, Refusal> {
    let pubsub_topic = match request.get("pubsubTopic") {
        None | Some(Value::Null) => None,
        Some(Value::String(topic)) => Some(&**topic).filter(|topic| !topic.is_empty()),
        Some(_) => return Err(Refusal::field("pubsubTopic", "expected a string")),
    };
    let expected = || Refusal::field("contentFilters", "expected an array of content topics");
    let filters = request.get("contentFilters").and_then(Value::as_array).ok_or_else(expected)?;
    if filters.is_empty() {
        return Err(Refusal::field("contentFilters", "is empty"));
    }
    if filters.len() > topics::TOPICS_MAX {
        return Err(Refusal::field("contentFilters", &topics::too_many_topics(filters.len())));
    }
    let mut feeds = Vec::with_capacity(filters.len());
    for filter in filters {
        let content_topic = filter.as_str().ok_or_else(expected)?;
        feeds.push(Feed::Filter(topics::topics_of(app, pubsub_topic, content_topic)?));
    }
    Ok(feeds)
}
