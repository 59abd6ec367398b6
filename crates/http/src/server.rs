//! Serves a router over HTTP/1.1 and HTTP/2, with bounds on heads, open requests and slow clients.
//!
//! A connection whose first bytes are HTTP/2's preface uses HTTP/2, others HTTP/1.1: over TLS, ALPN has negotiated it, and
//! without TLS the client knows beforehand (RFC 9113 section 3.3).

mod answer;
mod first_bytes;
mod open_requests;

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    http::{Version, header, uri::Authority},
    response::IntoResponse,
};
use futures_util::{
    TryFutureExt,
    future::{BoxFuture, poll_fn, ready},
};
use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use restante_net::{Activity, Connection, Listener, Stopping, Stream};
use tokio::time::timeout;
use tower::Service;
use tracing::debug;

use crate::{
    Refusal,
    websocket::{Http2Upgrade, SocketStream, UpgradeSlot},
};
pub(crate) use answer::Tracked;
use answer::{Answer, PIECE_BYTES, Progress};
use first_bytes::{FirstBytes, Protocol};
use open_requests::OpenRequests;

/// The bytes of a connection.
pub type ClientStream = FirstBytes<Stream>;

/// The longest head of a request: long lists of content topics may be in the query.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most requests at a time on an HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// Streams that a client has reset before they were accepted, and streams that were reset for the client's errors. More of them
/// close the connection: rapid reset, CVE-2023-44487, and related attacks. These are hyper's defaults.
const PENDING_RESETS_MAX: usize = 20;
const LOCAL_RESETS_MAX: usize = 1024;
/// The most bytes of bodies that are in flight to handlers: of one stream, and of a connection.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 512 << 10;
/// How often a silent HTTP/2 connection is pinged, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The bounds of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// How long a client may take to send a request's head, and how long a connection of HTTP/1.1 may wait for one.
    pub header_timeout: Duration,
    /// How long a client may take to read each 64 KiB of an answer.
    pub stall_timeout: Duration,
    /// The most requests at a time, on all connections. Further ones get 503.
    pub requests_max: usize,
    /// The most requests of one address at a time. An IPv6 /64 counts as one address; loopback is not limited. Further ones get
    /// 503.
    pub requests_per_address_max: usize,
}

/// In the extensions of each request: the client's address.
#[derive(Clone, Copy, Debug)]
pub struct Client(pub SocketAddr);

/// Serves the router on a listener until `shutdown` completes. Then idle connections are closed, and `serve` returns after the last
/// request, or after the listener's stop timeout.
pub async fn serve(
    listener: Listener,
    router: Router,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()> + Send,
) {
    let open = Arc::new(OpenRequests::new(limits.requests_max, limits.requests_per_address_max));
    let handler = move |connection: Connection| {
        let Connection { stream, peer, activity, stopping, .. } = connection;
        let requests =
            Requests { router: router.clone(), client: Client(peer), activity, open: open.clone() };
        Box::pin(run(stream, requests, stopping, limits))
    };
    listener.serve(handler, shutdown).await;
}

async fn run(stream: Stream, requests: Requests, mut stopping: Stopping, limits: ServerLimits) {
    let begun = tokio::select! {
        begun = timeout(limits.header_timeout, FirstBytes::read(stream)) => begun,
        () = stopping.begun() => return,
    };
    match begun {
        Ok(Ok((Protocol::Http1, stream))) => serve_http1(stream, requests, stopping, limits).await,
        Ok(Ok((Protocol::Http2, stream))) => serve_http2(stream, requests, stopping, limits).await,
        Ok(Err(error)) => debug!(%error, "connection broke off"),
        Err(_) => debug!("closed: no request came in time"),
    }
}

