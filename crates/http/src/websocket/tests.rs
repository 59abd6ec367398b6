use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

const LIMITS: SocketLimits = SocketLimits {
    message_bytes_max: 1 << 10,
    ping_interval: Duration::from_secs(15),
    message_timeout: Duration::from_secs(60),
};

/// A client, and the task of a server that sends back what it receives.
async fn echo() -> (WebSocketStream<DuplexStream>, tokio::task::JoinHandle<()>) {
    let (server, task) = raw_echo();
    (WebSocketStream::from_raw_socket(server, Role::Client, None).await, task)
}

fn raw_echo() -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (here, there) = duplex(64 << 10);
    let task = tokio::spawn(async move {
        let mut socket = WebSocket::new(here, BytesMut::new(), LIMITS).await;
        while let Ok(message) = socket.receive().await {
            if socket.send([message]).await.is_err() {
                return;
            }
        }
    });
    (there, task)
}

/// A masked frame whose mask changes nothing.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match u8::try_from(payload.len()) {
        Ok(len @ ..126) => frame.push(0x80 | len),
        _ => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// What the server sends until it closes.
async fn rest(stream: &mut DuplexStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

fn close_frame(code: u16, reason: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x88, 2 + u8::try_from(reason.len()).unwrap()];
    frame.extend_from_slice(&code.to_be_bytes());
    frame.extend_from_slice(reason);
    frame
}

#[tokio::test(start_paused = true)]
async fn payloads_go_both_ways_as_texts_and_as_bytes() {
    let (mut client, task) = echo().await;
    for frame in [Frame::Text("one".into()), Frame::Binary(vec![0xff; 1_024].into()), Frame::Text("".into())]
    {
        client.send(frame.clone()).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), frame);
    }
    client.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })).await.unwrap();
    let answer = client.next().await.unwrap().unwrap();
    assert!(matches!(answer, Frame::Close(Some(close)) if close.code == CloseCode::Normal));
    task.await.unwrap();
}

/// The sum of the fragments counts, so that no number of small frames makes a large message.
#[tokio::test(start_paused = true)]
async fn a_message_over_the_limit_closes_the_socket_in_one_frame_or_in_many() {
    let whole = frame(0x82, &[b'x'; 1_025]);
    let mut fragments = frame(0x02, &[b'x'; 100]);
    for _ in 0..10 {
        fragments.extend(frame(0x00, &[b'x'; 100]));
    }
    for bytes in [whole, fragments] {
        let (mut client, task) = raw_echo();
        client.write_all(&bytes).await.unwrap();
        assert_eq!(rest(&mut client).await, close_frame(1009, b""));
        task.await.unwrap();
    }
}

