//! Requests to OpenSearch, each within its time limit, and the meaning of its responses.

use std::{fmt, time::Duration};

use base64_simd::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use restante_core::ErrorKind;
use restante_net::tls::{ClientTls, Roots, Verify};
use serde_json::Value;
use tokio::time::timeout;

use crate::{Error, OpensearchConfig, OpensearchUrl};

/// The longest response: a page of hits takes about 1 MB, and a bulk request names each of its items.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// The most characters of an error of OpenSearch that are shown.
const ERROR_CHARS_MAX: usize = 300;
/// How long an idle connection is kept.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// A client of one OpenSearch.
pub(super) struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base).finish_non_exhaustive() // passwords stay out of logs
    }
}

/// The body of a request.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Nothing,
    Json(Value),
    /// JSON values, each on a line.
    Lines(Bytes),
}

/// A status and a complete body.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    body: Bytes,
}

impl Client {
    pub(super) fn new(url: &OpensearchUrl, config: &OpensearchConfig) -> Result<Self, Error> {
        let tls = match url.is_tls() {
            // No certificates are read for connections without TLS.
            false => ClientTls { verify: Verify::Nothing, ..ClientTls::default() },
            true if config.ca_file.as_os_str().is_empty() => ClientTls::default(),
            true => ClientTls { roots: Roots::File(config.ca_file.clone()), ..ClientTls::default() },
        };
        let tls = tls.config().map_err(|error| Error::invalid(error.to_string()))?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(config.timeout_ms.get())));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let connector = match url.is_tls() {
            true => builder.https_only().enable_http1().wrap_connector(tcp),
            false => builder.https_or_http().enable_http1().wrap_connector(tcp),
        };
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(config.queries_max.get())
            .build(connector);
        let authorization = url.credentials().map(|(user, password)| {
            let encoded = STANDARD.encode_to_string(format!("{user}:{password}"));
            HeaderValue::try_from(format!("Basic {encoded}")).map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        let authorization = authorization
            .transpose()
            .map_err(|_| Error::invalid("user and password of OpenSearch can't be sent"))?;
        Ok(Self { http, base: url.base(), authorization })
    }

    /// Sends a request, and returns any complete response that arrives in time.
    ///
    /// # Errors
    /// `Unavailable` when none arrived.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Body,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let bytes = match body {
            Body::Nothing => Bytes::new(),
            Body::Json(value) => {
                request = request.header(CONTENT_TYPE, "application/json");
                value.to_string().into()
            }
            Body::Lines(lines) => {
                request = request.header(CONTENT_TYPE, "application/x-ndjson");
                lines
            }
        };
        let request = request
            .body(Full::new(bytes))
            .map_err(|error| Error::internal("a request to OpenSearch can't be made").with_source(error))?;
        let asked = timeout(limit, async {
            let answer = self.http.request(request).await.map_err(|error| unreachable(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| unreachable(&*error))?.to_bytes();
            Ok(Answer { status: head.status, body })
        });
        asked.await.unwrap_or_else(|_| {
            Err(Error::unavailable(format!("OpenSearch did not answer within {} ms", limit.as_millis())))
        })
    }
}

/// An error of the connection, with its causes.
fn unreachable(error: &(dyn std::error::Error + 'static)) -> Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    Error::unavailable(format!("OpenSearch can't be reached: {text}"))
}

impl Answer {
    /// The value of the body.
    ///
    /// # Errors
    /// `Unavailable`: a server that answers with something else is not an OpenSearch, at least not now.
    pub(super) fn json(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body)
            .map_err(|_| Error::unavailable("what OpenSearch answered is no JSON: is it another server"))
    }

    /// The value of a successful response; `what` was requested.
    pub(super) fn success(&self, what: &str) -> Result<Value, Error> {
        if self.status.is_success() { self.json() } else { Err(self.error(what)) }
    }

    /// The type of the error in the response.
    fn error_type(&self) -> Option<String> {
        let found: Value = serde_json::from_slice(&self.body).ok()?;
        found.pointer("/error/type")?.as_str().map(str::to_owned)
    }

    /// Whether it reports that the index does not exist.
    pub(super) fn is_missing(&self) -> bool {
        let kinds = ["index_not_found_exception", "alias_not_found_exception", "aliases_not_found_exception"];
        self.status == StatusCode::NOT_FOUND && self.error_type().is_some_and(|kind| kinds.contains(&&*kind))
    }

    /// Whether OpenSearch refused user and password, or the user lacks rights.
    pub(super) fn is_refused(&self) -> bool {
        let is_status = matches!(self.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        is_status && !self.is_blocked()
    }

    fn is_blocked(&self) -> bool {
        self.error_type().is_some_and(|kind| is_block(&kind))
    }

    /// The response as an error.
    pub(super) fn error(&self, what: &str) -> Error {
        let found: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let field = |path: &str| found.pointer(path).and_then(Value::as_str);
        let text = match (field("/error/type"), field("/error/reason")) {
            (Some(kind), Some(reason)) => format!("{kind}: {reason}"),
            _ => field("/error")
                .map_or_else(|| String::from_utf8_lossy(&self.body).into_owned(), str::to_owned),
        };
        let kind = match self.status {
            _ if self.is_blocked() => ErrorKind::Full,
            StatusCode::BAD_REQUEST => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        };
        let advice = match self.status {
            _ if self.is_blocked() => ": its disk may be full, or the index is blocked for writes",
            _ if self.is_refused() => ": look at the user, the password and the rights of the search URL",
            _ => "",
        };
        let (status, text) = (self.status.as_u16(), shortened(&text));
        Error::new(kind, format!("OpenSearch can't {what}: {status} {text}{advice}"))
    }
}

/// Whether an error means that the index accepts no writes, as when a disk is full.
pub(super) fn is_block(kind: &str) -> bool {
    kind == "cluster_block_exception"
}

/// The beginning of a foreign text.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}
