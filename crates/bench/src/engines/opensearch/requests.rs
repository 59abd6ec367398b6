//! Requests to OpenSearch and the errors that it returns.

use std::{fmt, time::Duration};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde_json::Value;
use tokio::time::timeout;

use super::super::http_client::{Address, HttpClient};
use super::EnginesArgs;

/// Requests that take longer have failed.
const REQUEST_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Characters of an error of the server that are shown.
const ERROR_CHARS_MAX: usize = 300;

/// A client of one OpenSearch.
#[derive(Clone)]
pub(crate) struct Requests {
    client: HttpClient<Full<Bytes>>,
    base: String,
    authorization: Option<HeaderValue>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("base", &self.base).finish_non_exhaustive() // passwords stay out of logs
    }
}

/// A status and a body.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Requests {
    /// `credentials` are `<user>:<password>`.
    pub(super) fn new(
        address: &Address,
        credentials: Option<&str>,
        args: &EnginesArgs,
    ) -> anyhow::Result<Self> {
        let authorization = credentials.map(|credentials| {
            let encoded = base64_simd::STANDARD.encode_to_string(credentials);
            let mut value = HeaderValue::try_from(format!("Basic {encoded}"))?;
            value.set_sensitive(true);
            anyhow::Ok(value)
        });
        let authorization = authorization.transpose()?;
        Ok(Self { client: address.client(args)?, base: address.base.clone(), authorization })
    }

    /// The version of the server.
    ///
    /// # Errors
    /// When it can't be reached, or is no OpenSearch; says what to do.
    pub(super) async fn check(&self) -> anyhow::Result<String> {
        let answer = timeout(CONNECT_MAX, self.send(Method::GET, "/", Bytes::new()))
            .await
            .map_err(|_| anyhow!("no answer within {} s", CONNECT_MAX.as_secs()))
            .flatten()
            .context("can't connect: look at --opensearch and --ca-file")?;
        match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                bail!("wrong user or password: look at --opensearch-credentials")
            }
            status if !status.is_success() => return Err(answer.error("can't ask for its version")),
            _ => {}
        }
        let version = answer
            .json()
            .ok()
            .and_then(|found| found.pointer("/version/number")?.as_str().map(str::to_owned));
        version.context("it is no OpenSearch: look at --opensearch")
    }

    /// The body of a successful answer to GET.
    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.json(Method::GET, path, Bytes::new()).await
    }

    /// The body of a successful answer.
    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> anyhow::Result<Value> {
        let what = format!("{method} {path}");
        let answer = self.send(method, path, body.into()).await?;
        match answer.status.is_success() {
            true => answer.json(),
            false => Err(answer.error(&what)),
        }
    }

    /// Any answer.
    pub(crate) async fn send(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Answer> {
        self.send_within(REQUEST_MAX, method, path, body).await
    }

    /// Any answer that comes in time.
    pub(super) async fn send_within(
        &self,
        limit: Duration,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<Answer> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        let kind = if path.contains("/_bulk") { "application/x-ndjson" } else { "application/json" };
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, kind);
        }
        let request = request.body(Full::new(body))?;
        let asked = timeout(limit, async {
            let (head, body) = self.client.request(request).await?.into_parts();
            anyhow::Ok(Answer { status: head.status, body: body.collect().await?.to_bytes() })
        });
        asked.await.map_err(|_| anyhow!("no answer within {} s", limit.as_secs()))?
    }
}

impl Answer {
    pub(super) fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_slice(&self.body).context("the answer is no JSON")
    }

    /// The error in the body.
    pub(crate) fn error(&self, what: &str) -> anyhow::Error {
        let found = self.json().unwrap_or_default();
        let field = |path: &str| found.pointer(path).and_then(Value::as_str);
        let text = match (field("/error"), field("/error/type"), field("/error/reason")) {
            (Some(text), ..) => text.to_owned(),
            (_, Some(kind), Some(reason)) => format!("{kind}: {reason}"),
            _ => String::from_utf8_lossy(&self.body).into_owned(),
        };
        let text: String = text.chars().take(ERROR_CHARS_MAX).collect();
        let advice = match self.status {
            StatusCode::UNAUTHORIZED => ": look at --opensearch-credentials",
            StatusCode::FORBIDDEN => {
                ": give this user the right to make, fill, search and delete indexes named restante_bench_*, and to \
                 read the cluster's settings and statistics"
            }
            StatusCode::TOO_MANY_REQUESTS => ": its heap is too small for this load",
            _ => "",
        };
        anyhow!("{what}: {} {text}{advice}", self.status.as_u16())
    }
}
