//! Requests to a JMAP server: with TLS unless it is on this machine, and retried when it is busy.

use std::{error::Error, path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use restante_net::tls::{ClientTls, Roots};
use serde_json::{Value, json};

use crate::{client::escape, exit::UsageError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one request may take; a message may be long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// How often a request is sent when the server is not available.
const TRIES: u32 = 6;
/// The longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The longest response except downloads.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const REDIRECTS_MAX: usize = 5;
/// How much of a refusal is shown.
const REFUSAL_CHARS_MAX: usize = 300;
const CORE: &str = "urn:ietf:params:jmap:core";
const MAIL: &str = "urn:ietf:params:jmap:mail";

/// The credentials for reading the source.
pub(super) enum Credentials {
    Basic(String, String),
    Bearer(String),
}

/// Sends requests to the server.
pub(super) struct Client {
    http: HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>,
    authorization: HeaderValue,
}

/// The contents of the session object (RFC 8620 §2).
#[derive(Debug)]
pub(super) struct Session {
    /// The host as given, for keys of messages.
    pub(super) host: String,
    pub(super) account: String,
    pub(super) objects_in_get_max: usize,
    api_url: Uri,
    download_url: String,
}

/// An answer of the server.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Client {
    pub(super) fn new(credentials: &Credentials, ca_file: Option<PathBuf>) -> anyhow::Result<Self> {
        let text = match credentials {
            Credentials::Basic(user, password) => {
                format!("Basic {}", base64_simd::STANDARD.encode_to_string(format!("{user}:{password}")))
            }
            Credentials::Bearer(token) => format!("Bearer {token}"),
        };
        let authorization = HeaderValue::try_from(text);
        let mut authorization =
            authorization.map_err(|_| UsageError("the token can't be sent in a header".to_owned()))?;
        authorization.set_sensitive(true);
        let roots = ca_file.map_or(Roots::System, Roots::File);
        let tls = ClientTls { roots, ..ClientTls::default() }.config()?;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self { http: HttpClient::builder(TokioExecutor::new()).build(connector), authorization })
    }

    /// Reads the session object of the server at a URL.
    pub(super) async fn session(&self, url: &str, account: Option<&str>) -> anyhow::Result<Session> {
        let mut uri = safe(url)?;
        if matches!(uri.path(), "" | "/") {
            uri = joined(&uri, "/.well-known/jmap")?;
        }
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        let mut answer = self.send(Method::GET, &uri, Bytes::new(), ANSWER_BYTES_MAX).await?;
        for _ in 0..REDIRECTS_MAX {
            let Some(to) = redirect(&answer) else { break };
            let next = joined(&uri, to)?;
            if next.host() != uri.host() {
                bail!("{uri} leads to {next}: use jmap:{next} if the log-in may be sent there");
            }
            uri = next;
            answer = self.send(Method::GET, &uri, Bytes::new(), ANSWER_BYTES_MAX).await?;
        }
        let session = json_of(&uri, answer)?;
        let text = |name: &str| session.get(name).and_then(Value::as_str);
        let own =
            session.get("primaryAccounts").and_then(|accounts| accounts.get(MAIL)).and_then(Value::as_str);
        let account = account
            .or(own)
            .context("the session of the source has no account for mail: use --source-account")?;
        let max = session.get("capabilities").and_then(|all| all.get(CORE)?.get("maxObjectsInGet")?.as_u64());
        let (Some(api_url), Some(download_url)) = (text("apiUrl"), text("downloadUrl")) else {
            bail!("the session of the source has no apiUrl or downloadUrl");
        };
        Ok(Session {
            host,
            account: account.to_owned(),
            objects_in_get_max: max.and_then(|max| usize::try_from(max).ok()).unwrap_or(256).max(1),
            api_url: joined(&uri, api_url)?,
            download_url: absolute(&uri, download_url)?,
        })
    }

    /// Makes calls, and returns the arguments of their responses.
    pub(super) async fn call<const N: usize>(
        &self,
        session: &Session,
        calls: [(&str, Value); N],
    ) -> anyhow::Result<[Value; N]> {
        let calls: Vec<Value> = calls
            .into_iter()
            .zip(0..)
            .map(|((name, args), number)| json!([name, args, number.to_string()]))
            .collect();
        let names: Vec<String> =
            calls.iter().filter_map(|call| Some(call.get(0)?.as_str()?.to_owned())).collect();
        let body = json!({"using": [CORE, MAIL], "methodCalls": calls}).to_string();
        let answer = self.send(Method::POST, &session.api_url, body.into(), ANSWER_BYTES_MAX).await?;
        let answer = json_of(&session.api_url, answer)?;
        let responses = answer
            .get("methodResponses")
            .and_then(Value::as_array)
            .context("the source's answer has no responses")?;
        let mut found = Vec::with_capacity(N);
        for (response, name) in responses.iter().zip(&names) {
            let args = response.get(1).cloned().unwrap_or_default();
            if response.get(0).and_then(Value::as_str) != Some(name) {
                bail!("the source refused {name}: {}", short(&args.to_string()));
            }
            found.push(args);
        }
        found.try_into().map_err(|_| anyhow!("the source's answer has too few responses"))
    }

    /// The bytes of a blob; the inner error says why this one is not available.
    pub(super) async fn download(
        &self,
        session: &Session,
        blob: &str,
        bytes_max: u64,
    ) -> anyhow::Result<Result<Bytes, String>> {
        let url = session
            .download_url
            .replace("{accountId}", &escape(&session.account))
            .replace("{blobId}", &escape(blob))
            .replace("{type}", &escape("message/rfc822"))
            .replace("{name}", "message.eml");
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let Answer { status, body, .. } =
            self.send(Method::GET, &safe(&url)?, Bytes::new(), bytes_max).await?;
        match status {
            status if status.is_success() => Ok(Ok(body)),
            StatusCode::UNAUTHORIZED => bail!("the source refuses the log-in"),
            status => Ok(Err(format!("its download was answered {status}"))),
        }
    }

    /// Sends a request, and retries it while the server is busy.
    async fn send(&self, method: Method, uri: &Uri, body: Bytes, bytes_max: usize) -> anyhow::Result<Answer> {
        let mut wait = Duration::from_millis(500);
        for tries in 1.. {
            let answer = self.exchange(method.clone(), uri, body.clone(), bytes_max).await;
            let is_busy = |answer: &Answer| {
                answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS
            };
            match answer {
                Ok(answer) if !is_busy(&answer) || tries >= TRIES => return Ok(answer),
                Err(error) if tries >= TRIES => return Err(error),
                Ok(answer) => wait = retry_after(&answer.headers).unwrap_or(wait * 2),
                Err(_) => wait *= 2,
            }
            tokio::time::sleep(wait.min(WAIT_MAX)).await;
        }
        bail!("{uri} is busy")
    }

    async fn exchange(
        &self,
        method: Method,
        uri: &Uri,
        body: Bytes,
        bytes_max: usize,
    ) -> anyhow::Result<Answer> {
        let request = Request::builder()
            .method(method)
            .uri(uri.clone())
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "*/*")
            .body(Full::new(body))
            .context("the request can't be written as HTTP")?;
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|error| innermost(uri, &error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, bytes_max).collect().await;
            let body = body.map_err(|error| anyhow!("the answer of {uri} broke off: {error}"))?;
            Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        let exchanged = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
        exchanged.with_context(|| format!("{uri} did not answer in time"))?
    }
}

