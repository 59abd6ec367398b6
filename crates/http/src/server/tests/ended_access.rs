//! Streams and sockets whose credentials become invalid.

use async_trait::async_trait;
use axum::http::request::Parts;
use futures_util::StreamExt;
use tokio::sync::watch;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, protocol::frame::coding::CloseCode},
};

use super::*;
use crate::{
    AccessEnded, Admission, Audience, Caller, Denied, Front, Guard, HttpMetrics, MemoryBudget, RefusalFormat,
    Route, Sites, event_stream,
};

/// Lets everybody pass until it is closed.
#[derive(Debug)]
struct Closing(watch::Sender<bool>);

#[async_trait]
impl Guard for Closing {
    async fn check(&self, _: &mut Parts, _: Option<SocketAddr>) -> Result<Admission, Denied> {
        if *self.0.borrow() {
            return Err(Denied::forbidden("closed"));
        }
        let mut closed = self.0.subscribe();
        let ended = AccessEnded::new(async move {
            let _ = closed.wait_for(|is_closed| *is_closed).await;
        });
        Ok(Admission { caller: Caller::Account(1), ended: Some(ended) })
    }
}

fn router_of(guard: Arc<Closing>) -> Router {
    let front = Front {
        metrics: HttpMetrics::default().of("test"),
        memory: Arc::<MemoryBudget>::default(),
        operators: Arc::default(),
        accounts: Some(guard),
        sites: Sites::default(),
        format: RefusalFormat::Text,
    };
    let events = async || {
        let begun = futures_util::stream::iter([bytes::Bytes::from_static(b":\n\n")]);
        event_stream::response(begun.chain(futures_util::stream::pending()))
    };
    front.router(vec![
        Route::get("/events", "a test", events).with_audience(Audience::Accounts),
        Route::get("/echo", "a test", echo).with_audience(Audience::Accounts),
    ])
}

async fn close_code<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    mut socket: WebSocketStream<S>,
) -> CloseCode {
    match tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap() {
        Message::Close(Some(frame)) => frame.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn streams_break_off_and_sockets_are_closed_over_both_versions() {
    let guard = Arc::new(Closing(watch::Sender::new(false)));
    let server = Server::start_with(LIMITS, 100, router_of(guard.clone())).await;
    let ask = b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut events = server.connect().await;
    events.write_all(ask).await.unwrap();
    let mut events2 = http2(&server, 65_535).await;
    events2.write_all(&request(1, "/events")).await.unwrap();
    assert_eq!(next_of(&mut events2, DATA, 1).await.unwrap(), b":\n\n");
    let url = format!("ws://{}/echo", server.address);
    let (socket, _) = client_async(&url, server.connect().await).await.unwrap();
    let mut client = http2_sockets::connect(&server).await;
    let socket2 = http2_sockets::open(&mut client).await;

    guard.0.send_replace(true);
    let received = String::from_utf8(rest(&mut events).await).unwrap();
    assert!(received.contains("HTTP/1.1 200 OK") && received.contains(":\n\n"), "{received}");
    assert!(!received.ends_with("0\r\n\r\n"), "the end is no clean one: {received}");
    assert!(next_of(&mut events2, RST_STREAM, 1).await.is_some());
    assert_eq!(close_code(socket).await, CloseCode::Policy);
    assert_eq!(close_code(socket2).await, CloseCode::Policy);

    let mut refused = server.connect().await;
    refused.write_all(ask).await.unwrap();
    refused.shutdown().await.unwrap();
    assert!(rest(&mut refused).await.starts_with(b"HTTP/1.1 403 "));
    drop((events2, client));
    server.stop().await;
}
