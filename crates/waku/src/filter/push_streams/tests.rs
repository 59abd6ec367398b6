use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use restante_core::{MessageHash, Timestamp};

use super::*;

/// How a client handles push streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Reads one message and closes the stream, as go-waku does.
    ReadsOne,
    /// Reads until the stream ends, as js-waku and nwaku do.
    ReadsOn,
    /// Reads no byte.
    ReadsNothing,
    /// Refuses new streams and breaks open ones.
    Refuses,
    /// Does not support the protocol: accepts a message, and then breaks the stream.
    OtherProtocol,
    /// Makes opening a stream panic.
    Panics,
}

/// A client that records pushed messages.
pub(crate) struct Client {
    state: Mutex<State>,
}

struct State {
    manner: Manner,
    is_connected: bool,
    /// Frames that were read, in order.
    read: Vec<Vec<u8>>,
    /// Frames on streams that were closed already.
    lost: usize,
    opened: usize,
    open: usize,
    open_max: usize,
    /// Whether the next write breaks its stream.
    breaks: bool,
    /// Which stream, counted from 0, can't be opened.
    refused: Option<usize>,
    waiting: Vec<Waker>,
}

impl Client {
    pub(crate) fn new(manner: Manner) -> Arc<Self> {
        let state = State {
            manner,
            is_connected: true,
            read: Vec::new(),
            lost: 0,
            opened: 0,
            open: 0,
            open_max: 0,
            breaks: false,
            refused: None,
            waiting: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub(crate) fn read(&self) -> Vec<Vec<u8>> {
        self.state.lock().read.clone()
    }

    pub(crate) fn behave(&self, manner: Manner) {
        let mut state = self.state.lock();
        state.manner = manner;
        state.waiting.drain(..).for_each(Waker::wake);
    }

    pub(crate) fn connect(&self, is_connected: bool) {
        self.state.lock().is_connected = is_connected;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().is_connected
    }

    pub(crate) fn stream(self: &Arc<Self>) -> Opened {
        let mut state = self.state.lock();
        if !state.is_connected {
            return Err(OpenError::NotConnected);
        }
        assert!(state.manner != Manner::Panics, "a panic on purpose");
        let opened = state.opened;
        let is_refused = state.refused.take_if(|at| *at == opened).is_some();
        if is_refused || state.manner == Manner::Refuses {
            return Err(OpenError::Broken("refused".to_owned()));
        }
        state.opened += 1;
        state.open += 1;
        state.open_max = state.open_max.max(state.open);
        Ok(Box::new(Stream { client: self.clone(), messages: 0, is_broken: false }))
    }
}

struct Stream {
    client: Arc<Client>,
    messages: usize,
    /// The stream must not be used any more: libp2p's streams panic then.
    is_broken: bool,
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        assert!(!self.is_broken, "a broken stream is written to");
        let client = self.client.clone();
        let mut state = client.state.lock();
        if std::mem::take(&mut state.breaks) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match state.manner {
            Manner::ReadsNothing => {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
            Manner::Refuses => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Manner::ReadsOne if self.messages > 0 => state.lost += 1,
            Manner::OtherProtocol => state.lost += 1,
            _ => state.read.push(bytes.to_vec()),
        }
        self.messages += 1;
        state.waiting.drain(..).for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
        assert!(!self.is_broken, "a broken stream is read again");
        let client = self.client.clone();
        let mut state = client.state.lock();
        if state.manner == Manner::OtherProtocol {
            self.is_broken = true;
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if state.manner == Manner::ReadsOne && self.messages > 0 {
            return Poll::Ready(Ok(0));
        }
        state.waiting.push(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.client.state.lock().open -= 1;
    }
}

struct SingleClient(Arc<Client>);

#[async_trait]
impl Opener for SingleClient {
    async fn open(&self, _: PeerId) -> Opened {
        self.0.stream()
    }

    fn is_connected(&self, _: PeerId) -> bool {
        self.0.is_connected()
    }

    fn address(&self, _: PeerId) -> Option<SocketAddr> {
        None
    }
}

fn streams_to(client: &Arc<Client>) -> PushStreams {
    PushStreams::new(PeerId::random(), Arc::new(SingleClient(client.clone())), 5 * WATCHED)
}

/// Messages whose payloads are their numbers.
fn events(numbers: std::ops::Range<u32>) -> Vec<Arc<Event>> {
    let event = |number: u32| {
        let (channel, topic) = ("/waku/2/rs/1/0".into(), "/a/1/b/proto".into());
        let body = number.to_be_bytes().to_vec().into();
        Arc::new(Event::new(channel, topic, MessageHash([0; 32]), Timestamp(0), body))
    };
    numbers.map(event).collect()
}

fn bytes_of(events: &[Arc<Event>]) -> Vec<Vec<u8>> {
    events.iter().map(|event| frame_of(event).to_vec()).collect()
}

async fn push(streams: &mut PushStreams, events: &[Arc<Event>]) {
    streams.push(events).await.unwrap();
}

fn outcome(sent: usize, failed: usize) -> PushOutcome {
    PushOutcome { sent, failed }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_on_gets_one_stream() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..200);
    push(&mut streams, &all[..1]).await;
    tokio::time::sleep(WATCHED).await;
    for batch in all[1..].chunks(8) {
        push(&mut streams, batch).await;
    }
    assert_eq!(client.read(), bytes_of(&all));
    assert_eq!(client.state.lock().opened, 1);
    assert_eq!(streams.take_outcome(), outcome(200, 0));
}

/// js-waku refuses the 101st open stream.
#[tokio::test(start_paused = true)]
async fn a_burst_to_a_client_that_reads_on_takes_few_streams() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..500);
    push(&mut streams, &all).await;
    assert_eq!(client.read(), bytes_of(&all));
    assert_eq!(client.state.lock().open_max, WATCHED_MAX);
    tokio::time::sleep(WATCHED).await;
    streams.settle(Instant::now());
    assert_eq!(client.state.lock().open, 1, "the others are dropped");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_one_message_gets_each_on_its_own_stream() {
    let client = Client::new(Manner::ReadsOne);
    let mut streams = streams_to(&client);
    let all = events(0..300);
    for batch in all.chunks(7) {
        push(&mut streams, batch).await;
        tokio::time::sleep(WATCHED / 3).await;
    }
    assert_eq!(client.read(), bytes_of(&all));
    assert_eq!(client.state.lock().opened, 300);
    assert_eq!(client.state.lock().lost, 0);
    streams.settle(Instant::now());
    assert_eq!(streams.take_outcome(), outcome(300, 0));
    assert_eq!(client.state.lock().open, 0);
}

#[tokio::test(start_paused = true)]
async fn a_burst_to_a_client_that_reads_one_message_arrives() {
    let client = Client::new(Manner::ReadsOne);
    let mut streams = streams_to(&client);
    let all = events(0..100);
    push(&mut streams, &all).await;
    assert_eq!(client.read(), bytes_of(&all));
    assert_eq!(client.state.lock().lost, 0);
}

/// Otherwise a slow client that closes late would again and again get a stream that is reused.
#[tokio::test(start_paused = true)]
async fn after_a_client_closed_a_stream_none_is_reused() {
    let client = Client::new(Manner::ReadsOne);
    let mut streams = streams_to(&client);
    let all = events(0..3);
    push(&mut streams, &all[..1]).await;
    streams.settle(Instant::now());
    client.behave(Manner::ReadsOn);
    push(&mut streams, &all[1..2]).await;
    tokio::time::sleep(WATCHED).await;
    push(&mut streams, &all[2..]).await;
    assert_eq!(client.state.lock().opened, 3);
    streams.forget();
    push(&mut streams, &all[..1]).await;
    tokio::time::sleep(WATCHED).await;
    push(&mut streams, &all[..1]).await;
    assert_eq!(client.state.lock().opened, 4, "after it reconnected its streams are watched again");
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_loses_nothing() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..20);
    push(&mut streams, &all[..1]).await;
    tokio::time::sleep(WATCHED).await;
    push(&mut streams, &all[1..10]).await;
    client.state.lock().breaks = true;
    push(&mut streams, &all[10..]).await;
    assert_eq!(client.read(), bytes_of(&all));
}

#[tokio::test(start_paused = true)]
async fn messages_sent_before_a_failure_are_counted() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..10);
    push(&mut streams, &all[..2]).await;
    assert_eq!(streams.take_outcome(), outcome(0, 0), "nothing is known yet");
    tokio::time::sleep(WATCHED).await;
    client.behave(Manner::ReadsNothing);
    let error = streams.push(&all[2..]).await.unwrap_err();
    assert!(matches!(error, PushError::TimedOut(_)));
    assert_eq!(streams.take_outcome(), outcome(2, 8));
    client.behave(Manner::ReadsOn);
    push(&mut streams, &all[2..]).await;
    assert_eq!(client.read(), bytes_of(&all), "half a message on a reused stream would show here");
    client.connect(false);
    streams.forget();
    assert_eq!(streams.take_outcome(), outcome(8, 0));
    let error = streams.push(&all).await.unwrap_err();
    assert!(matches!(error, PushError::Open(OpenError::NotConnected)));
    assert_eq!(streams.take_outcome(), outcome(0, 10));
}

