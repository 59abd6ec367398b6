//! Tests our muxers against those of libp2p, and against peers that send more than is read.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, FutureExt, StreamExt,
    future::{BoxFuture, join_all, select},
    stream::FuturesUnordered,
};
use libp2p::core::{
    muxing::{StreamMuxer, StreamMuxerBox, StreamMuxerExt, SubstreamBox},
    upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo},
};
use parking_lot::Mutex;

use super::*;

/// One end of a connection in memory with unbounded buffers.
struct Pipe {
    incoming: Arc<Mutex<Half>>,
    outgoing: Arc<Mutex<Half>>,
}

#[derive(Default)]
struct Half {
    bytes: VecDeque<u8>,
    is_closed: bool,
    reader: Option<Waker>,
}

fn pipe() -> (Pipe, Pipe) {
    let (one, other) = (Arc::new(Mutex::new(Half::default())), Arc::new(Mutex::new(Half::default())));
    (Pipe { incoming: one.clone(), outgoing: other.clone() }, Pipe { incoming: other, outgoing: one })
}

impl Half {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut half = self.incoming.lock();
        if half.bytes.is_empty() && !half.is_closed {
            half.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(io::Read::read(&mut half.bytes, buffer))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut half = self.outgoing.lock();
        half.bytes.extend(bytes);
        half.wake();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut half = self.outgoing.lock();
        half.is_closed = true;
        half.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut half = self.outgoing.lock();
        half.is_closed = true;
        half.wake();
    }
}

const CONNECTION_BYTES: usize = 1 << 20;

fn budget() -> Arc<Budget> {
    let limits = Limits {
        connections_max: 1_000,
        connection_bytes_max: CONNECTION_BYTES,
        bytes_max: 256 << 20,
        advice: "",
    };
    Budget::new(limits, MuxerMetrics::default())
}

async fn server_of<U>(upgrade: U, socket: Pipe) -> StreamMuxerBox
where
    U: InboundConnectionUpgrade<Pipe> + UpgradeInfo<Info = &'static str>,
    U::Error: std::fmt::Debug,
    U::Output: StreamMuxer<Error: Send + Sync + std::error::Error, Substream: Send> + Send + 'static,
{
    let info = upgrade.protocol_info().into_iter().next().unwrap();
    StreamMuxerBox::new(upgrade.upgrade_inbound(socket, info).await.ok().unwrap())
}

async fn client_of<U>(upgrade: U, socket: Pipe) -> StreamMuxerBox
where
    U: OutboundConnectionUpgrade<Pipe> + UpgradeInfo<Info = &'static str>,
    U::Error: std::fmt::Debug,
    U::Output: StreamMuxer<Error: Send + Sync + std::error::Error, Substream: Send> + Send + 'static,
{
    let info = upgrade.protocol_info().into_iter().next().unwrap();
    StreamMuxerBox::new(upgrade.upgrade_outbound(socket, info).await.ok().unwrap())
}

