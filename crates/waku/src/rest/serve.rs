//! HTTP on the connections of a listener.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
};
use bytes::BytesMut;
use futures_util::{TryFutureExt, future::BoxFuture};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use restante_net::{Activity, Connection, InFlight, Listener, Stopping, Stream};
use tower::Service;
use tracing::debug;

use super::RestConfig;

/// The longest head of a request: long lists of content topics may stand in the query.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Serves the router on a listener until `shutdown` completes. Then no connection is accepted any more, idle ones are
/// closed, running requests are finished, and `serve` returns after the last of them.
pub async fn serve(
    listener: Listener,
    router: Router,
    config: &RestConfig,
    shutdown: impl Future<Output = ()> + Send,
) {
    let header_timeout = Duration::from_millis(config.header_timeout_ms);
    let handler = move |connection| serve_connection(connection, router.clone(), header_timeout);
    listener.serve(handler, shutdown).await;
}

/// Goes with every request: its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client(pub(super) SocketAddr);

/// Goes with every request: a handler that answers 101 (switching protocols) sets here what then uses the connection. It gets
/// the stream and what was already read of it, and returns the stream to be closed.
#[derive(Clone, Default)]
pub(super) struct Switch(Arc<Mutex<Option<GoOn>>>);

/// What goes on with a connection.
type GoOn = Box<dyn FnOnce(Stream, BytesMut) -> BoxFuture<'static, Stream> + Send>;

impl Switch {
    pub(super) fn to(
        &self,
        go_on: impl FnOnce(Stream, BytesMut) -> BoxFuture<'static, Stream> + Send + 'static,
    ) {
        *self.0.lock() = Some(Box::new(go_on));
    }
}

async fn serve_connection(connection: Connection, router: Router, header_timeout: Duration) {
    let Connection { stream, peer, activity, mut stopping, .. } = connection;
    let switch = Switch::default();
    let requests =
        Requests { router, client: Client(peer), activity: activity.clone(), switch: switch.clone() };
    let (stream, read) = match Box::pin(requests.serve(stream, header_timeout, &mut stopping)).await {
        Ok(parts) => parts,
        Err(error) => return debug!(%error, "connection broke off"),
    };
    let go_on = switch.0.lock().take();
    let stream = match go_on {
        Some(go_on) => {
            let _in_flight = activity.begin(); // for as long as the connection
            go_on(stream, read).await
        }
        None => stream,
    };
    stream.close(&mut stopping).await;
}

/// What answers the requests of a connection.
struct Requests {
    router: Router,
    client: Client,
    activity: Arc<Activity>,
    switch: Switch,
}

impl Requests {
    /// Answers requests until either side ends the connection, or a handler has switched it. Returns the stream, and what was read
    /// of it and not used.
    async fn serve(
        self,
        stream: Stream,
        header_timeout: Duration,
        stopping: &mut Stopping,
    ) -> hyper::Result<(Stream, BytesMut)> {
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            let in_flight = self.activity.begin();
            request.extensions_mut().insert(self.activity.clone());
            request.extensions_mut().insert(self.client);
            request.extensions_mut().insert(self.switch.clone());
            let mut router = self.router.clone();
            router
                .call(request)
                .map_ok(|response| response.map(|body| Answer { body, _in_flight: in_flight }))
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(header_timeout);
        builder.max_header_size(HEAD_BYTES_MAX);
        let mut connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut is_ending = false;
        loop {
            let step = std::future::poll_fn(|context| connection.poll_without_shutdown(context));
            tokio::select! {
                result = step => {
                    result?;
                    let parts = connection.into_parts();
                    return Ok((parts.io.into_inner(), parts.read_buf.into()));
                }
                () = stopping.begun(), if !is_ending => {
                    is_ending = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
    }
}

/// The body of an answer. It is dropped when the connection has all of it.
struct Answer {
    body: Body,
    _in_flight: InFlight,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
