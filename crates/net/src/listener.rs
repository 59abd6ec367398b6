//! The accept loop: limits, time limits, and a stop that lets handlers finish.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, UnixListener},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::server::TlsStream;
use tracing::{
    Instrument, Span, debug, debug_span,
    field::{Empty, display},
    warn,
};

use crate::{
    Activity, ListenerMetrics, LogThrottle,
    connections::{Connections, Open},
    metrics,
    pace::Paced,
    proxy,
    socket::{Listening, Socket},
    tls::{ServerTls, TlsSession},
};

/// How long to wait when no connection can be accepted, usually because the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The most bytes that are read and dropped after the server's last byte, and for how long.
const LINGER_BYTES: u64 = 8 << 20;
const LINGER: Duration = Duration::from_secs(2);
/// The address of both ends of a Unix socket.
const THIS_MACHINE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections. One more closes the connection that has been idle for longest, or waits while all are in use.
    pub connections_max: usize,
    /// The most connections of one address, where an IPv6 network of 64 bits counts as one address and loopback is not limited.
    /// One more closes the address' own connection that has been idle for longest, or is closed while all are in use.
    pub connections_per_address_max: usize,
    /// How long a client may take to read each 64 KiB that are sent to it.
    pub stall_timeout: Duration,
    /// How long a client may take for the TLS handshake, and a proxy for its header. Until then its connection counts as idle, so
    /// that handshakes are also bounded by `connections_max`, and the oldest ones are closed for new connections.
    pub handshake_timeout: Duration,
    /// How long connections may take to end after the listener was stopped. Then they are cut off.
    pub stop_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_address_max: 512,
            stall_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// A listening socket with its limits.
#[derive(Debug)]
pub struct Listener {
    socket: Listening,
    address: SocketAddr,
    settings: Settings,
}

/// What all connections of a listener share.
#[derive(Debug)]
struct Settings {
    limits: Limits,
    tls: Option<ServerTls>,
    start_tls: Option<ServerTls>,
    proxies: Vec<IpAddr>,
    metrics: ListenerMetrics,
    bad_headers: LogThrottle,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// The byte stream.
    pub stream: Stream,
    /// The client's address, also if a proxy named it; 127.0.0.1:0 on a Unix socket.
    pub peer: SocketAddr,
    /// What the TLS handshake agreed on; `None` when the listener does not speak TLS.
    pub tls: Option<TlsSession>,
    /// The handshake that the protocol may begin later: see [`Listener::with_start_tls`].
    pub start_tls: Option<StartTls>,
    /// Whether it is in use. It is idle at first, and a connection that is idle may be closed for another one.
    pub activity: Arc<Activity>,
    /// Whether the listener is being stopped.
    pub stopping: Stopping,
}

/// Whether a listener is being stopped.
#[derive(Clone, Debug)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Completes when the listener is being stopped. The handler should then finish its work and return.
    pub async fn begun(&mut self) {
        let _ = self.0.wait_for(|is_stopping| *is_stopping).await; // fails when the listener is gone: it has stopped
    }
}