/// Drives a connection as libp2p does, and echoes each stream of the peer. Ends with the connection.
async fn echo(mut muxer: StreamMuxerBox) -> io::Error {
    let mut streams = FuturesUnordered::<BoxFuture<'static, ()>>::new();
    poll_fn(move |cx| {
        loop {
            let _ = streams.poll_next_unpin(cx);
            if let Poll::Ready(Err(error)) = muxer.poll_unpin(cx) {
                return Poll::Ready(error);
            }
            match muxer.poll_inbound_unpin(cx) {
                Poll::Ready(Ok(stream)) => streams.push(echo_stream(stream).boxed()),
                Poll::Ready(Err(error)) => return Poll::Ready(error),
                Poll::Pending if streams.is_empty() => return Poll::Pending,
                Poll::Pending => match streams.poll_next_unpin(cx) {
                    Poll::Ready(_) => {}
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    })
    .await
}

async fn echo_stream(stream: SubstreamBox) {
    let (mut from, mut to) = stream.split();
    let _ = futures_util::io::copy(&mut from, &mut to).await;
    let _ = to.close().await;
}

/// Sends bytes on a stream, and returns the echo.
async fn sent_and_back(stream: SubstreamBox, bytes: &[u8]) -> Vec<u8> {
    let (mut from, mut to) = stream.split();
    let send = async {
        to.write_all(bytes).await.unwrap();
        to.close().await.unwrap();
    };
    let mut back = Vec::new();
    let (sent, received) = tokio::join!(send, from.read_to_end(&mut back));
    let ((), _) = (sent, received.unwrap());
    back
}

/// Opens many streams to an echo at the other end.
async fn talk(mut muxer: StreamMuxerBox) {
    let mut streams = Vec::new();
    for _ in 0..20 {
        let open = poll_fn(|cx| {
            let _ = muxer.poll_unpin(cx)?;
            muxer.poll_outbound_unpin(cx)
        });
        streams.push(open.await.unwrap());
    }
    let texts: Vec<Vec<u8>> =
        (0..20_usize).map(|n| (0..=n * n * 300).map(|at| (at % 251) as u8).collect()).collect();
    let exchanges = streams.into_iter().zip(&texts).map(|(stream, text)| sent_and_back(stream, text));
    let driven = poll_fn(|cx| muxer.poll_unpin(cx).map(|event| event.map(drop)));
    let exchanged = pin!(join_all(exchanges));
    match select(exchanged, pin!(driven)).await {
        futures_util::future::Either::Left((back, _)) => {
            assert!(back == texts, "the echo is what was sent")
        }
        futures_util::future::Either::Right((ended, _)) => panic!("the connection ended: {ended:?}"),
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

async fn talk_to_an_echo(talker: StreamMuxerBox, echoer: StreamMuxerBox) {
    let echoing = tokio::spawn(echo(echoer));
    tokio::time::timeout(PATIENCE, talk(talker)).await.expect("the streams come to an end");
    echoing.abort();
}

#[tokio::test]
async fn mplex_interoperates_with_the_library() {
    let ours = || Mplex::new(budget(), 64);
    let theirs = || {
        let mut config = libp2p_mplex::Config::new();
        config.set_max_buffer_size(10_000).clone()
    };
    let (one, other) = pipe();
    talk_to_an_echo(client_of(theirs(), one).await, server_of(ours(), other).await).await;
    let (one, other) = pipe();
    talk_to_an_echo(client_of(ours(), one).await, server_of(theirs(), other).await).await;
    let (one, other) = pipe();
    talk_to_an_echo(client_of(ours(), one).await, server_of(ours(), other).await).await;
}

#[tokio::test]
async fn yamux_interoperates_with_the_library() {
    let ours = || Yamux::new(budget(), 64);
    let theirs = libp2p::yamux::Config::default;
    let (one, other) = pipe();
    talk_to_an_echo(client_of(theirs(), one).await, server_of(ours(), other).await).await;
    let (one, other) = pipe();
    talk_to_an_echo(client_of(ours(), one).await, server_of(theirs(), other).await).await;
}

fn mplex_frame(stream: u64, tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    prost::encoding::encode_varint(stream << 3 | tag, &mut frame);
    prost::encoding::encode_varint(bytes.len() as u64, &mut frame);
    frame.extend_from_slice(bytes);
    frame
}

fn yamux_frame(stream: u32, flags: u16, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0];
    frame.extend(flags.to_be_bytes());
    frame.extend((2 * stream + 1).to_be_bytes());
    frame.extend((bytes.len() as u32).to_be_bytes());
    frame.extend_from_slice(bytes);
    frame
}

/// Drives a connection until it is idle, and collects its streams.
async fn settle(muxer: &mut StreamMuxerBox, streams: &mut Vec<SubstreamBox>) -> io::Result<()> {
    let settled = poll_fn(|cx| {
        muxer.poll_unpin(cx)?.map(drop).is_ready().then_some(()).map_or(Poll::Pending, Poll::Ready).map(Ok)
    });
    let ended: Result<io::Result<()>, _> = tokio::time::timeout(Duration::from_millis(1), settled).await;
    while let Poll::Ready(Ok(stream)) = muxer.poll_inbound_unpin(&mut Context::from_waker(Waker::noop())) {
        streams.push(stream);
    }
    ended.unwrap_or(Ok(()))
}

/// A connection's budget, and what is received in advance.
const RECEIVED_MAX: usize = CONNECTION_BYTES + 20_000;

/// Checks that these frames make a connection hold no more than `received_max`, that more is received when the streams are
/// read, and that the connection ends when they are not.
async fn is_bounded(upgrade: impl Fn() -> (StreamMuxerBox, Pipe), frames: &[u8], received_max: usize) {
    let (mut muxer, mut peer) = upgrade();
    let mut streams = Vec::new();
    peer.write_all(frames).await.unwrap();
    for _ in 0..1_000 {
        settle(&mut muxer, &mut streams).await.unwrap();
    }
    let left = peer.outgoing.lock().bytes.len();
    assert!(left > frames.len() - received_max, "no more than the budget is received");
    assert!(!streams.is_empty());
    for stream in &mut streams {
        let mut buffer = vec![0; 1 << 20];
        let _ = stream.read(&mut buffer).now_or_never();
    }
    for _ in 0..100 {
        settle(&mut muxer, &mut streams).await.unwrap();
    }
    let then = peer.outgoing.lock().bytes.len();
    assert!(then < left, "more is received when something was read");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(settle(&mut muxer, &mut streams).await.is_err(), "it ends when nothing is read");
}

#[tokio::test(start_paused = true)]
async fn mplex_holds_what_its_budget_allows() {
    let upgrade = || {
        let (one, other) = pipe();
        (server_of(Mplex::new(budget(), 200), one).now_or_never().unwrap(), other)
    };
    let open = |streams| (0..streams).flat_map(|n| mplex_frame(n, 0, b""));
    let long: Vec<u8> = open(10).chain((0..10).flat_map(|n| mplex_frame(n, 2, &[7; 1 << 20]))).collect();
    is_bounded(upgrade, &long, RECEIVED_MAX).await;
    let many = |bytes: &'static [u8], times: u64| -> Vec<u8> {
        let data = (0..times).flat_map(|n| mplex_frame(n % 100, 2, bytes));
        open(100).chain(data).collect()
    };
    is_bounded(upgrade, &many(&[7; 1_000], 5_000), RECEIVED_MAX).await;
    is_bounded(upgrade, &many(&[7], 2_000_000), 4 * RECEIVED_MAX).await;
}

#[tokio::test(start_paused = true)]
async fn yamux_holds_what_its_budget_allows() {
    let upgrade = || {
        let (one, other) = pipe();
        (server_of(Yamux::new(budget(), 200), one).now_or_never().unwrap(), other)
    };
    let open = |streams| (0..streams).flat_map(|n| yamux_frame(n, 1, b""));
    let many = |bytes: &[u8], rounds: u32| -> Vec<u8> {
        let data = (0..rounds).flat_map(|_| (0..50).flat_map(|n| yamux_frame(n, 0, bytes)));
        open(50).chain(data).collect()
    };
    is_bounded(upgrade, &many(&[7; 64_000], 4), RECEIVED_MAX).await;
    is_bounded(upgrade, &many(&[7; 200_000], 1), RECEIVED_MAX).await;
    is_bounded(upgrade, &many(&[7], 5_000), RECEIVED_MAX).await;
}

/// The library accepts frames of up to 1 MiB; other implementations send at most 64 KiB.
#[tokio::test(start_paused = true)]
async fn a_yamux_frame_beyond_its_window_ends_the_connection() {
    let (one, mut peer) = pipe();
    let mut muxer = server_of(Yamux::new(budget(), 64), one).await;
    peer.write_all(&yamux_frame(0, 1, &vec![7; 300_000])).await.unwrap();
    assert!(settle(&mut muxer, &mut Vec::new()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn invalid_mplex_frames_end_the_connection() {
    for wrong in [&[0xff; 11][..], &[0x07, 0x00], &[0x02, 0x81, 0x80, 0x40]] {
        let (one, mut peer) = pipe();
        let mut muxer = server_of(Mplex::new(budget(), 64), one).await;
        peer.write_all(wrong).await.unwrap();
        assert!(settle(&mut muxer, &mut Vec::new()).await.is_err(), "{wrong:?}");
    }
}

/// Frames may arrive in any pieces; data for streams that are not open is dropped.
#[tokio::test(start_paused = true)]
async fn mplex_frames_are_read_from_any_pieces() {
    let frames: Vec<u8> = [
        mplex_frame(300, 0, b"a name"),
        mplex_frame(300, 2, b"hello "),
        mplex_frame(301, 2, &[7; 500]),
        mplex_frame(300, 2, b"world"),
        mplex_frame(300, 4, b""),
        mplex_frame(300, 2, b"too late"),
    ]
    .concat();
    for len in 1..40 {
        let (one, mut peer) = pipe();
        let mut muxer = server_of(Mplex::new(budget(), 64), one).await;
        let mut streams = Vec::new();
        for piece in frames.chunks(len) {
            peer.write_all(piece).await.unwrap();
            settle(&mut muxer, &mut streams).await.unwrap();
        }
        let mut text = String::new();
        streams[0].read_to_string(&mut text).await.unwrap();
        assert_eq!((streams.len(), text.as_str()), (1, "hello world"));
    }
}

/// Polls once, with the whole budget that a task has for one poll.
async fn poll_once(muxer: &mut StreamMuxerBox) {
    tokio::task::yield_now().await;
    let ended = poll_fn(|cx| Poll::Ready(matches!(muxer.poll_unpin(cx), Poll::Ready(Err(_))))).await;
    assert!(!ended);
}

/// tokio gives a task 128 units for one poll.
const FRAMES_PER_POLL_MAX: usize = 500;

/// One poll handles only some of many one-byte frames, so that other tasks run in between; later polls handle the rest.
async fn many_frames_take_many_polls(mut muxer: StreamMuxerBox, mut peer: Pipe, open: &[u8], data: &[u8]) {
    const FRAMES: usize = 5_000;
    peer.write_all(open).await.unwrap();
    let mut streams = Vec::new();
    settle(&mut muxer, &mut streams).await.unwrap();
    peer.write_all(&data.repeat(FRAMES)).await.unwrap();
    let mut buffer = vec![0; 2 * FRAMES];
    let mut received = 0;
    let mut polls = 0;
    while received < FRAMES {
        poll_once(&mut muxer).await;
        let frames = match streams[0].read(&mut buffer).now_or_never() {
            Some(read) => read.unwrap(),
            None => 0,
        };
        assert!(frames <= FRAMES_PER_POLL_MAX, "{frames} frames in one poll");
        received += frames;
        polls += 1;
        assert!(polls <= FRAMES, "{received} frames after {polls} polls");
    }
    assert_eq!(received, FRAMES);
}

#[tokio::test(start_paused = true)]
async fn one_poll_of_mplex_handles_few_frames() {
    let (one, peer) = pipe();
    let muxer = server_of(Mplex::new(budget(), 64), one).await;
    many_frames_take_many_polls(muxer, peer, &mplex_frame(0, 0, b""), &mplex_frame(0, 2, b"x")).await;
}

#[tokio::test(start_paused = true)]
async fn one_poll_of_yamux_handles_few_frames() {
    let (one, peer) = pipe();
    let muxer = server_of(Yamux::new(budget(), 64), one).await;
    many_frames_take_many_polls(muxer, peer, &yamux_frame(0, 1, b""), &yamux_frame(0, 0, b"x")).await;
}

/// These frames are dropped and hold no memory, so nothing else bounds them.
#[tokio::test(start_paused = true)]
async fn one_poll_of_yamux_handles_few_frames_of_unknown_streams() {
    let (one, mut peer) = pipe();
    let mut muxer = server_of(Yamux::new(budget(), 64), one).await;
    let frame = yamux_frame(7, 0, b"x");
    peer.write_all(&frame.repeat(5_000)).await.unwrap();
    let left = || peer.outgoing.lock().bytes.len();
    let mut before = left();
    while left() > 0 {
        poll_once(&mut muxer).await;
        let handled = (before - left()).div_ceil(frame.len());
        assert!((1..=FRAMES_PER_POLL_MAX).contains(&handled), "{handled} frames in one poll");
        before = left();
    }
}

/// The frame at which the budget ends may be the last one that the peer sends.
#[tokio::test(start_paused = true)]
async fn the_last_mplex_frame_is_handled_after_any_number_of_frames() {
    for frames in 100..300 {
        let (one, mut peer) = pipe();
        let mut muxer = server_of(Mplex::new(budget(), 64), one).await;
        let mut sent = mplex_frame(7, 2, b"x").repeat(frames);
        sent.extend(mplex_frame(0, 0, b""));
        peer.write_all(&sent).await.unwrap();
        let mut streams = Vec::new();
        settle(&mut muxer, &mut streams).await.unwrap();
        assert_eq!(streams.len(), 1, "after {frames} frames");
    }
}

/// Streams beyond the limit are refused, and the others work.
#[tokio::test(start_paused = true)]
async fn mplex_streams_beyond_the_limit_are_reset() {
    let (one, mut peer) = pipe();
    let mut muxer = server_of(Mplex::new(budget(), 3), one).await;
    let mut streams = Vec::new();
    for n in 0..5 {
        peer.write_all(&mplex_frame(n, 0, b"")).await.unwrap();
    }
    settle(&mut muxer, &mut streams).await.unwrap();
    assert_eq!(streams.len(), 3);
    let mut sent = vec![0; 4];
    peer.read_exact(&mut sent).await.unwrap();
    assert_eq!(sent, [3 << 3 | 5, 0, 4 << 3 | 5, 0], "the receiver of a stream resets it");
}