/// An error with only its innermost cause.
fn innermost(uri: &Uri, error: &dyn Error) -> anyhow::Error {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    anyhow!("can't reach {uri}: {cause}")
}

/// A URL to which credentials may be sent: with TLS, or on this machine.
fn safe(url: &str) -> anyhow::Result<Uri> {
    let uri: Uri = url.parse().map_err(|_| UsageError(format!("{url} is no URL: use jmap:https://HOST")))?;
    let host = uri.host().unwrap_or_default();
    let is_own = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
    match uri.scheme_str() {
        Some("https") if !host.is_empty() => Ok(uri),
        Some("http") if is_own => Ok(uri),
        Some("http") => {
            Err(UsageError(format!("{url} is not encrypted, and the log-in would be sent there: use https"))
                .into())
        }
        _ => Err(UsageError(format!("{url} is no URL of a server: use jmap:https://HOST")).into()),
    }
}

/// A URL that may be relative to the host of another one.
fn absolute(base: &Uri, url: &str) -> anyhow::Result<String> {
    if !url.starts_with('/') {
        return Ok(url.to_owned());
    }
    let (Some(scheme), Some(authority)) = (base.scheme_str(), base.authority()) else {
        bail!("{base} is no URL of a server");
    };
    Ok(format!("{scheme}://{authority}{url}"))
}

fn joined(base: &Uri, url: &str) -> anyhow::Result<Uri> {
    safe(&absolute(base, url)?)
}

fn redirect(answer: &Answer) -> Option<&str> {
    let location = answer.headers.get(header::LOCATION)?.to_str().ok()?;
    answer.status.is_redirection().then_some(location)
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn json_of(uri: &Uri, answer: Answer) -> anyhow::Result<Value> {
    let Answer { status, body, .. } = answer;
    if status == StatusCode::UNAUTHORIZED {
        bail!("{uri} refuses the log-in");
    }
    if !status.is_success() {
        bail!("{uri} answered {status}: {}", short(&String::from_utf8_lossy(&body)));
    }
    serde_json::from_slice(&body)
        .with_context(|| format!("{uri} answered something else than JSON: is it JMAP?"))
}

fn short(text: &str) -> String {
    text.trim().chars().take(REFUSAL_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_is_sent_encrypted_or_to_this_machine() {
        assert!(safe("https://mail.example.org").is_ok());
        assert!(safe("http://127.0.0.1:8647/jmap/session").is_ok());
        for (url, why) in [
            ("http://mail.example.org", "not encrypted"),
            ("ftp://mail.example.org", "no URL of a server"),
            ("mail.example.org", "no URL of a server"),
            ("a b", "is no URL"),
        ] {
            let error = safe(url).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn a_url_may_be_relative_to_the_host() {
        let base = safe("https://mail.example.org/.well-known/jmap").unwrap();
        assert_eq!(joined(&base, "/jmap/api").unwrap().to_string(), "https://mail.example.org/jmap/api");
        assert_eq!(absolute(&base, "https://x/{blobId}").unwrap(), "https://x/{blobId}");
        assert!(joined(&base, "http://x/").is_err());
    }
}