impl Listener {
    /// Creates a listener on a socket. It accepts once [`Listener::serve`] runs.
    ///
    /// # Errors
    /// When the socket has no local address.
    pub fn new(socket: TcpListener, limits: Limits, metrics: ListenerMetrics) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(Self::with_socket(Listening::Tcp(socket), address, limits, metrics))
    }

    /// The same on a Unix socket. Its clients are on this machine: their address is 127.0.0.1:0.
    pub fn unix(socket: UnixListener, limits: Limits, metrics: ListenerMetrics) -> Self {
        Self::with_socket(Listening::Unix(socket), THIS_MACHINE, limits, metrics)
    }

    fn with_socket(socket: Listening, address: SocketAddr, limits: Limits, metrics: ListenerMetrics) -> Self {
        let (tls, start_tls) = (None, None);
        let (proxies, bad_headers) = (Vec::new(), LogThrottle::default());
        Self { socket, address, settings: Settings { limits, tls, start_tls, proxies, metrics, bad_headers } }
    }

    /// Speaks TLS on every connection, from its first byte on.
    pub fn with_tls(mut self, tls: ServerTls) -> Self {
        self.settings.tls = Some(tls);
        self
    }

    /// Lets the handler begin TLS on a connection that began without: [`Connection::start_tls`].
    pub fn with_start_tls(mut self, tls: ServerTls) -> Self {
        self.settings.start_tls = Some(tls);
        self
    }

    /// Expects a header of the PROXY protocol, version 2, on each connection from these addresses, before TLS. The client that it
    /// names takes the place of the proxy: in [`Connection::peer`] and for [`Limits::connections_per_address_max`]. A connection
    /// without a header is closed. From other addresses no header is expected.
    pub fn with_proxies(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.settings.proxies = addresses.into_iter().map(|address| address.to_canonical()).collect();
        self
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Runs the handler for each connection, each in its own task, until `shutdown` completes. Then the socket is closed,
    /// [`Connection::stopping`] completes, and `serve` returns after the last handler. Handlers that take longer than
    /// [`Limits::stop_timeout`] are dropped with their connections, and logged.
    ///
    /// The handler is also dropped when its connection is idle and is closed for another one.
    pub async fn serve<H, F>(self, handler: H, shutdown: impl Future<Output = ()> + Send)
    where
        H: Fn(Connection) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut shutdown = pin!(shutdown);
        let handler = Arc::new(handler);
        let (stop, stopping) = watch::channel(false);
        let settings = Arc::new(self.settings);
        let Settings { limits, metrics, .. } = &*settings;
        let connections = Connections::new(limits, metrics.clone());
        let mut tasks = JoinSet::new();
        let failed = LogThrottle::default();
        loop {
            let (socket, peer) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = tasks.join_next() => continue,
                accepted = accept(&self.socket, metrics.listener, &failed) => accepted,
            };
            let admitted = tokio::select! {
                biased;
                () = &mut shutdown => break,
                admitted = connections.admit(peer, settings.is_proxy(peer)) => admitted,
            };
            let Some(open) = admitted else { continue };
            let accepted = Accepted {
                socket,
                peer,
                open: open.clone(),
                stopping: Stopping(stopping.clone()),
                settings: settings.clone(),
            };
            let span = debug_span!("connection", listener = metrics.listener, %peer, client = Empty);
            tasks.spawn(run(open, Box::pin(accepted.serve(handler.clone()))).instrument(span));
        }
        drop(self.socket);
        let _ = stop.send(true); // fails when there are no connections
        finish(tasks, metrics.listener, limits.stop_timeout).await;
    }
}

