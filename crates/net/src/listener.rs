//! The accept loop: limits, time limits, and a stop that lets handlers finish.

use std::{
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{Instrument, debug, debug_span, warn};

use crate::{
    Activity, ListenerMetrics, LogThrottle,
    connections::{Connections, Open},
    pace::Paced,
};

/// How long to wait when no connection can be accepted, usually because the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What is read and dropped after the server's last byte, at most, and for how long.
const LINGER_BYTES: u64 = 8 << 20;
const LINGER: Duration = Duration::from_secs(2);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once. One more closes the connection that has been idle for longest, or waits while all are in use.
    pub connections_max: usize,
    /// Connections of one address at once, where an IPv6 network of 64 bits counts as one address and loopback is not limited. One
    /// more closes the address' own connection that has been idle for longest, or is closed while all are in use.
    pub connections_per_address_max: usize,
    /// How long a client may take to read each 64 KiB that are sent to it.
    pub stall_timeout: Duration,
    /// How long connections may take to end after the listener was stopped. Then they are cut.
    pub stop_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_address_max: 512,
            stall_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// A listening socket with its limits.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    limits: Limits,
    metrics: ListenerMetrics,
}

/// An accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// Its bytes.
    pub stream: Stream,
    /// The client.
    pub peer: SocketAddr,
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
    /// A listener on a socket. It accepts once [`Listener::serve`] runs.
    ///
    /// # Errors
    /// When the socket has no local address.
    pub fn new(socket: TcpListener, limits: Limits, metrics: ListenerMetrics) -> io::Result<Self> {
        let address = socket.local_addr()?;
        Ok(Self { socket, address, limits, metrics })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Runs the handler for each connection, in a task of its own, until `shutdown` completes. Then the socket is closed,
    /// [`Connection::stopping`] completes, and `serve` returns after the last handler. Handlers that take longer than
    /// [`Limits::stop_timeout`] are dropped with their connections, and logged.
    ///
    /// The handler is also dropped when its connection is idle and is closed for another one.
    pub async fn serve<H, F>(self, handler: H, shutdown: impl Future<Output = ()> + Send)
    where
        H: Fn(Connection) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut shutdown = pin!(shutdown);
        let (stop, stopping) = watch::channel(false);
        let connections = Connections::new(&self.limits, self.metrics.clone());
        let mut tasks = JoinSet::new();
        let failed = LogThrottle::default();
        loop {
            let (socket, peer) = tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = tasks.join_next() => continue,
                accepted = self.accept(&failed) => accepted,
            };
            let admitted = tokio::select! {
                biased;
                () = &mut shutdown => break,
                admitted = connections.admit(peer) => admitted,
            };
            let Some(open) = admitted else { continue };
            let connection = self.connection(socket, peer, open.clone(), Stopping(stopping.clone()));
            let span = debug_span!("connection", listener = self.metrics.listener, %peer);
            tasks.spawn(run(open, handler(connection)).instrument(span));
        }
        drop(self.socket);
        let _ = stop.send(true); // fails when there are no connections
        finish(tasks, self.metrics.listener, self.limits.stop_timeout).await;
    }

    /// The next connection.
    async fn accept(&self, failed: &LogThrottle) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    if let Some(times) = failed.count() {
                        let listener = self.metrics.listener;
                        let advice = "raise the limit of open files if that is reached";
                        warn!(listener, %error, times, "can't accept connections: {advice}");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn connection(
        &self,
        socket: TcpStream,
        peer: SocketAddr,
        open: Arc<Open>,
        stopping: Stopping,
    ) -> Connection {
        if let Err(error) = socket.set_nodelay(true) {
            debug!(%error, "can't set TCP_NODELAY");
        }
        let activity = Arc::new(Activity::new(open));
        let stream = Stream(Paced::new(socket, self.limits.stall_timeout, activity.clone()));
        Connection { stream, peer, activity, stopping }
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

/// Waits for connections to end, and cuts those that don't end in time.
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
pub struct Stream(Paced<TcpStream>);

impl Stream {
    /// Ends the connection so that the client gets everything that was written: sends the end, then reads and drops what is
    /// still arriving, within bounds and until the listener is stopped. If the socket was closed with unread bytes in it, the
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

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
