//! Sends requests to the storage: kept-alive connections, TLS, and a limit for each wait.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector as TcpConnector},
    rt::TokioExecutor,
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use restante_net::tls::{ClientTls, Roots, Verify};
use tokio::time::{Sleep, sleep, timeout};

use crate::{
    Error, S3Config,
    s3_metrics::{RequestLabel, S3Metrics},
};

/// How long an answer may pause after it has begun.
const STALL_MAX: Duration = Duration::from_secs(10);
/// The time that the body of a request takes at this rate is added to the limit of the request.
const SLOWEST_BYTES_PER_SECOND: u64 = 256 << 10;
/// Requests for which the storage has to copy an object itself get this much more time.
const COPY_MAX: Duration = Duration::from_secs(60);
/// How long an idle connection stays open.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// Sends the requests of `object_store`.
#[derive(Clone)]
pub(super) struct Http {
    client: Client<HttpsConnector<TcpConnector>, HttpRequestBody>,
    answer: Duration,
    metrics: S3Metrics,
}

impl Http {
    /// # Errors
    /// `Invalid`: the trusted certificates can't be used.
    pub(super) fn new(config: &S3Config, is_tls: bool, metrics: S3Metrics) -> Result<Self, Error> {
        let tls = match &config.ca_file {
            // No certificates are read for connections without TLS.
            _ if !is_tls => ClientTls { verify: Verify::Nothing, ..ClientTls::default() },
            file if file.as_os_str().is_empty() => ClientTls::default(),
            file => ClientTls { roots: Roots::File(file.clone()), ..ClientTls::default() },
        };
        let tls = tls.config().map_err(|error| Error::invalid(format!("TLS to the S3 storage: {error}")))?;
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(config.connect_timeout_ms.get())));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = match is_tls {
            true => builder.https_only().enable_http1().wrap_connector(tcp),
            false => builder.https_or_http().enable_http1().wrap_connector(tcp),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(connector);
        let answer = Duration::from_millis(config.answer_timeout_ms.get());
        Ok(Self { client, answer, metrics })
    }

    /// How long this request may take until its answer begins.
    fn limit(&self, request: &HttpRequest) -> Duration {
        let is_copy = request.headers().contains_key("x-amz-copy-source");
        let is_completion = request.method() == Method::POST;
        let sending = Duration::from_secs(request.body().content_length() as u64 / SLOWEST_BYTES_PER_SECOND);
        let moving = if is_copy || is_completion { COPY_MAX } else { Duration::ZERO };
        self.answer + sending + moving
    }

    fn count(&self, method: &Method, result: &'static str, start: Instant) {
        let method = match *method {
            Method::PUT => "put",
            Method::GET => "get",
            Method::HEAD => "head",
            Method::DELETE => "delete",
            _ => "post",
        };
        self.metrics.requests.get_or_create(&RequestLabel { method, result }).inc();
        self.metrics.request_seconds.observe(start.elapsed().as_secs_f64());
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

impl HttpConnector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (limit, method, start) = (self.limit(&request), request.method().clone(), Instant::now());
        let answered = match timeout(limit, self.client.request(request)).await {
            Ok(answered) => answered.map_err(|error| {
                // It is unknown whether a request was executed if its connection was cut.
                let is_connect = error.is_connect();
                HttpError::new(
                    if is_connect { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted },
                    error,
                )
            }),
            Err(_) => Err(too_late(format!("no answer within {limit:?}"))),
        };
        let result = match &answered {
            Ok(answer) if answer.status().is_server_error() => "failed",
            Ok(answer) if answer.status() == StatusCode::TOO_MANY_REQUESTS => "failed",
            Ok(answer) if answer.status().is_client_error() => "refused",
            Ok(_) => "ok",
            Err(_) => "no_answer",
        };
        self.count(&method, result, start);
        let (head, body) = answered?.into_parts();
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(Watched { body, stall: None })))
    }
}

fn too_late(what: String) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, what))
}

/// The body of an answer, which may not pause for long. Pauses of the reader do not count.
struct Watched {
    body: Incoming,
    /// Since when the next bytes are awaited.
    stall: Option<Pin<Box<Sleep>>>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.stall = None;
            let cut = |error| HttpError::new(HttpErrorKind::Interrupted, error);
            return Poll::Ready(frame.map(|frame| frame.map_err(cut)));
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(STALL_MAX)));
        ready!(stall.as_mut().poll(cx));
        self.stall = None;
        Poll::Ready(Some(Err(too_late(format!("the answer stalled for {STALL_MAX:?}")))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
