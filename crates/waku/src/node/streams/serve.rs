//! Answers requests: one on a stream, within bounds of size, number and time.

use std::{
    future::Future,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use libp2p::{PeerId, Stream, StreamProtocol};
use tokio::{sync::Semaphore, time::timeout};
use tracing::{Instrument, debug, debug_span};

use super::{
    Activity, LEN_BYTES_MAX, Streams,
    memory_budget::{ConnectionMemory, MemoryBudget, MemoryPermit},
    read_exactly,
};
use crate::{
    node::executor::AnswerTraffic,
    rates::Limiter,
    service::{Answer, Service},
};

/// A request of this size usually arrives as a whole: it is read without a permit for large requests.
const SMALL_REQUEST_BYTES: usize = 4 << 10;
/// The most larger requests that are read at the same time, on all connections and on one.
const LARGE_REQUESTS_MAX: usize = 256;
const LARGE_REQUESTS_PER_CONNECTION_MAX: usize = 4;
/// A peer has the request time-out for each of these parts of an answer...
const BYTES_PER_TIMEOUT: usize = 1 << 20;
/// ...and for each of these steps.
const STEP_BYTES: usize = 16 << 10;
/// The buffer for the first read: streams that clients open in advance have no larger one.
const HEAD_BYTES: usize = 512;

/// Answers the requests of peers.
pub(crate) struct RequestHandler {
    services: Vec<(StreamProtocol, Arc<dyn Service>)>,
    limiter: Limiter,
    /// Permits for requests that are being answered.
    active: Semaphore,
    large: Semaphore,
    memory: MemoryBudget,
}

/// The connection of a request.
#[derive(Clone)]
pub(crate) struct ConnectionContext {
    peer: PeerId,
    slots: Arc<Semaphore>,
    memory: ConnectionMemory,
    large: Arc<Semaphore>,
    activity: Activity,
    /// Set when the connection's task runs.
    traffic: AnswerTraffic,
    streams: Streams,
}

impl ConnectionContext {
    pub(crate) fn new(peer: PeerId, slots: Arc<Semaphore>, activity: Activity, streams: Streams) -> Self {
        let large = Arc::new(Semaphore::new(LARGE_REQUESTS_PER_CONNECTION_MAX));
        Self {
            peer,
            slots,
            memory: ConnectionMemory::default(),
            large,
            activity,
            traffic: AnswerTraffic::default(),
            streams,
        }
    }
}

/// A request and its service.
struct Request {
    handler: Arc<RequestHandler>,
    context: ConnectionContext,
    service: Arc<dyn Service>,
}

impl RequestHandler {
    pub(crate) fn new(services: Vec<Arc<dyn Service>>, limiter: Limiter, requests_max: usize) -> Self {
        let named = services.into_iter().map(|service| (StreamProtocol::new(service.id()), service));
        Self {
            services: named.collect(),
            limiter,
            active: Semaphore::new(requests_max),
            large: Semaphore::new(LARGE_REQUESTS_MAX),
            memory: MemoryBudget::default(),
        }
    }

    pub(crate) fn protocols(&self) -> Vec<StreamProtocol> {
        self.services.iter().map(|(protocol, _)| protocol.clone()).collect()
    }

    /// The future that answers the request on a stream; `None` when the connection has too many streams. It runs in the
    /// connection's own task, so no other task is woken.
    pub(crate) fn serve(
        self: &Arc<Self>,
        context: &ConnectionContext,
        stream: Stream,
        protocol: &StreamProtocol,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (_, service) = self.services.iter().find(|(id, _)| id == protocol)?;
        let Ok(slot) = context.slots.clone().try_acquire_owned() else {
            context.streams.metrics.refused_streams.inc();
            debug!(peer = %context.peer, service = service.name(), "too many streams on a connection");
            return None;
        };
        let context = ConnectionContext { traffic: AnswerTraffic::current(), ..context.clone() };
        let request = Request { handler: self.clone(), context, service: service.clone() };
        let span = debug_span!("waku_request", service = service.name(), peer = %request.context.peer);
        let served = async move {
            request.serve(stream).await;
            drop(slot);
        };
        Some(served.instrument(span))
    }
}

impl Request {
    async fn serve(self, mut stream: Stream) {
        let idle = self.context.streams.limits.idle_timeout;
        // js-waku opens streams in advance and may never use them: a stream is a request from its first byte on.
        let head = match timeout(idle, read_head(&mut stream)).await {
            Ok(Ok(head)) if head.is_empty() => return,
            Ok(Ok(head)) => head,
            Ok(Err(_)) | Err(_) => return,
        };
        let _in_use = self.context.activity.begin();
        self.context.activity.touch(self.context.streams.now_ms());
        if let Err(error) = self.answer(head, &mut stream).await {
            self.context.streams.metrics.broken(self.service.name());
            debug!(%error, "a request failed");
        }
        self.context.activity.touch(self.context.streams.now_ms());
    }

    async fn answer(&self, head: Vec<u8>, stream: &mut Stream) -> io::Result<()> {
        let limit = self.context.streams.limits.request_timeout;
        let request = in_time(limit, self.read_request(head, stream)).await?;
        let begun = Instant::now();
        let is_admitted = self.handler.limiter.admits(self.service.name(), self.context.peer);
        let bytes_max = if is_admitted { self.service.answer_bytes_max() } else { 0 };
        let mut memory = in_time(limit, self.handler.memory.acquire(&self.context.memory, bytes_max)).await?;
        let answer = match is_admitted {
            true => in_time(limit, self.work(request)).await?,
            false => self.service.answer_too_often(request),
        };
        let len = answer.frame.as_ref().map_or(0, Vec::len);
        memory.shrink_to(len);
        if let Some(frame) = answer.frame {
            self.context.traffic.answered(len);
            write(stream, &frame, limit, &memory).await?;
        }
        in_time(limit, stream.close()).await?;
        self.context.streams.metrics.answered(self.service.name(), answer.status, len, begun.elapsed());
        Ok(())
    }

    async fn read_request(&self, head: Vec<u8>, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
        let (len, begun) = split_len(head, stream).await?;
        let len = usize::try_from(len).ok().filter(|len| *len <= self.service.request_bytes_max());
        let len = len.ok_or_else(|| invalid("the request is too long"))?;
        let missing = len.saturating_sub(begun.len());
        let is_large = missing > SMALL_REQUEST_BYTES;
        // First the connection's own permit, so that it can't hold the permits of others while it waits.
        let _of_connection =
            if is_large { Some(self.context.large.acquire().await.map_err(io::Error::other)?) } else { None };
        let _of_all =
            if is_large { Some(self.handler.large.acquire().await.map_err(io::Error::other)?) } else { None };
        let mut request = begun;
        request.extend(read_exactly(stream, missing).await?);
        request.truncate(len); // one request on a stream: ignore what follows
        Ok(request.into())
    }

    async fn work(&self, request: Bytes) -> io::Result<Answer> {
        let _active = self.handler.active.acquire().await.map_err(io::Error::other)?;
        Ok(self.service.answer(self.context.peer, request).await)
    }
}

/// Writes an answer, in steps with time-outs.
async fn write(
    stream: &mut Stream,
    frame: &[u8],
    limit: Duration,
    memory: &MemoryPermit<'_>,
) -> io::Result<()> {
    let times = u32::try_from(1 + frame.len() / BYTES_PER_TIMEOUT).unwrap_or(u32::MAX);
    in_time(limit.saturating_mul(times), async {
        for step in frame.chunks(STEP_BYTES) {
            memory.write_step(limit, stream.write_all(step)).await?;
        }
        memory.write_step(limit, stream.flush()).await
    })
    .await
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the first bytes; empty at the end of the stream.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES];
    let len = stream.read(&mut head).await?;
    head.truncate(len);
    Ok(head)
}

/// Splits the length prefix off the first bytes; reads more when it is incomplete.
async fn split_len(mut head: Vec<u8>, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u64, Vec<u8>)> {
    loop {
        let mut rest = &head[..];
        match prost::encoding::decode_varint(&mut rest) {
            Ok(len) => return Ok((len, rest.to_vec())),
            Err(_) if head.len() < LEN_BYTES_MAX => {
                let mut byte = [0];
                stream.read_exact(&mut byte).await?;
                head.extend(byte);
            }
            Err(_) => return Err(invalid("invalid length prefix")),
        }
    }
}
