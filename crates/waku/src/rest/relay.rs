//! Relay subscriptions, by pubsub topic and (auto) by content topic, and the messages received by them.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{Request, StatusCode, Uri},
    response::Response,
};

use super::{App, cache::Feed, path, reply, reply::Refusal, topics};

/// `POST /relay/v1/subscriptions`
pub(crate) async fn subscribe(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    follow(&app, request, relay_feeds).await
}

/// `DELETE /relay/v1/subscriptions`
pub(crate) async fn unsubscribe(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    leave(&app, request, relay_feeds).await
}

/// `POST /relay/v1/auto/subscriptions`
pub(crate) async fn subscribe_auto(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    follow(&app, request, auto_feeds).await
}

/// `DELETE /relay/v1/auto/subscriptions`
pub(crate) async fn unsubscribe_auto(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    leave(&app, request, auto_feeds).await
}

/// `GET /relay/v1/messages/{pubsubTopic}`
pub(crate) async fn messages(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let pubsub_topic = path::last(&uri, "pubsubTopic")?;
    fetch(&app, &Feed::Relay((&*pubsub_topic).into())).await
}

/// `GET /relay/v1/auto/messages/{contentTopic}`
pub(crate) async fn messages_auto(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Refusal> {
    let content_topic = path::last(&uri, "contentTopic")?;
    fetch(&app, &Feed::Auto(topics::topics_of(&app, None, &content_topic)?)).await
}

/// The feeds for a list of topics in a request.
type FeedsOf = fn(&App, &[String]) -> Result<Vec<Feed>, Refusal>;

fn relay_feeds(app: &App, topics: &[String]) -> Result<Vec<Feed>, Refusal> {
    topics.iter().map(|topic| topics::relay_feed(app, topic)).collect()
}

fn auto_feeds(app: &App, topics: &[String]) -> Result<Vec<Feed>, Refusal> {
    topics.iter().map(|topic| topics::topics_of(app, None, topic).map(Feed::Auto)).collect()
}

async fn follow(app: &App, request: Request<Body>, feeds_of: FeedsOf) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let topics = topics::read_list(request.into_body(), deadline).await?;
    topics::subscribe(app, &feeds_of(app, &topics)?, deadline).await?;
    Ok(reply::text("OK"))
}

async fn leave(app: &App, request: Request<Body>, feeds_of: FeedsOf) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let topics = topics::read_list(request.into_body(), deadline).await?;
    topics::unsubscribe(app, &feeds_of(app, &topics)?, deadline).await?;
    Ok(reply::text("OK"))
}

async fn fetch(app: &App, feed: &Feed) -> Result<Response, Refusal> {
    let text = "not subscribed to this topic: POST it to the subscriptions first";
    topics::fetch(app, |cache| cache.fetch(feed), Refusal::new(StatusCode::NOT_FOUND, text)).await
}
