//! S3 storages for tests: a bucket for each process and storage, a prefix for each store.

use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, RandomState},
    path::Path,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{Method, Request, StatusCode};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use object_store::{
    aws::{AwsAuthorizer, AwsCredential},
    client::HttpRequestBody,
};
use parking_lot::Mutex;
use restante_blobs::{Config, EngineUrl, S3Config, S3Keys};

/// A storage, by the variables that dev/services sets.
#[derive(Clone)]
pub struct Storage {
    pub url: String,
    pub region: String,
    pub keys: S3Keys,
}

/// The storage of that name; `None` when it is not available.
pub fn storage(name: &str) -> Option<Storage> {
    let variable = |what: &str| {
        let variable = format!("RESTANTE_{}_{what}", name.to_uppercase());
        env::var(variable).ok().filter(|value| !value.is_empty())
    };
    Some(Storage {
        url: variable("URL")?,
        region: variable("REGION").unwrap_or_else(|| "us-east-1".to_owned()),
        keys: S3Keys { access_key: variable("ACCESS_KEY")?, secret_key: variable("SECRET_KEY")? },
    })
}

pub fn missing(name: &str) -> Option<String> {
    let variables = format!("RESTANTE_{0}_URL, _ACCESS_KEY and _SECRET_KEY", name.to_uppercase());
    storage(name).is_none().then(|| format!("{variables} are not set"))
}

/// The buckets of this process by storage.
static BUCKETS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// The bucket of this process, which is created on its first use.
fn bucket(name: &str) -> String {
    let mut buckets = BUCKETS.lock();
    let new = || {
        let bucket = format!("restante-test-{:016x}", RandomState::new().hash_one("bucket"));
        let path = format!("/{bucket}");
        let status = blocking(name, Method::PUT, &path, Bytes::new()).0;
        assert!(status.is_success(), "can't create a bucket: {status}");
        bucket
    };
    buckets.entry(name.to_owned()).or_insert_with(new).clone()
}

/// A location for blobs that contains nothing yet.
pub fn new_url(name: &str) -> EngineUrl {
    let prefix = format!("{:016x}", RandomState::new().hash_one("prefix"));
    EngineUrl::S3(format!("s3://{}/test/{prefix}", bucket(name)).parse().unwrap())
}

/// The settings with which a storage is used.
pub fn set(config: &mut Config, name: &str, folder: &Path) {
    let storage = storage(name).unwrap();
    config.s3 = S3Config {
        endpoint: storage.url,
        region: storage.region,
        manifest_interval_ms: 0,
        // Space for some blobs only, so that reads use both the cache and the storage.
        cache_bytes_max: 1 << 20,
        ..S3Config::default()
    };
    config.s3_keys = Some(storage.keys);
    config.s3_folder = Some(folder.to_owned());
}

/// Requests that bypass the engine, on a key of its bucket.
pub async fn request(name: &str, method: Method, path: &str, body: Bytes) -> (StatusCode, Bytes) {
    let storage = storage(name).unwrap();
    let client = Client::builder(TokioExecutor::new()).build_http::<HttpRequestBody>();
    let uri = format!("{}{path}", storage.url);
    let mut request = Request::builder().method(method).uri(uri).body(HttpRequestBody::from(body)).unwrap();
    let S3Keys { access_key: key_id, secret_key } = storage.keys;
    let credential = AwsCredential { key_id, secret_key, token: None };
    AwsAuthorizer::new(&credential, "s3", &storage.region).try_authorize(&mut request, None).unwrap();
    let (head, body) = client.request(request).await.unwrap().into_parts();
    (head.status, body.collect().await.unwrap().to_bytes())
}

fn blocking(name: &str, method: Method, path: &str, body: Bytes) -> (StatusCode, Bytes) {
    static RUNTIME: OnceLock<Arc<tokio::runtime::Runtime>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
    });
    let (name, path, runtime) = (name.to_owned(), path.to_owned(), runtime.clone());
    // On a thread of its own, because this one may belong to a runtime.
    let asked = std::thread::spawn(move || runtime.block_on(request(&name, method, &path, body)));
    asked.join().unwrap()
}

/// All keys of a bucket with a prefix.
pub async fn keys(name: &str, bucket: &str, prefix: &str) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    loop {
        let after =
            keys.last().map(|key| format!("&start-after={}", key.replace('/', "%2F"))).unwrap_or_default();
        let prefix = prefix.replace('/', "%2F");
        let path = format!("/{bucket}?list-type=2&prefix={prefix}{after}");
        let (status, text) = request(name, Method::GET, &path, Bytes::new()).await;
        assert!(status.is_success(), "{status}");
        let text = String::from_utf8(text.to_vec()).unwrap();
        let found = text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        keys.extend(found.map(|(key, _)| key.to_owned()));
        if !text.contains("<IsTruncated>true</IsTruncated>") {
            return keys;
        }
    }
}

/// Deletes the buckets of this process.
pub fn clean_up() {
    let buckets = std::mem::take(&mut *BUCKETS.lock());
    for (name, bucket) in buckets {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            for key in keys(&name, &bucket, "").await {
                request(&name, Method::DELETE, &format!("/{bucket}/{key}"), Bytes::new()).await;
            }
            request(&name, Method::DELETE, &format!("/{bucket}"), Bytes::new()).await;
        });
    }
}
