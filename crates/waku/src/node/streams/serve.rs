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

/// A request of this size arrives as a whole as a rule: it is read before a place among the larger ones is needed.
const SMALL_REQUEST_BYTES: usize = 4 << 10;
/// Larger requests that are read at once over all connections, and on one of them.
const LARGE_REQUESTS_MAX: usize = 256;
const LARGE_REQUESTS_PER_CONNECTION_MAX: usize = 4;
/// A peer has the request's time for every so many bytes of an answer...
const BYTES_PER_TIMEOUT: usize = 1 << 20;
/// ...and must have read so many of them within it.
const STEP_BYTES: usize = 16 << 10;
/// What arrives first is read into a buffer of this size: most streams that are opened ahead get no more than that.
const HEAD_BYTES: usize = 512;

/// Where peers' requests are answered.
pub(crate) struct RequestHandler {
    services: Vec<(StreamProtocol, Arc<dyn Service>)>,
    limiter: Limiter,
    /// Places for requests that are being answered.
    turns: Semaphore,
    large: Semaphore,
    room: MemoryBudget,
}

/// One connection, as its requests see it.
#[derive(Clone)]
pub(crate) struct ConnectionContext {
    peer: PeerId,
    slots: Arc<Semaphore>,
    corner: ConnectionMemory,
    large: Arc<Semaphore>,
    activity: Activity,
    /// Known once the connection's task runs.
    traffic: AnswerTraffic,
    streams: Streams,
}

impl ConnectionContext {
    pub(crate) fn new(peer: PeerId, slots: Arc<Semaphore>, activity: Activity, streams: Streams) -> Self {
        let large = Arc::new(Semaphore::new(LARGE_REQUESTS_PER_CONNECTION_MAX));
        Self {
            peer,
            slots,
            corner: ConnectionMemory::default(),
            large,
            activity,
            traffic: AnswerTraffic::default(),
            streams,
        }
    }
}

/// A request and its service.
struct Request {
    desk: Arc<RequestHandler>,
    line: ConnectionContext,
    service: Arc<dyn Service>,
}

impl RequestHandler {
    pub(crate) fn new(services: Vec<Arc<dyn Service>>, limiter: Limiter, requests_max: usize) -> Self {
        let named = services.into_iter().map(|service| (StreamProtocol::new(service.id()), service));
        Self {
            services: named.collect(),
            limiter,
            turns: Semaphore::new(requests_max),
            large: Semaphore::new(LARGE_REQUESTS_MAX),
            room: MemoryBudget::default(),
        }
    }

    pub(crate) fn protocols(&self) -> Vec<StreamProtocol> {
        self.services.iter().map(|(protocol, _)| protocol.clone()).collect()
    }

    /// What answers a stream, unless its connection has too many. It is worked on by the connection's own task: what a request
    /// brings with it and what answers it then travel together, and no other task is woken.
    pub(crate) fn take(
        self: &Arc<Self>,
        line: &ConnectionContext,
        stream: Stream,
        protocol: &StreamProtocol,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let (_, service) = self.services.iter().find(|(id, _)| id == protocol)?;
        let Ok(slot) = line.slots.clone().try_acquire_owned() else {
            line.streams.metrics.refused_streams.inc();
            debug!(peer = %line.peer, service = service.name(), "too many streams on a connection");
            return None;
        };
        let line = ConnectionContext { traffic: AnswerTraffic::current(), ..line.clone() };
        let visit = Request { desk: self.clone(), line, service: service.clone() };
        let span = debug_span!("waku_request", service = service.name(), peer = %visit.line.peer);
        let served = async move {
            visit.serve(stream).await;
            drop(slot);
        };
        Some(served.instrument(span))
    }
}

impl Request {
    async fn serve(self, mut stream: Stream) {
        let idle = self.line.streams.limits.idle_timeout;
        // js-waku opens streams ahead and may never use them: until its first byte a stream is no request.
        let head = match timeout(idle, read_head(&mut stream)).await {
            Ok(Ok(head)) if head.is_empty() => return,
            Ok(Ok(head)) => head,
            Ok(Err(_)) | Err(_) => return,
        };
        let _in_use = self.line.activity.begin();
        self.line.activity.touch(self.line.streams.now_ms());
        if let Err(error) = self.answer(head, &mut stream).await {
            self.line.streams.metrics.broken(self.service.name());
            debug!(%error, "a request came to nothing");
        }
        self.line.activity.touch(self.line.streams.now_ms());
    }

    async fn answer(&self, head: Vec<u8>, stream: &mut Stream) -> io::Result<()> {
        let limit = self.line.streams.limits.request_timeout;
        let request = in_time(limit, self.read_request(head, stream)).await?;
        let begun = Instant::now();
        let is_admitted = self.desk.limiter.admits(self.service.name(), self.line.peer);
        let bytes_max = if is_admitted { self.service.answer_bytes_max() } else { 0 };
        let mut room = in_time(limit, self.desk.room.take(&self.line.corner, bytes_max)).await?;
        let answer = match is_admitted {
            true => in_time(limit, self.work(request)).await?,
            false => self.service.answer_too_often(request),
        };
        let len = answer.frame.as_ref().map_or(0, Vec::len);
        room.keep(len);
        if let Some(frame) = answer.frame {
            self.line.traffic.answered(len);
            write(stream, &frame, limit, &room).await?;
        }
        in_time(limit, stream.close()).await?;
        self.line.streams.metrics.answered(self.service.name(), answer.status, len, begun.elapsed());
        Ok(())
    }

    async fn read_request(&self, head: Vec<u8>, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
        let (len, begun) = split_len(head, stream).await?;
        let len = usize::try_from(len).ok().filter(|len| *len <= self.service.request_bytes_max());
        let len = len.ok_or_else(|| invalid("a request that is too long"))?;
        let missing = len.saturating_sub(begun.len());
        let is_large = missing > SMALL_REQUEST_BYTES;
        // A connection's own large requests are waited for first, so that it can't take everybody's places.
        let _turn =
            if is_large { Some(self.line.large.acquire().await.map_err(io::Error::other)?) } else { None };
        let _place =
            if is_large { Some(self.desk.large.acquire().await.map_err(io::Error::other)?) } else { None };
        let mut request = begun;
        request.extend(read_exactly(stream, missing).await?);
        request.truncate(len); // one request on a stream: what is behind it is nobody's
        Ok(request.into())
    }

    async fn work(&self, request: Bytes) -> io::Result<Answer> {
        let _turn = self.desk.turns.acquire().await.map_err(io::Error::other)?;
        Ok(self.service.answer(self.line.peer, request).await)
    }
}

/// Writes an answer. A peer that does not read waits for nobody but itself, and not for long.
async fn write(
    stream: &mut Stream,
    frame: &[u8],
    limit: Duration,
    room: &MemoryPermit<'_>,
) -> io::Result<()> {
    let times = u32::try_from(1 + frame.len() / BYTES_PER_TIMEOUT).unwrap_or(u32::MAX);
    in_time(limit.saturating_mul(times), async {
        for step in frame.chunks(STEP_BYTES) {
            room.patiently(limit, stream.write_all(step)).await?;
        }
        room.patiently(limit, stream.flush()).await
    })
    .await
}

async fn in_time<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads what arrives first; empty at the end of the stream.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = vec![0; HEAD_BYTES];
    let len = stream.read(&mut head).await?;
    head.truncate(len);
    Ok(head)
}

/// Takes the length off the front of what has arrived; reads more when it is not whole yet.
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
            Err(_) => return Err(invalid("a length that is none")),
        }
    }
}