/// The next connection.
async fn accept(socket: &Listening, listener: &'static str, failed: &LogThrottle) -> (Socket, SocketAddr) {
    loop {
        match socket.accept().await {
            Ok((socket, peer)) => return (socket, peer.unwrap_or(THIS_MACHINE)),
            Err(error) => {
                if let Some(times) = failed.count() {
                    let advice = "raise the limit of open files if that is reached";
                    warn!(listener, %error, times, "can't accept connections: {advice}");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Settings {
    fn is_proxy(&self, peer: SocketAddr) -> bool {
        self.proxies.contains(&peer.ip().to_canonical())
    }
}

/// A connection from which nothing was read yet.
struct Accepted {
    socket: Socket,
    peer: SocketAddr,
    open: Arc<Open>,
    stopping: Stopping,
    settings: Arc<Settings>,
}

impl Accepted {
    /// Prepares the connection, and runs the handler.
    async fn serve<F: Future<Output = ()>>(self, handler: Arc<impl Fn(Connection) -> F>) {
        let mut stopping = self.stopping.clone();
        let prepared = tokio::select! {
            prepared = self.prepare() => prepared,
            () = stopping.begun() => return,
        };
        if let Some(connection) = prepared {
            handler(connection).await;
        }
    }

    /// Reads the proxy's header and makes the TLS handshake, where the listener has these. `None` when one of them failed.
    async fn prepare(mut self) -> Option<Connection> {
        self.socket.send_at_once();
        let peer = self.client().await?;
        let Self { socket, open, stopping, settings, .. } = self;
        let activity = Arc::new(Activity::new(open));
        let stream = Paced::new(socket, settings.limits.stall_timeout, activity.clone());
        let (stream, tls) = match &settings.tls {
            None => (Inner::Plain(stream), None),
            Some(tls) => {
                let (stream, session) = shake_hands(stream, tls, &settings).await?;
                (Inner::Tls(Box::new(stream)), Some(session))
            }
        };
        let start_tls = settings.start_tls.is_some().then(|| StartTls(settings));
        Some(Connection { stream: Stream(stream), peer, tls, start_tls, activity, stopping })
    }

    /// The address of the client: the peer's, or the one that the peer names if it is a proxy. `None` when that one is refused.
    async fn client(&mut self) -> Option<SocketAddr> {
        let Settings { limits, metrics, bad_headers, .. } = &*self.settings;
        if !self.settings.is_proxy(self.peer) {
            return Some(self.peer);
        }
        let header = timeout(limits.handshake_timeout, proxy::read(&mut self.socket)).await;
        match header.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(Some(client)) => {
                Span::current().record("client", display(client));
                self.open.set_client(client).then_some(client)
            }
            Ok(None) => Some(self.peer), // a health check of the proxy
            Err(error) => {
                metrics.bad_headers.inc();
                if let Some(times) = bad_headers.count() {
                    let (listener, peer) = (metrics.listener, self.peer);
                    warn!(listener, %peer, %error, times, "closed a proxy's connection: it has to begin with a PROXY header");
                }
                None
            }
        }
    }
}

/// The TLS handshake. `None` when it failed or took too long.
async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    tls: &ServerTls,
    settings: &Settings,
) -> Option<(TlsStream<S>, TlsSession)> {
    let Settings { limits, metrics, .. } = settings;
    match timeout(limits.handshake_timeout, tls.accept(stream)).await {
        Ok(Ok(shaken)) => {
            metrics.count_handshake(metrics::OK);
            Some(shaken)
        }
        Ok(Err(error)) => {
            metrics.count_handshake(metrics::FAILED);
            debug!(%error, "the TLS handshake failed");
            None
        }
        Err(_) => {
            metrics.count_handshake(metrics::TIMEOUT);
            debug!("the TLS handshake took too long");
            None
        }
    }
}

/// The TLS handshake of a connection whose protocol has a command for it, as `STARTTLS` of SMTP (RFC 3207).
#[derive(Debug)]
pub struct StartTls(Arc<Settings>);

impl StartTls {
    /// Does the handshake. `None` when it failed or took longer than [`Limits::handshake_timeout`], or when the stream already speaks TLS.
    ///
    /// The caller must not hold bytes that the client sent before the handshake: they are not protected.
    pub async fn shake_hands(self, stream: Stream) -> Option<(Stream, TlsSession)> {
        let (Inner::Plain(stream), Some(tls)) = (stream.0, &self.0.start_tls) else { return None };
        let (stream, session) = shake_hands(stream, tls, &self.0).await?;
        Some((Stream(Inner::Tls(Box::new(stream))), session))
    }
}

/// Runs a handler until it returns, or its connection is closed for another.
async fn run(open: Arc<Open>, handler: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = open.closing() => debug!("closed for a new connection"),
        () = handler => {}
    }
}

/// Waits for connections to end, and cuts off those that don't end in time.
async fn finish(mut tasks: JoinSet<()>, listener: &'static str, limit: Duration) {
    let ended = timeout(limit, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        let connections = tasks.len();
        let seconds = limit.as_secs_f64();
        warn!(listener, connections, seconds, "connections were cut: their work was not finished in time");
        tasks.shutdown().await;
    }
}

/// The bytes of a connection. Its writes fail with `TimedOut` when the client reads too slowly: see [`Limits::stall_timeout`].
/// Reads have no time limit.
#[derive(Debug)]
pub struct Stream(Inner);

#[derive(Debug)]
enum Inner {
    Plain(Paced<Socket>),
    Tls(Box<TlsStream<Paced<Socket>>>),
}

impl Stream {
    fn inner(&mut self) -> Pin<&mut dyn ReadWrite> {
        match &mut self.0 {
            Inner::Plain(stream) => Pin::new(stream),
            Inner::Tls(stream) => Pin::new(stream.as_mut()),
        }
    }

    /// Ends the connection so that the client gets everything that was written: shuts down the write side, then reads and drops
    /// what still arrives, within bounds and until the listener is stopped. If the socket was closed with unread bytes in it, the
    /// system would reset the connection, and the client might lose the last answer.
    pub async fn close(mut self, stopping: &mut Stopping) {
        if self.shutdown().await.is_err() {
            return;
        }
        let mut rest = self.take(LINGER_BYTES);
        let mut sink = tokio::io::sink();
        tokio::select! {
            _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut sink)) => {}
            () = stopping.begun() => {}
        }
    }
}

/// Both kinds of stream.
trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ReadWrite for S {}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inner().poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.inner().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Inner::Plain(stream) => stream.is_write_vectored(),
            Inner::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
