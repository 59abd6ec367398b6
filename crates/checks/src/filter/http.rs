//! A small HTTP/1.1 client for one server, with reused connections.

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    HeaderMap, Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use restante_core::Error;
use restante_net::is_public;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Semaphore,
};
use tracing::debug;

use super::url::FilterUrl;

/// The most requests, and connections, at a time: further requests wait. rspamd works on about as many messages as it has processors.
const CONNECTIONS_MAX: usize = 32;
/// How many addresses of the server are tried.
const ADDRESSES_MAX: usize = 4;
/// The longest answer. One of rspamd has a few kilobytes, more if a message has many links.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The server's answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Sends requests to one server. It has no time-out: the caller stops waiting.
pub(super) struct HttpClient {
    url: FilterUrl,
    /// Idle connections.
    kept: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    permits: Semaphore,
}

impl HttpClient {
    pub(super) fn new(url: FilterUrl) -> Self {
        Self { url, kept: Mutex::default(), permits: Semaphore::new(CONNECTIONS_MAX) }
    }

    /// Sends a request, a second time if the server has closed the reused connection: so only for requests that may be repeated.
    pub(super) async fn post(&self, path: &str, headers: &HeaderMap, body: Bytes) -> Result<Answer, Error> {
        let permit = self.permits.acquire().await;
        let _permit = permit.map_err(|_| Error::internal("the client of the filter is closed"))?;
        if let Some(mut kept) = self.take_kept().await {
            match kept.send_request(self.request(path, headers, body.clone())?).await {
                Ok(response) => return self.finish(kept, response).await,
                Err(error) => debug!(%error, "a connection to the filter was closed"),
            }
        }
        let mut sender = self.connect().await?;
        let request = self.request(path, headers, body)?;
        let response = sender.send_request(request).await.map_err(|error| self.unavailable(&error))?;
        self.finish(sender, response).await
    }

    /// A connection that is still open.
    async fn take_kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        loop {
            let mut sender = self.kept.lock().pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn request(&self, path: &str, headers: &HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>, Error> {
        let host = HeaderValue::from_str(&self.url.authority());
        let host = host.map_err(|error| Error::invalid(format!("the filter's address: {error}")))?;
        let request = Request::post(path).body(Full::new(body));
        let mut request =
            request.map_err(|error| Error::internal(format!("a request to the filter: {error}")))?;
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(HOST, host);
        Ok(request)
    }

    async fn finish(
        &self,
        sender: SendRequest<Full<Bytes>>,
        response: hyper::Response<hyper::body::Incoming>,
    ) -> Result<Answer, Error> {
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body =
            body.map_err(|error| Error::unavailable(format!("the filter's answer: {error}")))?.to_bytes();
        if !sender.is_closed() {
            self.kept.lock().push(sender); // No more than there are permits, as each request takes one if there is one.
        }
        Ok(Answer { status, body })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Error> {
        let found = lookup_host((self.url.host.as_str(), self.url.port)).await;
        let found = found.map_err(|error| self.unavailable(&error))?;
        let mut last = format!("{} has no address of a private network", self.url.host);
        // Mail is not sent unencrypted over the internet.
        for address in found.filter(|address| !is_public(address.ip())).take(ADDRESSES_MAX) {
            match TcpStream::connect(address).await {
                Ok(stream) => return self.handshake(stream).await,
                Err(error) => last = error.to_string(),
            }
        }
        Err(self.unavailable(&last))
    }

    async fn handshake(&self, stream: TcpStream) -> Result<SendRequest<Full<Bytes>>, Error> {
        stream.set_nodelay(true).map_err(|error| self.unavailable(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| self.unavailable(&error))?;
        // It ends with the server, or when the sender is dropped.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection to the filter broke");
            }
        });
        Ok(sender)
    }

    fn unavailable(&self, why: &dyn std::fmt::Display) -> Error {
        Error::unavailable(format!("the filter at {} can't be used: {why}", self.url.authority()))
    }
}