async fn serve_http1(stream: ClientStream, requests: Requests, mut stopping: Stopping, limits: ServerLimits) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    builder.max_header_size(HEAD_BYTES_MAX);
    let (upgrade, activity) = (UpgradeSlot::default(), requests.activity.clone());
    let service = service_fn({
        let upgrade = upgrade.clone();
        move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(upgrade.clone());
            requests.answer(request, None)
        }
    });
    let mut connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut is_ending = false;
    loop {
        tokio::select! {
            result = poll_fn(|context| connection.poll_without_shutdown(context)) => match result {
                Ok(()) => break,
                Err(error) => return debug!(%error, "connection broke off"),
            },
            () = stopping.begun(), if !is_ending => {
                is_ending = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    if let Some(serve) = upgrade.take() {
        let _in_use = activity.begin();
        let socket = SocketStream::Http1(Box::new(stream));
        let SocketStream::Http1(after) = serve(socket, parts.read_buf.into()).await else { return };
        stream = *after;
    }
    stream.into_inner().close(&mut stopping).await;
}

async fn serve_http2(stream: ClientStream, requests: Requests, mut stopping: Stopping, limits: ServerLimits) {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    builder.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_BYTES_MAX as u32);
    builder
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX);
    builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
    builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES).max_send_buf_size(PIECE_BYTES);
    builder.enable_connect_protocol();
    let (progress, activity) = (Arc::new(Progress::default()), requests.activity.clone());
    let service = service_fn({
        let progress = progress.clone();
        move |request: Request<Incoming>| requests.answer(request, Some(progress.clone()))
    });
    let mut connection = Box::pin(builder.serve_connection(TokioIo::new(stream), service));
    let mut is_ending = false;
    loop {
        tokio::select! {
            result = connection.as_mut() => {
                if let Err(error) = result {
                    debug!(%error, "connection broke off");
                }
                return;
            }
            () = progress.stalled(limits.stall_timeout, &activity) => {
                return debug!("closed: the client reads too slowly");
            }
            () = stopping.begun(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

const NO_HOST: Refusal = Refusal::bad_request("a request has one Host header (RFC 9112 section 3.2)");
const NO_SOCKET: Refusal = Refusal::bad_request("this path serves no WebSocket");

/// The state that all requests of a connection share.
struct Requests {
    router: Router,
    client: Client,
    activity: Arc<Activity>,
    open: Arc<OpenRequests>,
}

impl Requests {
    /// Answers a request; the connection is in use until the answer is written.
    fn answer(
        &self,
        mut request: Request<Incoming>,
        progress: Option<Arc<Progress>>,
    ) -> BoxFuture<'static, Result<Response<Answer>, Infallible>> {
        let in_flight = self.activity.begin();
        let accepted = check_host(&request).and_then(|()| self.open.acquire(self.client.0));
        let accepted = accepted.and_then(|permit| Ok((permit, Http2Upgrade::read(&mut request)?)));
        let (permit, upgrade) = match accepted {
            Ok(accepted) => accepted,
            Err(refusal) => {
                let answer = |body| Answer::new(body, in_flight, None, progress);
                return Box::pin(ready(Ok(refusal.into_response().map(answer))));
            }
        };
        request.extensions_mut().insert(self.client);
        request.extensions_mut().insert(self.activity.clone());
        let (answering, activity) = (self.router.clone().call(request), self.activity.clone());
        Box::pin(answering.map_ok(move |response| {
            let is_connect = upgrade.is_some();
            let Some(socket) = upgrade.and_then(Http2Upgrade::accepted) else {
                // A success would open the stream (RFC 8441 section 5).
                let is_no_socket = is_connect && response.status().is_success();
                let response = if is_no_socket { NO_SOCKET.into_response() } else { response };
                return response.map(|body| Answer::new(body, in_flight, Some(permit), progress));
            };
            // The socket counts as an open request until it ends: nothing else bounds sockets over HTTP/2.
            let tracked = Tracked::new(progress.unwrap_or_default());
            tokio::spawn(async move {
                let _held = (activity.begin(), permit);
                socket.run(tracked).await;
            });
            let mut response = response.map(|body| Answer::new(body, in_flight, None, None));
            // RFC 9110 section 9.3.6: a successful answer to CONNECT has no length.
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response
        }))
    }
}

/// RFC 9112 section 3.2: an HTTP/1.1 request has one valid `Host`, which may be empty. One of HTTP/1.0 may have none.
fn check_host<B>(request: &Request<B>) -> Result<(), Refusal> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let is_valid = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.is_empty() || Authority::try_from(host.as_bytes()).is_ok(),
        (None, _) => request.version() != Version::HTTP_11,
        (Some(_), Some(_)) => false,
    };
    is_valid.then_some(()).ok_or(NO_HOST)
}

#[cfg(test)]
mod tests;
