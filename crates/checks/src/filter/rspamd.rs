use std::{fs, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue},
};
use restante_core::Error;
use tokio::time::timeout;

use super::{
    Filter, FilterConfig, FilterVerdict, Lesson,
    http::{Answer, HttpClient},
    reply,
    url::FilterUrl,
};
use crate::{Envelope, Reverse, text::printable};

/// The most recipients of a message that are sent to it.
const RECIPIENTS_MAX: usize = 100;
/// The longest password.
const PASSWORD_BYTES_MAX: usize = 1_024;
/// How much of its text is logged if it does not learn.
const SAID_BYTES_MAX: usize = 200;

const IP: HeaderName = HeaderName::from_static("ip");
const HELO: HeaderName = HeaderName::from_static("helo");
const HOSTNAME: HeaderName = HeaderName::from_static("hostname");
const FROM: HeaderName = HeaderName::from_static("from");
const RCPT: HeaderName = HeaderName::from_static("rcpt");
const QUEUE_ID: HeaderName = HeaderName::from_static("queue-id");
const PASSWORD: HeaderName = HeaderName::from_static("password");

/// rspamd, over HTTP: its normal worker judges, its controller learns.
pub struct Rspamd {
    config: FilterConfig,
    judge: Option<HttpClient>,
    learn: Option<HttpClient>,
    password: Option<HeaderValue>,
}

impl Rspamd {
    /// The filter of these settings; `None` if they configure none. Nothing is sent yet. Its methods must be called in a tokio
    /// runtime.
    ///
    /// # Errors
    /// `Invalid` if the settings are wrong; the errors of reading the password file.
    pub fn open(config: FilterConfig) -> Result<Option<Self>, Error> {
        if let Some((setting, advice)) = config.problem() {
            return Err(Error::invalid(format!("checks.{setting}: {advice}")));
        }
        let client = |url: &str| {
            FilterUrl::parse_if_any(url).map_err(Error::invalid).map(|url| url.map(HttpClient::new))
        };
        let (judge, learn) = (client(&config.url)?, client(&config.learn_url)?);
        if judge.is_none() && learn.is_none() {
            return Ok(None);
        }
        let password = password(&config)?;
        Ok(Some(Self { config, judge, learn, password }))
    }

    /// Whether it judges messages.
    pub fn judges(&self) -> bool {
        self.judge.is_some()
    }

    /// Whether it learns from users.
    pub fn learns(&self) -> bool {
        self.learn.is_some()
    }

    async fn post(
        &self,
        client: &HttpClient,
        path: &str,
        headers: &HeaderMap,
        raw: Bytes,
    ) -> Result<Answer, Error> {
        let limit = Duration::from_millis(self.config.timeout_ms.get());
        match timeout(limit, client.post(path, headers, raw)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unavailable(format!("the filter did not answer within {limit:?}"))),
        }
    }
}

#[async_trait]
impl Filter for Rspamd {
    fn takes(&self, bytes: u64) -> bool {
        bytes <= self.config.message_bytes_max.get()
    }

    async fn judge(&self, envelope: Envelope<'_>, raw: Bytes) -> Result<FilterVerdict, Error> {
        let client =
            self.judge.as_ref().ok_or_else(|| Error::unavailable("no filter is set that judges messages"))?;
        let answer = self.post(client, "/checkv2", &headers(envelope), raw).await?;
        if answer.status != StatusCode::OK {
            return Err(Error::unavailable(format!("the filter answers {}", answer.status.as_u16())));
        }
        reply::read(&answer.body)
    }

    async fn learn(&self, lesson: Lesson, raw: Bytes) -> Result<(), Error> {
        let client = self.learn.as_ref().ok_or_else(|| Error::invalid("no filter is set that learns"))?;
        let path = match lesson {
            Lesson::Junk => "/learnspam",
            Lesson::NotJunk => "/learnham",
        };
        let password = self.password.iter().map(|password| (PASSWORD, password.clone()));
        let answer = self.post(client, path, &password.collect(), raw).await?;
        learned(&answer)
    }
}

/// The meaning of an answer of the controller.
fn learned(answer: &Answer) -> Result<(), Error> {
    let said = printable(&String::from_utf8_lossy(&answer.body), SAID_BYTES_MAX);
    let status = answer.status.as_u16();
    let why = format!("the filter answers {status} to what it is to learn: {said}");
    match status {
        200 => Ok(()),
        // It has already learned this message like this: version 3.4 reports that by 404 and this text.
        208 => Ok(()),
        404 if said.contains("already learned") => Ok(()),
        // The worker that judges does not know this command: the address is wrong.
        500 if said.contains("invalid command") => Err(Error::unavailable(why)),
        // A wrong password or address, or too many requests now: the operator fixes this, or it passes.
        401 | 403 | 404 | 405 | 408 | 429 | 502..=504 => Err(Error::unavailable(why)),
        // 204: too short, or its own rules forbid learning it.
        204 | 400..=499 => Err(Error::invalid(why)),
        _ => Err(Error::internal(why)),
    }
}

/// The envelope as headers for rspamd. A value that is not allowed in a header is left out.
fn headers(envelope: Envelope<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut add = |name: &HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.append(name.clone(), value);
        }
    };
    add(&IP, &envelope.peer.address.to_canonical().to_string());
    if !envelope.peer.hello.is_empty() {
        add(&HELO, &envelope.peer.hello);
    }
    if let Reverse::Confirmed(name) = &envelope.facts.reverse {
        add(&HOSTNAME, name);
    }
    add(&FROM, if envelope.sender.is_empty() { "<>" } else { envelope.sender });
    for recipient in envelope.recipients.iter().take(RECIPIENTS_MAX) {
        add(&RCPT, recipient);
    }
    add(&QUEUE_ID, envelope.id);
    headers
}

fn password(config: &FilterConfig) -> Result<Option<HeaderValue>, Error> {
    let file = &config.password_file;
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let text = fs::read(file)
        .map_err(|error| Error::io("read the password of the filter in", file.display(), error))?;
    let password = text.trim_ascii();
    let value = HeaderValue::from_bytes(password).ok();
    let value = value.filter(|_| !password.is_empty() && password.len() <= PASSWORD_BYTES_MAX);
    let mut value = value.ok_or_else(|| {
        let file = file.display();
        Error::invalid(format!(
            "the password of the filter in {file} has 1 to {PASSWORD_BYTES_MAX} bytes in one line"
        ))
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}
