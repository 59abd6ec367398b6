//! Requests that the crate `object_store` does not make: on buckets, and with wrong checksums.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode};
use object_store::{
    ClientOptions,
    aws::{AwsAuthorizer, AwsCredential},
    client::{
        HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use tokio::time::timeout;

use super::{super::http_client::HttpClient, Address, DEFAULT_REGION, EnginesArgs, PROBE_MAX};

/// SHA-256 of `right`, in the encoding of `x-amz-checksum-sha256`.
const SHA256_OF_RIGHT: &str = "JwQvTm7KfQsqfuQCbfLs+lHTM55tEiqgmRGOzYVjutk=";
/// Requests that take longer have failed.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// Signs and sends requests. For `object_store` it is the client that sends.
#[derive(Clone)]
pub(super) struct Requests {
    client: HttpClient<HttpRequestBody>,
    base: String,
    pub(super) region: String,
    pub(super) credential: Arc<AwsCredential>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("base", &self.base).finish_non_exhaustive() // keys stay out of logs
    }
}

/// How the storage handles checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksums {
    /// It refuses a body with a wrong one.
    Checked,
    /// It accepts any.
    Ignored,
    /// It refuses requests that have one.
    Refused,
}

/// An answer of the storage.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    text: String,
}

impl Requests {
    pub(super) fn new(
        address: &Address,
        region: String,
        (key_id, secret_key): (String, String),
        args: &EnginesArgs,
    ) -> anyhow::Result<Self> {
        let credential = Arc::new(AwsCredential { key_id, secret_key, token: None });
        Ok(Self { client: address.client(args)?, base: address.base.clone(), region, credential })
    }

    /// Whether the storage answers to these keys, and has the bucket if it should.
    pub(super) async fn check(&self, bucket: &str, is_there: bool) -> anyhow::Result<()> {
        let list = format!("/{bucket}?list-type=2&max-keys=1");
        let request = self.send(Method::GET, &list, &[], Bytes::new(), None);
        let answer = timeout(PROBE_MAX, request)
            .await
            .map_err(|_| anyhow!("no answer within {} s", PROBE_MAX.as_secs()))
            .flatten()
            .context("can't connect: look at --s3 and --ca-file")?;
        match answer.status {
            StatusCode::NOT_FOUND if is_there => {
                bail!("there is no bucket {bucket}: make it, or leave --s3-bucket out")
            }
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(answer.error("can't list the bucket")),
        }
    }

    pub(super) async fn make_bucket(&self, bucket: &str) -> anyhow::Result<()> {
        let body = match self.region.as_str() {
            DEFAULT_REGION => String::new(),
            region => format!(
                "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                 <LocationConstraint>{region}</LocationConstraint></CreateBucketConfiguration>"
            ),
        };
        let answer = self.send(Method::PUT, &format!("/{bucket}"), &[], body.into(), None).await?;
        match answer.status.is_success() {
            true => Ok(()),
            false => {
                Err(answer.error("can't make a bucket").context("name one that exists with --s3-bucket"))
            }
        }
    }

    /// Deletes the bucket; returns whether it is gone. It stays while it has objects.
    pub(super) async fn delete_bucket(&self, bucket: &str) -> anyhow::Result<bool> {
        let answer = self.send(Method::DELETE, &format!("/{bucket}"), &[], Bytes::new(), None).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(true),
            StatusCode::CONFLICT => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(answer.error("can't delete the bucket")),
        }
    }

    /// Whether a body is refused whose signed hash is that of another one.
    pub(super) async fn refuses_wrong_payload(&self, key: &str) -> anyhow::Result<bool> {
        let hash_of_other = [0x5a; 32];
        let answer = self.send(Method::PUT, key, &[], "body".into(), Some(&hash_of_other)).await?;
        Ok(!answer.status.is_success())
    }

    /// Puts a body with its right checksum and one with a wrong checksum.
    pub(super) async fn checksums(&self, key: &str) -> anyhow::Result<Checksums> {
        let headers = [("x-amz-checksum-sha256", SHA256_OF_RIGHT)];
        let right = self.send(Method::PUT, key, &headers, "right".into(), None).await?;
        if !right.status.is_success() {
            return Ok(Checksums::Refused);
        }
        let wrong = self.send(Method::PUT, key, &headers, "wrong".into(), None).await?;
        Ok(if wrong.status.is_success() { Checksums::Ignored } else { Checksums::Checked })
    }

    /// Whether the bucket keeps old versions; `None` if the storage does not report it.
    pub(super) async fn has_versions(&self, bucket: &str) -> anyhow::Result<Option<bool>> {
        let get = format!("/{bucket}?versioning");
        let answer = self.send(Method::GET, &get, &[], Bytes::new(), None).await?;
        Ok(answer.status.is_success().then(|| element(&answer.text, "Status") == Some("Enabled")))
    }

    /// Signs a request and sends it; `digest` is the SHA-256 of the body according to the signature.
    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        digest: Option<&[u8]>,
    ) -> anyhow::Result<Answer> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut request =
            request.body(HttpRequestBody::from(body)).context("the bucket's name can't be used")?;
        AwsAuthorizer::new(&self.credential, "s3", &self.region).try_authorize(&mut request, digest)?;
        let asked = timeout(REQUEST_MAX, async {
            let (head, body) = self.client.request(request).await?.into_parts();
            let text = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
            anyhow::Ok(Answer { status: head.status, text })
        });
        asked.await.map_err(|_| anyhow!("no answer within {} s", REQUEST_MAX.as_secs()))?
    }
}

impl Answer {
    /// An error that says what to do.
    fn error(&self, what: &str) -> anyhow::Error {
        let code = element(&self.text, "Code").unwrap_or("no code");
        let advice = match (self.status, code) {
            (_, "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidSecurity") => {
                "look at --s3-credentials, or RESTANTE_S3_ACCESS_KEY and RESTANTE_S3_SECRET_KEY"
            }
            (_, "RequestTimeTooSkewed") => "the clocks of this machine and of the storage differ: set them",
            (_, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException")
            | (StatusCode::MOVED_PERMANENTLY, _) => "look at --s3-region",
            (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, _) => {
                "give these keys the right to make, list, write, read and delete"
            }
            (status, _) if status.is_server_error() => "look at the log of the storage",
            _ => "is it a storage with the interface of S3? look at --s3",
        };
        anyhow!("{what}: {} ({code}): {advice}", self.status)
    }
}

/// The text of the first element of that name.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

impl HttpConnector for Requests {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<object_store::client::HttpClient> {
        Ok(object_store::client::HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Requests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answered = self.client.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        });
        let (head, body) = answered?.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
