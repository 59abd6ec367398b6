//! JMAP over a WebSocket (RFC 8887).

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use restante_directory::Login;
use restante_http::{
    MemoryPermit, Refusal,
    websocket::{CloseCode, Message, SocketLimits, SocketStream, Upgrade, WebSocket},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tracing::warn;

use super::{App, Failure, HttpRequest, base::base_url, events::visible_accounts, login};
use crate::{
    connections::{ConnectionKind, OpenConnection},
    core::{
        Members, Object,
        content::on_a_core,
        errors::{RequestError, RequestErrorKind},
        request::{self, Request},
        write_json,
    },
    push::{Subscription, Types, Visible},
    slots::Slot,
};

/// The sub-protocol that a client offers and the server accepts (RFC 8887 §4.1).
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
    let message_timeout = Duration::from_millis(app.config.body_timeout_ms.get());
    let limits = SocketLimits { message_bytes_max, ping_interval: PING_INTERVAL, message_timeout };
    // Sockets count from the handshake on, so that many handshakes at once do not pass the bound.
    let open = app.open_connection(ConnectionKind::WebSocket, &login)?;
    let session = Arc::new(Session { app, login, base, _open: open });
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
    _open: OpenConnection,
}

/// A message for the client, with the slot and the memory that it holds until it is sent.
struct Outgoing {
    text: Vec<u8>,
    _held: Option<(Slot, MemoryPermit)>,
}

/// The result of a message of the client.
enum Done {
    /// There is something to send.
    Outgoing(Outgoing),
    /// Pushes were enabled or disabled. The next message is read only after that.
    Push(Option<Pushing>, OwnedSemaphorePermit),
}

async fn run(socket: &mut WebSocket<SocketStream>, session: Arc<Session>) {
    // Each message has a task of its own: no request holds stores or locks while a slow client receives a response. The tasks end with
    // the socket.
    let mut tasks = JoinSet::new();
    // Held by the task of a message until it is parsed, so that at most one message of a client waits for a slot.
    let reading = Arc::new(Semaphore::new(1));
    let mut pushing: Option<Pushing> = None;
    let mut closed = std::pin::pin!(session.app.closed());
    loop {
        let outgoing = tokio::select! {
            biased; // pending responses are sent first, so that only a few accumulate
            () = &mut closed => return socket.close(CloseCode::Away, "the server stops").await,
            Some(done) = tasks.join_next() => match done {
                Ok(Done::Outgoing(outgoing)) => outgoing,
                Ok(Done::Push(wanted, _reading)) => {
                    pushing = wanted;
                    continue;
                }
                Err(error) => {
                    warn!(%error, "the task of a message of a WebSocket failed");
                    return socket.close(CloseCode::Error, "a message was not answered").await;
                }
            },
            change = next_change(&mut pushing) => Outgoing { text: change, _held: None },
            received = receive(socket, &reading) => match received {
                Some((Message::Text(text), permit)) => {
                    tasks.spawn(session.clone().serve(text, permit));
                    continue;
                }
                // RFC 8887 §4.2: a server that gets binary data closes the connection.
                Some((Message::Binary(_), _)) => {
                    return socket.close(CloseCode::Unsupported, "texts only").await;
                }
                None => return,
            },
        };
        let text = String::from_utf8(outgoing.text).unwrap_or_default(); // all JSON is written as UTF-8
        if socket.send([Message::Text(text)]).await.is_err() {
            return;
        }
    }
}

/// The next message, once the previous one was parsed; `None` when the socket is closed. Cancel safe.
async fn receive(
    socket: &mut WebSocket<SocketStream>,
    reading: &Arc<Semaphore>,
) -> Option<(Message, OwnedSemaphorePermit)> {
    let permit = reading.clone().acquire_owned().await.ok()?;
    Some((socket.receive().await.ok()?, permit))
}

/// The id of a request that is not parsed, if it has one: values are skipped without allocating memory.
fn id_of(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        id: Option<String>,
    }
    serde_json::from_str::<Named>(text).ok()?.id
}

impl Session {
    /// Processes a message. Responses may overtake each other (RFC 8887 §4.3.2).
    async fn serve(self: Arc<Self>, text: String, reading: OwnedSemaphorePermit) -> Done {
        let slot = match self.slot().await {
            Ok(slot) => slot,
            Err(error) => {
                let id = on_a_core(text.len(), move || id_of(&text)).await;
                return self.refuse(&error, id.unwrap_or_default().as_deref());
            }
        };
        let parsed = on_a_core(text.len(), move || request::parse(text.as_bytes())).await;
        let mut members = match parsed {
            Ok(Ok(Value::Object(members))) => members,
            Ok(Ok(_)) => return self.refuse(&not_request("expected an object"), None),
            Ok(Err(error)) => return self.refuse(&error, None),
            Err(error) => {
                warn!(%error, "a message of a WebSocket was not read");
                return self.refuse(&RequestError::unavailable(), None);
            }
        };
        let kind = members.get("@type").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "Request" => self.serve_request(members, slot, reading).await,
            "WebSocketPushEnable" => match self.enable_push(&members).await {
                Ok(enabled) => Done::Push(Some(enabled), reading),
                Err(error) => self.refuse(&error, None),
            },
            "WebSocketPushDisable" => Done::Push(None, reading),
            _ => {
                let id = members.remove("id").and_then(|id| id.as_str().map(str::to_owned));
                let names = "@type: expected Request, WebSocketPushEnable or WebSocketPushDisable";
                self.refuse(&not_request(names), id.as_deref())
            }
        }
    }

    /// A slot of the user, acquired before a message is parsed: the parsed form takes many times the memory of its text.
    async fn slot(&self) -> Result<Slot, RequestError> {
        self.app.request_slot(self.app.claim_slot(&self.login)?).await
    }

    async fn serve_request(
        &self,
        mut members: Map<String, Value>,
        slot: Slot,
        reading: OwnedSemaphorePermit,
    ) -> Done {
        let id = match members.remove("id") {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id),
            Some(_) => return self.refuse(&not_request("id: expected a string"), None),
        };
        let request = match Request::of(Value::Object(members), &self.app.config) {
            Ok(request) => request,
            Err(error) => return self.refuse(&error, id.as_deref()),
        };
        drop(reading);
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
        Done::Outgoing(match answered.await {
            Ok((text, memory)) => Outgoing { text, _held: Some((slot, memory)) },
            // The only errors here are those of stores and of memory; the former are logged.
            Err(_) => refused(&RequestError::unavailable(), id.as_deref()),
        })
    }

    /// Refuses a message, with the id of the request, if that is known.
    fn refuse(&self, error: &RequestError, id: Option<&str>) -> Done {
        self.app.parts.metrics.count_refused(error);
        Done::Outgoing(refused(error, id))
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

/// The changes that a client subscribed to.
struct Pushing {
    subscription: Subscription,
    types: Types,
    seen: Visible,
}

/// Waits for the next change; forever without a subscription.
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
