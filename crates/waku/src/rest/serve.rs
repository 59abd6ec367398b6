//! The accept loop: bounded connections, time limits, and an end that lets running requests finish.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use bytes::BytesMut;
use futures_util::{TryFutureExt, future::BoxFuture};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::Service;
use tracing::{Instrument, debug, debug_span, warn};

use super::{
    RestConfig, RestMetrics,
    connections::{Answer, ConnectionMark, Connections, Open},
    occasional::Occasional,
    pace::Paced,
};

/// How long to wait when no connection can be accepted, as a rule because the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest head of a request: room for long lists of content topics in the query.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// After an answer that came before its request's end, what is still on its way is read and dropped, up to this much and
/// this long. Closing at once would make the system reset the connection, and the client might never see the answer.
const LINGER_BYTES: u64 = 8 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// Serves the router on a listener until `shutdown` completes. Then no connection is accepted any more, idle ones are
/// closed, running requests are finished, and `serve` returns after the last of them. Connections whose requests are not
/// finished within [`RestConfig::stop_timeout_ms`] are cut, and logged.
///
/// A client that reads less than 64 KiB of its answer in [`RestConfig::request_timeout_ms`] is cut off, and sooner when others
/// wait for the room that its answer takes.
///
/// # Errors
/// When the listener does not have an address, because it is no listener any more.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    config: &RestConfig,
    metrics: &RestMetrics,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    listener.local_addr()?;
    let mut shutdown = pin!(shutdown);
    let (end, end_seen) = watch::channel(false);
    let connections = Connections::new(config, metrics.connections.clone());
    let limits = Limits::of(config);
    let mut tasks = JoinSet::new();
    let failed = Occasional::default();
    loop {
        let (stream, peer) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = tasks.join_next() => continue,
            accepted = accept(&listener, &failed) => accepted,
        };
        let admitted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            admitted = connections.admit(peer) => admitted,
        };
        let Some(open) = admitted else { continue };
        let connection =
            Connection { router: router.clone(), client: Client(peer), limits, end: end_seen.clone(), open };
        let span = debug_span!("rest_connection", %peer);
        tasks.spawn(connection.run_until_closed(stream).instrument(span));
    }
    drop(listener);
    let _ = end.send(true); // fails when there are no connections, which is as well
    finish(tasks, Duration::from_millis(config.stop_timeout_ms)).await;
    Ok(())
}

/// Waits for connections to end, and cuts those that don't in time.
async fn finish(mut tasks: JoinSet<()>, limit: Duration) {
    let ended = timeout(limit, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        let connections = tasks.len();
        warn!(
            connections,
            seconds = limit.as_secs_f64(),
            "connections were cut: their requests were not finished in time"
        );
        tasks.shutdown().await;
    }
}

/// The next connection.
async fn accept(listener: &TcpListener, failed: &Occasional) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                if let Some(times) = failed.count() {
                    warn!(%error, times, "can't accept connections: raise the limit of open files if that is reached");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Limits {
    header_timeout: Duration,
    stall_timeout: Duration,
}

impl Limits {
    fn of(config: &RestConfig) -> Self {
        Self {
            header_timeout: Duration::from_millis(config.header_timeout_ms),
            stall_timeout: Duration::from_millis(config.request_timeout_ms),
        }
    }
}

/// Goes with every request: who has sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client(pub(super) SocketAddr);

/// Goes with every request: whoever answers 101 (switching protocols) leaves here what goes on with the connection. It is given
/// the stream and what was read of it already, and gives the stream back to be closed.
#[derive(Clone, Default)]
pub(super) struct Switch(Arc<Mutex<Option<GoOn>>>);

/// What goes on with a connection.
type GoOn = Box<dyn FnOnce(Paced<TcpStream>, BytesMut) -> BoxFuture<'static, Paced<TcpStream>> + Send>;

impl Switch {
    pub(super) fn to(
        &self,
        go_on: impl FnOnce(Paced<TcpStream>, BytesMut) -> BoxFuture<'static, Paced<TcpStream>> + Send + 'static,
    ) {
        *self.0.lock() = Some(Box::new(go_on));
    }
}

struct Connection {
    router: Router,
    client: Client,
    limits: Limits,
    end: watch::Receiver<bool>,
    open: Arc<Open>,
}

impl Connection {
    /// Serves the connection until it ends, or gives way to another one while it waits for a request.
    async fn run_until_closed(self, stream: TcpStream) {
        let open = self.open.clone();
        tokio::select! {
            biased;
            () = open.closing() => debug!("closed for a new connection"),
            () = self.run(stream) => {}
        }
    }

    async fn run(mut self, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "can't set TCP_NODELAY");
        }
        let mark = Arc::new(ConnectionMark::of(self.open.clone()));
        let io = TokioIo::new(Paced::new(stream, self.limits.stall_timeout, mark.clone()));
        let switch = Switch::default();
        let (stream, read) = match Box::pin(self.serve_requests(io, mark, switch.clone())).await {
            Ok((io, read)) => (io.into_inner(), read),
            Err(error) => return debug!(%error, "connection broke off"),
        };
        let go_on = switch.0.lock().take();
        let stream = match go_on {
            Some(go_on) => {
                self.open.begin_request(); // it lasts as long as the connection
                go_on(stream, read).await
            }
            None => stream,
        };
        linger(stream.into_inner(), &mut self.end).await;
    }

    /// Answers requests until either side ends the connection, or a handler has switched it; gives the stream back, and what
    /// was read of it and not used.
    async fn serve_requests(
        &mut self,
        io: TokioIo<Paced<TcpStream>>,
        mark: Arc<ConnectionMark>,
        switch: Switch,
    ) -> hyper::Result<(TokioIo<Paced<TcpStream>>, BytesMut)> {
        let (router, client) = (self.router.clone(), self.client);
        let service = service_fn(move |mut request: hyper::Request<Incoming>| {
            mark.begin_request();
            request.extensions_mut().insert(mark.clone());
            request.extensions_mut().insert(client);
            request.extensions_mut().insert(switch.clone());
            let mark = mark.clone();
            router.clone().call(request).map_ok(|response| response.map(|body| Answer::new(body, mark)))
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.limits.header_timeout);
        builder.max_header_size(HEAD_BYTES_MAX);
        let mut connection = builder.serve_connection(io, service);
        let mut is_ending = false;
        loop {
            let step = std::future::poll_fn(|context| connection.poll_without_shutdown(context));
            tokio::select! {
                result = step => {
                    result?;
                    let parts = connection.into_parts();
                    return Ok((parts.io, parts.read_buf.into()));
                }
                _ = self.end.wait_for(|end| *end), if !is_ending => {
                    is_ending = true;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
    }
}

/// Says that no more comes, and waits for the client to say the same, within limits and until the server ends.
async fn linger(mut stream: TcpStream, end: &mut watch::Receiver<bool>) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut rest = stream.take(LINGER_BYTES);
    let mut sink = tokio::io::sink();
    tokio::select! {
        _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut sink)) => {}
        _ = end.wait_for(|end| *end) => {}
    }
}
