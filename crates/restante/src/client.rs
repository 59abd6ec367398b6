//! A small HTTP client for the REST door.

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, anyhow};
use bytes::Bytes;
use clap::{Args, ValueHint};
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{
    config::{self, Config},
    doors,
    exit::UsageError,
    secrets,
};

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest response: far more than a page of 100 messages of the network's limit of 150 KiB in base64.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The longest line of a response that is read line by line.
const LINE_BYTES_MAX: usize = 1 << 20;

/// A request that a server refused.
#[derive(Debug, thiserror::Error)]
#[error("{base} answered {status}: {text}")]
pub(crate) struct Refused {
    base: String,
    pub(crate) status: StatusCode,
    pub(crate) text: String,
}

/// The server is not reachable.
#[derive(Debug, thiserror::Error)]
#[error("can't reach {base}: {cause}: is a server running there?")]
pub(crate) struct Unreachable {
    base: String,
    cause: String,
}

/// How much of a refusal's text is shown.
const REFUSAL_CHARS_MAX: usize = 500;
/// The unreserved characters of RFC 3986 §2.3: they need no escape in any part of a URL.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A text as a segment of a path or a value of a query.
pub(crate) fn escape(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The environment variable with the token. There is no flag for it, because everybody on the machine can read command lines.
pub(crate) const TOKEN_VARIABLE: &str = "RESTANTE_TOKEN";

/// Which server, for commands that are for its operators.
#[derive(Args, Clone, Debug)]
pub(crate) struct OperatorFlags {
    /// The server's listener for operators [default: that of the settings, http://127.0.0.1:8646]
    #[arg(long, value_name = "URL")]
    rest: Option<String>,
    /// A file with the server's token, or an operator's [default: RESTANTE_TOKEN, then operate.token_file of the settings]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
}

impl OperatorFlags {
    /// The flags of a command that has found its server by itself.
    pub(crate) fn of(rest: String, token_file: Option<PathBuf>) -> Self {
        Self { rest: Some(rest), token_file }
    }

    /// A client for that server, with the token if there is one.
    pub(crate) fn client(&self) -> anyhow::Result<RestClient> {
        let settings = config::load(None, config::environment(), Vec::new());
        let (url, own_token) = match &self.rest {
            // A command that names its server does not need the settings.
            Some(url) => (url.clone(), settings.ok().and_then(|settings| token_for(url, &settings.config))),
            None => {
                let config = settings?.config;
                let no_listener = "the settings have no listener without TLS: name the server with --rest";
                let url = server_of(&config).ok_or_else(|| UsageError(no_listener.to_owned()))?;
                (url, own_token(&config))
            }
        };
        let token = match self.token_file.as_ref().or(own_token.as_ref()) {
            Some(file) => Some(secrets::read("token", file)?),
            None => std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()),
        };
        let mut client = RestClient::new(&url)?;
        if let Some(token) = token {
            let value = HeaderValue::try_from(format!("Bearer {token}"));
            let mut value =
                value.map_err(|_| UsageError("the token can't be sent in a header".to_owned()))?;
            value.set_sensitive(true);
            client.authorization = Some(value);
        }
        Ok(client)
    }
}

/// The token file of the settings for a command with a URL, if the URL is that of the settings' server. Other servers never get that
/// token.
pub(crate) fn token_for(url: &str, config: &Config) -> Option<PathBuf> {
    let is_own = server_of(config).is_some_and(|own| own == url.trim_end_matches('/'));
    is_own.then(|| own_token(config)).flatten()
}

/// The token file of the settings' server, if this user may read it and the environment has no token.
pub(crate) fn own_token(config: &Config) -> Option<PathBuf> {
    let file = config.token_file();
    let is_set = !file.as_os_str().is_empty();
    let has_other = std::env::var(TOKEN_VARIABLE).is_ok_and(|token| !token.is_empty());
    (is_set && !has_other && std::fs::File::open(file).is_ok()).then(|| file.to_owned())
}

/// The URL of the operators' routes on the server of the settings, as reached from this machine: that of `operate.listen`, else that of
/// REST. `None` if neither has a known port without TLS.
pub(crate) fn server_of(config: &Config) -> Option<String> {
    if let Some(listen) = config.operate.listen.filter(|listen| listen.port() != 0 && !config.operate.tls) {
        return Some(local_url(listen.ip(), listen.port()));
    }
    let listeners = doors::listeners(config);
    let plain = listeners.into_iter().find(|own| own.address.port() != 0 && !own.has_tls)?;
    Some(local_url(plain.address.ip(), plain.address.port()))
}

