//! Sends one request to a push service (RFC 8030 §5).

use std::{path::Path, time::Duration};

use axum::http::{HeaderValue, Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use restante_net::tls::{ClientTls, Roots, Verify};
use tokio::{net::TcpStream, sync::OnceCell, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use super::endpoint::Endpoint;
use crate::PushConfig;

/// The most bytes of a response head. The body is not read.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The longest `Retry-After` that is accepted: a number of seconds.
const RETRY_AFTER_DIGITS_MAX: usize = 9;

/// The outcome of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    /// The push service has accepted it.
    Sent,
    /// The URL no longer exists.
    Gone,
    /// It may be tried again.
    Failed {
        retry_after: Option<Duration>,
        /// Whether the push service requests fewer pushes.
        is_too_often: bool,
        why: String,
    },
}

/// What is sent.
pub(super) struct PushRequest {
    pub(super) body: Vec<u8>,
    pub(super) is_encrypted: bool,
    /// The value of `Authorization`.
    pub(super) authorization: String,
    /// How long the push service keeps it for a client that can't be reached.
    pub(super) ttl_seconds: u64,
    pub(super) urgency: &'static str,
    /// A push replaces an earlier one with this topic that the client has not received yet.
    pub(super) topic: Option<&'static str>,
}

/// Sends requests to push services.
pub(super) struct Client {
    allow_private: bool,
    timeout: Duration,
    roots: Roots,
    tls: OnceCell<TlsConnector>,
}

impl Client {
    pub(super) fn new(config: &PushConfig) -> Self {
        let roots = match config.root_file.as_path() {
            file if file == Path::new("") => Roots::System,
            file => Roots::File(file.to_owned()),
        };
        let timeout = Duration::from_millis(config.timeout_ms.get());
        Self { allow_private: config.allow_private, timeout, roots, tls: OnceCell::new() }
    }

    /// Sends a push over a connection of its own. Redirects are not followed.
    pub(super) async fn send(&self, endpoint: &Endpoint, push: PushRequest) -> PushOutcome {
        let failed = |why| PushOutcome::Failed { retry_after: None, is_too_often: false, why };
        match timeout(self.timeout, self.exchange(endpoint, push)).await {
            Err(_) => failed("the push service did not answer in time".to_owned()),
            Ok(Err(why)) => failed(why),
            Ok(Ok(outcome)) => outcome,
        }
    }

    async fn exchange(&self, endpoint: &Endpoint, push: PushRequest) -> Result<PushOutcome, String> {
        let request = request(endpoint, push)?;
        let stream = self.connect(endpoint).await?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) =
            builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        // The connection is closed after the response head: nothing of its body is read.
        let mut connection = std::pin::pin!(connection);
        let mut sent = std::pin::pin!(sender.send_request(request));
        let response = tokio::select! {
            biased;
            response = &mut sent => response,
            _ = &mut connection => sent.await,
        };
        let response = response.map_err(|error| format!("the push service broke off: {error}"))?;
        Ok(outcome_of(response.status(), response.headers().get(header::RETRY_AFTER)))
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<TlsStream<TcpStream>, String> {
        let name = ServerName::try_from(endpoint.host.clone())
            .map_err(|_| "the host can't be named in a certificate".to_owned())?;
        let addresses = endpoint.addresses(self.allow_private).await?;
        let tls = self.tls.get_or_try_init(|| self.read_roots()).await?;
        let mut last = String::new();
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    let _ = stream.set_nodelay(true); // without it, only latency suffers
                    return tls.connect(name, stream).await.map_err(|error| format!("TLS failed: {error}"));
                }
                Err(error) => last = format!("can't connect: {error}"),
            }
        }
        Err(last)
    }

    /// Reads the certificates of authorities, which may be many files.
    async fn read_roots(&self) -> Result<TlsConnector, String> {
        let tls = ClientTls { verify: Verify::ChainAndName, roots: self.roots.clone(), identity: None };
        let read = tokio::task::spawn_blocking(move || tls.config().map_err(|error| error.to_string())).await;
        read.map_err(|error| error.to_string())?.map(|config| TlsConnector::from(std::sync::Arc::new(config)))
    }
}

fn request(endpoint: &Endpoint, push: PushRequest) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::post(&endpoint.path)
        .header(header::HOST, &endpoint.authority)
        // RFC 8620 §7.2: the type is that of the plaintext.
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::AUTHORIZATION, push.authorization)
        .header(header::CONNECTION, "close")
        .header("ttl", push.ttl_seconds)
        .header("urgency", push.urgency);
    if let Some(topic) = push.topic {
        request = request.header("topic", topic);
    }
    if push.is_encrypted {
        request = request.header(header::CONTENT_ENCODING, "aes128gcm");
    }
    request.body(Full::from(push.body)).map_err(|error| error.to_string())
}

fn outcome_of(status: StatusCode, retry_after: Option<&HeaderValue>) -> PushOutcome {
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => PushOutcome::Gone,
        status if status.is_success() => PushOutcome::Sent,
        status => PushOutcome::Failed {
            retry_after: retry_after.and_then(seconds),
            is_too_often: status == StatusCode::TOO_MANY_REQUESTS,
            why: format!("the push service answered {status}"),
        },
    }
}

/// The seconds of a `Retry-After`; one with a date is ignored.
fn seconds(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let is_number =
        (1..=RETRY_AFTER_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok().map(Duration::from_secs) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p5_answers_of_push_services_are_understood() {
        let of = |status: u16, retry_after: Option<&'static str>| {
            outcome_of(
                StatusCode::from_u16(status).unwrap(),
                retry_after.map(HeaderValue::from_static).as_ref(),
            )
        };
        for sent in [200, 201, 202, 204] {
            assert_eq!(of(sent, None), PushOutcome::Sent);
        }
        assert_eq!((of(404, None), of(410, None)), (PushOutcome::Gone, PushOutcome::Gone));
        for (status, header, seconds) in [
            (503, Some("120"), Some(120)),
            (503, Some("Fri, 31 Dec 1999 23:59:59 GMT"), None),
            (503, Some("-1"), None),
            (503, Some("99999999999"), None),
            (429, Some(" 7 "), Some(7)),
            (301, None, None),
            (307, Some("1"), Some(1)),
            (400, None, None),
            (100, None, None),
        ] {
            let PushOutcome::Failed { retry_after, is_too_often, .. } = of(status, header) else {
                panic!("{status}")
            };
            assert_eq!(retry_after, seconds.map(Duration::from_secs), "{status} {header:?}");
            assert_eq!(is_too_often, status == 429);
        }
    }
}
