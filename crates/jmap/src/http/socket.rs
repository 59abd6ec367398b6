//! JMAP over a WebSocket (RFC 8887).

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use restante_directory::Login;
use restante_http::{
    MemoryPermit, Refusal,
    websocket::{CloseCode, Message, SocketLimits, SocketStream, Upgrade, WebSocket},
};
use serde_json::{Map, Value};
use tracing::warn;

use super::{App, Failure, HttpRequest, base::base_url, events::visible_accounts, login};
use crate::{
    connections::ConnectionKind,
    core::{
        Members, Object,
        content::on_a_core,
        errors::{RequestError, RequestErrorKind},
        request::{self, Request},
        write_json,
    },
    push::{Subscription, Types, Visible},
    slots::{Claim, Slot},
};

/// The sub-protocol that a client offers and the server takes (RFC 8887 §4.1).
const PROTOCOL: HeaderValue = HeaderValue::from_static("jmap");
/// How often an idle client is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// `GET` with the handshake.
pub(super) async fn socket(State(app): State<Arc<App>>, request: HttpRequest) -> Response {
    match answer(app, &request) {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

fn answer(app: Arc<App>, request: &HttpRequest) -> Result<Response, Refusal> {
    let login = login(request.extensions())?;
    let base = base_url(&app.parts, request.uri(), request.headers())?;
    let no_socket = Refusal::bad_request("expected the handshake of a WebSocket");
    let upgrade = Upgrade::read(request)?.ok_or(no_socket)?;
    if !offers_jmap(request.headers()) {
        return Err(Refusal::bad_request("Sec-WebSocket-Protocol: expected jmap"));
    }
    let message_bytes_max = app.config.request_bytes_max.get();
    let limits = SocketLimits { message_bytes_max, ping_interval: PING_INTERVAL };
    let session = Arc::new(Session { app, login, base });
    let mut response = upgrade.answer(limits, |socket| run(socket, session).boxed());
    response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    Ok(response)
}

fn offers_jmap(headers: &HeaderMap) -> bool {
    let offers =
        headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|offer| offer.to_str().ok());
    offers.flat_map(|offer| offer.split(',')).any(|name| name.trim() == "jmap")
}

/// What the requests of a socket share.
struct Session {
    app: Arc<App>,
    login: Arc<Login>,
    base: String,
}

/// A message for the client, with the slot and the memory that it holds until it is sent.
struct Outgoing {
    text: Vec<u8>,
    _held: Option<(Slot, MemoryPermit)>,
}

type Answering = FuturesUnordered<BoxFuture<'static, Outgoing>>;

async fn run(socket: &mut WebSocket<SocketStream>, session: Arc<Session>) {
    let _open = session.app.parts.connections.open(ConnectionKind::WebSocket, session.login.account);
    let mut answering = Answering::new();
    let mut pushing: Option<Pushing> = None;
    let mut closed = std::pin::pin!(session.app.closed());
    loop {
        let outgoing = tokio::select! {
            received = socket.receive() => match received {
                Ok(Message::Text(text)) => match session.take(text, &mut pushing).await {
                    Received::Request(work) => {
                        answering.push(work);
                        continue;
                    }
                    Received::Refused(error, id) => {
                        session.app.parts.metrics.count_refused(&error);
                        refused(&error, id.as_deref())
                    }
                    Received::Done => continue,
                },
                // RFC 8887 §4.2: a server that gets binary data closes the connection.
                Ok(Message::Binary(_)) => return socket.close(CloseCode::Unsupported, "texts only").await,
                Err(_) => return,
            },
            Some(outgoing) = answering.next() => outgoing,
            () = &mut closed => return socket.close(CloseCode::Away, "the server stops").await,
            change = next_change(&mut pushing) => Outgoing { text: change, _held: None },
        };
        let text = String::from_utf8(outgoing.text).unwrap_or_default(); // all JSON is written as UTF-8
        if socket.send([Message::Text(text)]).await.is_err() {
            return;
        }
    }
}

/// What a message of the client is.
enum Received {
    Request(BoxFuture<'static, Outgoing>),
    /// With the id of the request, if that is known.
    Refused(RequestError, Option<String>),
    Done,
}

impl Session {
    /// Takes a message of the client.
    async fn take(self: &Arc<Self>, text: String, pushing: &mut Option<Pushing>) -> Received {
        let parsed = on_a_core(text.len(), move || request::parse(text.as_bytes())).await;
        let mut members = match parsed {
            Ok(Ok(Value::Object(members))) => members,
            Ok(Ok(_)) => return Received::Refused(not_request("expected an object"), None),
            Ok(Err(error)) => return Received::Refused(error, None),
            Err(error) => {
                warn!(%error, "a message of a WebSocket was not read");
                return Received::Refused(RequestError::unavailable(), None);
            }
        };
        let kind = members.get("@type").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "Request" => self.begin(members),
            "WebSocketPushEnable" => match self.enable_push(&members).await {
                Ok(enabled) => {
                    *pushing = Some(enabled);
                    Received::Done
                }
                Err(error) => Received::Refused(error, None),
            },
            "WebSocketPushDisable" => {
                *pushing = None;
                Received::Done
            }
            _ => {
                let id = members.remove("id").and_then(|id| id.as_str().map(str::to_owned));
                let names = "@type: expected Request, WebSocketPushEnable or WebSocketPushDisable";
                Received::Refused(not_request(names), id)
            }
        }
    }

    /// Begins a request. Answers may overtake each other (RFC 8887 §4.3.2).
    fn begin(self: &Arc<Self>, mut members: Map<String, Value>) -> Received {
        let id = match members.remove("id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return Received::Refused(not_request("id: expected a string"), None),
        };
        let claim = self.app.claim_slot(&self.login);
        let request =
            claim.and_then(|claim| Ok((claim, Request::of(Value::Object(members), &self.app.config)?)));
        let (claim, request) = match request {
            Ok(begun) => begun,
            Err(error) => return Received::Refused(error, id),
        };
        let session = self.clone();
        Received::Request(async move { session.answer(request, id, claim).await }.boxed())
    }

    async fn answer(self: Arc<Self>, request: Request, id: Option<String>, claim: Claim) -> Outgoing {
        let slot = match self.app.request_slot(claim).await {
            Ok(slot) => slot,
            Err(error) => return refused(&error, id.as_deref()),
        };
        let mut begun = br#"{"@type":"Response""#.to_vec();
        if let Some(id) = &id {
            begun.extend_from_slice(b",\"requestId\":");
            write_json(id, &mut begun);
        }
        begun.extend_from_slice(b",\"methodResponses\":[");
        let answered = async {
            let text = self.app.run(request, self.login.clone(), &self.base, begun).await?;
            let memory = self.app.memory_of(text.len()).await?;
            Ok::<_, Failure>((text, memory))
        };
        match answered.await {
            Ok((text, memory)) => Outgoing { text, _held: Some((slot, memory)) },
            // The only errors here are those of stores and of memory; the log has the former.
            Err(_) => refused(&RequestError::unavailable(), id.as_deref()),
        }
    }

    async fn enable_push(&self, members: &Map<String, Value>) -> Result<Pushing, RequestError> {
        let wrong = || not_request("dataTypes: expected an array of names, or null");
        let types = match members.get("dataTypes") {
            None | Some(Value::Null) => Types::ALL,
            Some(Value::Array(names)) => {
                let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
                Types::of(names.ok_or_else(wrong)?)
            }
            Some(_) => return Err(wrong()),
        };
        let seen = match members.get("pushState") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(Visible::of_id(id)),
            Some(_) => return Err(not_request("pushState: expected a string")),
        };
        let subscribed = self.app.pusher.subscribe(&visible_accounts(&self.login)).await;
        let mut subscription = subscribed.map_err(|error| {
            warn!(%error, "changes can't be pushed");
            RequestError::unavailable()
        })?;
        let newest = subscription.newest();
        Ok(Pushing { subscription, types, seen: seen.unwrap_or(newest) })
    }
}

fn not_request(detail: &'static str) -> RequestError {
    RequestError::new(RequestErrorKind::NotRequest, detail)
}

fn refused(error: &RequestError, id: Option<&str>) -> Outgoing {
    let mut text = Vec::new();
    let mut object = Object::open(&mut text);
    object.field("@type", "RequestError");
    object.field("requestId", &id);
    error.write(&mut object);
    drop(object);
    Outgoing { text, _held: None }
}

/// Changes that a client wants to hear of.
struct Pushing {
    subscription: Subscription,
    types: Types,
    seen: Visible,
}

/// Waits for the next change; for ever while none are wanted.
async fn next_change(pushing: &mut Option<Pushing>) -> Vec<u8> {
    let Some(Pushing { subscription, types, seen }) = pushing else { return std::future::pending().await };
    loop {
        let newest = subscription.newest();
        if newest.differs(seen, *types) {
            let mut text = Vec::new();
            let mut change = Object::open(&mut text);
            newest.write_change(seen, *types, &mut change);
            change.field("pushState", &newest.id());
            drop(change);
            *seen = newest;
            return text;
        }
        subscription.changed().await;
    }
}