/// The URL of a listener; one that listens on all addresses is reached by loopback.
fn local_url(ip: IpAddr, port: u16) -> String {
    let ip = match ip {
        IpAddr::V4(any) if any.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(any) if any.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(ip, port))
}

/// Talks to one server.
#[derive(Debug)]
pub(crate) struct RestClient {
    base: String,
    authorization: Option<HeaderValue>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl RestClient {
    /// A client for a server's URL, such as `http://127.0.0.1:8645`.
    pub(crate) fn new(url: &str) -> Result<Self, UsageError> {
        let wrong =
            |what: &str| UsageError(format!("--rest '{url}' {what}: use a URL like http://127.0.0.1:8645"));
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("is no URL ({error})")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("asks for TLS, which this client does not speak yet")),
            _ => return Err(wrong("is no http URL")),
        }
        if uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(wrong("is no address of a server"));
        }
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { base, authorization: None, client: Client::builder(TokioExecutor::new()).build_http() })
    }

    /// The response to a GET.
    pub(crate) async fn get(&self, path_and_query: &str) -> anyhow::Result<Bytes> {
        self.send(Method::GET, path_and_query, Bytes::new()).await
    }

    /// The response to a POST of JSON.
    pub(crate) async fn post(&self, path: &str, json: Vec<u8>) -> anyhow::Result<Bytes> {
        self.send(Method::POST, path, json.into()).await
    }

    /// Calls `each` with each line of the response to a POST of JSON as it arrives; there is no limit on the total time.
    pub(crate) async fn post_lines(
        &self,
        path: &str,
        json: Vec<u8>,
        each: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let request = self.request(Method::POST, path, json.into())?;
        let answer = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
        let (status, mut body) = (answer.status(), answer.into_body());
        let mut waiting = Vec::new();
        while let Some(frame) = self.in_time(body.frame()).await? {
            let frame = frame.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.base))?;
            waiting.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            if waiting.len() > LINE_BYTES_MAX {
                return Err(anyhow!("the answer of {} has a line that is too long", self.base));
            }
            while let Some(end) =
                waiting.iter().position(|byte| *byte == b'\n').filter(|_| status.is_success())
            {
                let line: Vec<u8> = waiting.drain(..=end).collect();
                each(line.trim_ascii())?;
            }
        }
        if status.is_success() { Ok(()) } else { Err(self.refused(status, &waiting).into()) }
    }

    /// The response to a DELETE without a body.
    pub(crate) async fn delete(&self, path_and_query: &str) -> anyhow::Result<Bytes> {
        self.send(Method::DELETE, path_and_query, Bytes::new()).await
    }

    async fn send(&self, method: Method, path_and_query: &str, body: Bytes) -> anyhow::Result<Bytes> {
        let request = self.request(method, path_and_query, body)?;
        let (status, body) = self.in_time(self.exchange(request)).await??;
        if !status.is_success() {
            return Err(self.refused(status, &body).into());
        }
        Ok(body)
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Refused {
        let text = String::from_utf8_lossy(body).trim().chars().take(REFUSAL_CHARS_MAX).collect();
        Refused { base: self.base.clone(), status, text }
    }

    /// The result of `answer`, if it completes in time.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> anyhow::Result<T> {
        let seconds = REQUEST_TIMEOUT.as_secs();
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
        answer.with_context(|| format!("{} did not answer within {seconds} s", self.base))
    }

    fn request(
        &self,
        method: Method,
        path_and_query: &str,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let mut request = Request::builder();
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request
            .method(method)
            .uri(format!("{}{path_and_query}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Full::new(body))
            .context("the request can't be written as HTTP")
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let answer = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| anyhow!("the answer of {} broke off: {error}", self.base))?;
        Ok((status, body.to_bytes()))
    }

    /// An error with only its innermost cause: the outer layers of the HTTP client do not help a user.
    fn unreachable(&self, error: &dyn Error) -> anyhow::Error {
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Unreachable { base: self.base.clone(), cause: cause.to_string() }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn urls_that_name_no_server_are_refused() {
        assert!(RestClient::new("http://127.0.0.1:8645/").is_ok());
        for (url, why) in [
            ("https://example.org", "does not speak yet"),
            ("127.0.0.1:8645", "is no http URL"),
            ("ftp://example.org", "is no http URL"),
            ("http://", "is no URL"),
            ("http://host?x=1", "is no address"),
        ] {
            let error = RestClient::new(url).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn topics_are_escaped_whole() {
        assert_eq!(escape("/waku/2/rs/1/0 ä"), "%2Fwaku%2F2%2Frs%2F1%2F0%20%C3%A4");
    }
}