/// libp2p's streams panic when they are read again after an error, which happened to the oldest one.
#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_while_it_is_waited_for_is_not_read_again() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..40);
    let breaking = async {
        tokio::time::sleep(WATCHED / 2).await;
        assert_eq!(client.read().len(), WATCHED_MAX, "the rest waits for the oldest stream");
        client.behave(Manner::OtherProtocol);
    };
    let (pushed, ()) = tokio::join!(streams.push(&all), breaking);
    pushed.unwrap();
    streams.settle(Instant::now());
    assert_eq!(streams.take_outcome(), outcome(0, 40));
    assert_eq!(client.state.lock().open, 0);
}

/// The streams after one that could not be opened were dropped, and their messages lost.
#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_open_costs_one_message() {
    let client = Client::new(Manner::ReadsOn);
    let mut streams = streams_to(&client);
    let all = events(0..8);
    client.state.lock().refused = Some(2);
    let error = streams.push(&all).await.unwrap_err();
    assert!(matches!(error, PushError::Open(OpenError::Broken(_))));
    assert_eq!(client.read(), bytes_of(&all[..7]));
    tokio::time::sleep(WATCHED).await;
    streams.settle(Instant::now());
    assert_eq!(streams.take_outcome(), outcome(7, 1));
}

#[test]
fn an_event_is_encoded_once_for_all_subscribers() {
    let event = &events(7..8)[0];
    let (first, second) = (frame_of(event), frame_of(event));
    assert_eq!(first.as_ptr(), second.as_ptr());
    use prost::Message as _;
    let push = MessagePush::decode_length_delimited(first.clone()).unwrap();
    assert_eq!(
        (push.waku_message.unwrap(), &*push.pubsub_topic.unwrap()),
        (event.body.clone(), "/waku/2/rs/1/0")
    );
}

#[test]
fn only_tcp_addresses_are_converted() {
    let of = |text: &str| socket_address(&text.parse().unwrap()).map(|address| address.to_string());
    assert_eq!(of("/ip4/192.0.2.1/tcp/60000").as_deref(), Some("192.0.2.1:60000"));
    assert_eq!(of("/ip6/::1/tcp/443/wss").as_deref(), Some("[::1]:443"));
    for other in
        ["/dns4/example.org/tcp/443", "/ip4/192.0.2.1/udp/443/quic-v1", "/ip4/192.0.2.1", "/memory/1"]
    {
        assert_eq!(of(other), None, "{other}");
    }
}