/// A frame may announce 2^63 bytes. The server neither waits for them nor allocates memory.
#[tokio::test(start_paused = true)]
async fn an_announced_length_over_the_limit_closes_the_socket_at_once() {
    let (mut client, task) = raw_echo();
    client
        .write_all(&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0])
        .await
        .unwrap();
    assert_eq!(rest(&mut client).await, close_frame(1009, b""));
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn broken_rules_close_the_socket_with_their_code() {
    let unmasked = vec![0x89, 0];
    let compressed = frame(0xc1, b"x"); // nothing was negotiated
    let long_ping = frame(0x89, &[0; 126]);
    let not_utf8 = frame(0x81, &[0xff]);
    for (bytes, code) in [(unmasked, 1002), (compressed, 1002), (long_ping, 1002), (not_utf8, 1007)] {
        let (mut client, task) = raw_echo();
        client.write_all(&bytes).await.unwrap();
        assert_eq!(rest(&mut client).await, close_frame(code, b""), "{bytes:x?}");
        task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_closed() {
    let (mut client, task) = raw_echo();
    let expected = [&[0x89, 0, 0x89, 0][..], &close_frame(1008, b"expired")].concat();
    assert_eq!(rest(&mut client).await, expected);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_pings_stays() {
    let (mut client, task) = echo().await;
    for _ in 0..10 {
        assert!(client.next().await.unwrap().unwrap().is_ping());
        client.flush().await.unwrap(); // the answer that was queued
    }
    assert!(!task.is_finished());
    drop(client);
    task.await.unwrap();
}

/// Answers pings until the server sends something else; returns that, and all that follows.
async fn answer_pings(client: &mut DuplexStream) -> Vec<u8> {
    for _ in 0..100 {
        let mut head = [0; 2];
        client.read_exact(&mut head).await.unwrap();
        if head != [0x89, 0] {
            return [&head[..], &rest(client).await].concat();
        }
        client.write_all(&frame(0x8a, b"")).await.unwrap();
    }
    panic!("the server sends nothing but pings");
}

/// A client that answered pings between fragments could leave a message unfinished for ever.
#[tokio::test(start_paused = true)]
async fn a_message_that_does_not_end_in_time_closes_the_socket() {
    let (mut client, task) = raw_echo();
    let begun = Instant::now();
    client.write_all(&frame(0x01, b"begun")).await.unwrap();
    let expected = close_frame(1008, b"the message did not arrive in time");
    assert_eq!(answer_pings(&mut client).await, expected);
    let latest = LIMITS.message_timeout + CLOSE_TIMEOUT;
    assert!((LIMITS.message_timeout..=latest).contains(&begun.elapsed()));
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_message_has_the_whole_time() {
    let (mut client, task) = raw_echo();
    for _ in 0..3 {
        client.write_all(&frame(0x01, b"a")).await.unwrap();
        for _ in 0..3 {
            let mut ping = [0; 2];
            client.read_exact(&mut ping).await.unwrap();
            assert_eq!(ping, [0x89, 0]);
            client.write_all(&frame(0x8a, b"")).await.unwrap();
        }
        client.write_all(&frame(0x80, b"b")).await.unwrap();
        let mut echo = [0; 4];
        client.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, *b"\x81\x02ab");
    }
    drop(client);
    task.await.unwrap();
}

/// A socket kept a buffer as large as the longest message that it had sent.
#[tokio::test(start_paused = true)]
async fn a_long_message_is_sent_in_fragments() {
    let (here, mut there) = duplex(64 << 10);
    // The first fragment ends within a character.
    let text = format!("x{}", "\u{e4}".repeat(FRAGMENT_BYTES));
    let mut expected = Vec::new();
    for (first, fragment) in [0x01, 0x00, 0x80].iter().zip(text.as_bytes().chunks(FRAGMENT_BYTES)) {
        expected.push(*first);
        match u8::try_from(fragment.len()) {
            Ok(len @ ..126) => expected.push(len),
            _ => {
                expected.push(127);
                expected.extend_from_slice(&(fragment.len() as u64).to_be_bytes());
            }
        }
        expected.extend_from_slice(fragment);
    }
    let sending = tokio::spawn(async move {
        let mut socket = WebSocket::new(here, BytesMut::new(), LIMITS).await;
        socket.send([Message::Text(text)]).await.unwrap();
    });
    assert!(rest(&mut there).await == expected);
    sending.await.unwrap();
}

/// Regression test: the deadline of a message that began while the server waited was checked only after the next ping.
#[tokio::test(start_paused = true)]
async fn a_message_timeout_that_is_shorter_than_the_ping_interval_is_exact() {
    let limits = SocketLimits { message_timeout: LIMITS.ping_interval / 15, ..LIMITS };
    // The first bytes may come with the handshake.
    let with_handshake = BytesMut::from(&*frame(0x01, b"begun"));
    for (read, sent) in [(BytesMut::new(), &[0x01][..]), (with_handshake, &[])] {
        let (here, mut client) = duplex(64 << 10);
        let mut socket = WebSocket::new(here, read, limits).await;
        client.write_all(sent).await.unwrap();
        let begun = Instant::now();
        let receiving = tokio::spawn(async move { (socket.receive().await, Instant::now()) });
        let expected = close_frame(1008, b"the message did not arrive in time");
        assert_eq!(rest(&mut client).await, expected);
        let (received, at) = receiving.await.unwrap();
        assert_eq!(received, Err(Closed));
        assert!((limits.message_timeout..=limits.message_timeout + CLOSE_TIMEOUT).contains(&(at - begun)));
    }
}

/// A whole message within its time, byte by byte, and then nothing but pings for a day.
#[tokio::test(start_paused = true)]
async fn a_slow_message_that_is_complete_in_time_and_an_idle_socket_stay() {
    let (mut client, task) = raw_echo();
    for byte in frame(0x81, b"slow") {
        client.write_all(&[byte]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await; // 10 bytes: 40 seconds
    }
    let mut answers = 0;
    let idle = Instant::now();
    while idle.elapsed() < Duration::from_secs(86_400) {
        let mut head = [0; 2];
        client.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; head[1].into()];
        client.read_exact(&mut payload).await.unwrap();
        answers += u32::from(head[0] == 0x81 && payload == b"slow");
        assert!([0x81, 0x89].contains(&head[0]), "an answer or a ping: {head:x?}");
        client.write_all(&frame(0x8a, b"")).await.unwrap();
    }
    assert_eq!(answers, 1);
    drop(client);
    task.await.unwrap();
}

/// Regression test: while the server sends a long answer it reads nothing, and the client can't continue its message. This time
/// counted, and the socket was closed before the server had read what the client sent next.
#[tokio::test(start_paused = true)]
async fn time_in_which_the_server_sends_is_not_the_time_of_a_message() {
    let (here, mut client) = duplex(4 << 10);
    let (answer, answered) = tokio::sync::oneshot::channel();
    let limits =
        SocketLimits { message_bytes_max: 1 << 20, ping_interval: 100 * LIMITS.message_timeout, ..LIMITS };
    let task = tokio::spawn(async move {
        let mut socket = WebSocket::new(here, BytesMut::new(), limits).await;
        tokio::select! {
            received = socket.receive() => panic!("{received:?}"),
            _ = answered => {}
        }
        socket.send([Message::Binary(vec![b'x'; 8 << 10].into())]).await.unwrap();
        socket.receive().await
    });
    client.write_all(&frame(0x02, b"begun")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await; // the server waits for the rest
    answer.send(()).unwrap();
    tokio::time::sleep(2 * LIMITS.message_timeout).await;
    let mut read = vec![0; 4 + (8 << 10)];
    client.read_exact(&mut read).await.unwrap();
    client.write_all(&frame(0x80, &[b'y'; 16 << 10])).await.unwrap();
    assert_eq!(task.await.unwrap().map(|_| ()), Ok(()));
}

/// Regression test: the deadline was not checked as long as control frames arrived without a pause.
#[tokio::test(start_paused = true)]
async fn control_frames_do_not_defer_the_end_of_a_message() {
    let (here, mut client) = duplex(64 << 10);
    let limits = SocketLimits { message_timeout: Duration::ZERO, ..LIMITS };
    let bytes =
        [frame(0x02, b"begun"), frame(0x89, b"").repeat(READ_BUFFER_BYTES), frame(0x80, b"")].concat();
    client.write_all(&bytes).await.unwrap();
    let mut socket = WebSocket::new(here, BytesMut::new(), limits).await;
    assert_eq!(socket.receive().await, Err(Closed));
}
