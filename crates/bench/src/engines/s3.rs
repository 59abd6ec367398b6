//! S3 storage, with what a store of blobs needs: the published downloads of four sizes, and also puts, puts of what must not
//! exist yet, look-ups, and reads of a part.

mod published;
mod requests;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use object_store::{
    Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use parking_lot::Mutex;
use tokio::{sync::OnceCell, time::timeout};

use super::{
    Engine, EnginesArgs,
    floors::is_local,
    http_client::Address,
    load::{Done, Measured, Times, closed_loop},
    network,
    results::{Figures, References, Results},
    setting::EngineSetting,
    target,
    verdict::Circumstances,
};
use crate::{progress, random::Random};
use published::{PERCENTILES, Published, SIZES, Size, Spread};
use requests::Requests;

const NAME: &str = "s3";
/// The variables that dev/services sets.
const VARIABLE: &str = "RESTANTE_S3_URL";
const REGION: &str = "RESTANTE_S3_REGION";
const ACCESS_KEY: &str = "RESTANTE_S3_ACCESS_KEY";
const SECRET_KEY: &str = "RESTANTE_S3_SECRET_KEY";
const DEFAULT_REGION: &str = "us-east-1";
/// The longest measurement of one row.
const LIMIT: Duration = Duration::from_secs(30);
/// The longest probe of one setting.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// Clients of our own rows.
const CLIENTS: usize = 8;
/// Bytes that a read of a part gets.
const RANGE_BYTES: u64 = 4 << 10;
/// How often a bucket is emptied: a put of an interrupted run may still arrive.
const DELETIONS_MAX: u32 = 5;

/// Flags of `bench engines` for S3.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct S3Args {
    /// Measure this S3 storage, http(s)://host:port; without it that of RESTANTE_S3_URL
    #[arg(id = "s3", long = "s3", value_name = "URL")]
    pub url: Option<String>,
    /// Use this bucket of the S3 storage; without it one is made and removed
    #[arg(id = "s3_bucket", long = "s3-bucket", value_name = "NAME")]
    pub bucket: Option<String>,
    /// The region of the S3 storage; without it RESTANTE_S3_REGION, or us-east-1
    #[arg(id = "s3_region", long = "s3-region", value_name = "NAME")]
    pub region: Option<String>,
    /// A file with <access key>:<secret key> of the S3 storage; without it RESTANTE_S3_ACCESS_KEY and RESTANTE_S3_SECRET_KEY
    #[arg(id = "s3_credentials", long = "s3-credentials", value_name = "FILE")]
    pub credentials: Option<PathBuf>,
}

/// Connects to the S3 storage that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    Ok(find(args).await?.map(|storage| Box::new(storage) as Box<dyn Engine>))
}

/// The S3 storage that is named.
///
/// # Errors
/// When it can't be used; says what to do.
pub(crate) async fn find(args: &EnginesArgs) -> anyhow::Result<Option<S3>> {
    let Some(url) = target::named(args.s3.url.as_ref(), VARIABLE) else { return Ok(None) };
    let address = Address::parse(&url, "--s3")?;
    let region = target::named(args.s3.region.as_ref(), REGION).unwrap_or_else(|| DEFAULT_REGION.to_owned());
    let requests = Requests::new(&address, region, keys(&args.s3, &address)?, args)?;
    // Names of buckets have no underscores.
    let run = target::fresh_name().replace('_', "-");
    let bucket = args.s3.bucket.clone().unwrap_or_else(|| run.clone());
    requests.check(&bucket, args.s3.bucket.is_some()).await?;
    let store = AmazonS3Builder::new()
        .with_endpoint(&address.base)
        .with_allow_http(!address.is_tls)
        .with_virtual_hosted_style_request(false)
        .with_region(&requests.region)
        .with_bucket_name(&bucket)
        .with_access_key_id(&requests.credential.key_id)
        .with_secret_access_key(&requests.credential.secret_key)
        .with_disable_bulk_delete(true) // needs a checksum that not all storages know
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() }) // a failure is a result
        .with_http_connector(requests.clone())
        .build()
        .context("can't use the S3 storage: look at --s3-bucket")?;
    let is_own_bucket = args.s3.bucket.is_none();
    let (made, if_absent) = (OnceCell::new(), OnceCell::new());
    let store = Arc::new(store);
    Ok(Some(S3 { store, requests, address, bucket, run, is_own_bucket, made, if_absent }))
}

/// Access key and secret key: from the file, else from the environment, else from the URL.
fn keys(args: &S3Args, address: &Address) -> anyhow::Result<(String, String)> {
    let split = |text: &str| text.split_once(':').map(|(key, secret)| (key.to_owned(), secret.to_owned()));
    if let Some(file) = &args.credentials {
        let text = target::secret(file)?;
        let name = file.display();
        return split(&text).with_context(|| format!("{name} should hold <access key>:<secret key>"));
    }
    let of_environment = target::named(None, ACCESS_KEY).zip(target::named(None, SECRET_KEY));
    of_environment.or_else(|| address.credentials.as_deref().and_then(split)).with_context(|| {
        format!("the S3 storage needs keys: name a file with --s3-credentials, or set {ACCESS_KEY} and {SECRET_KEY}")
    })
}

/// A storage in which a run has a bucket, or keys in one.
pub(crate) struct S3 {
    store: Arc<AmazonS3>,
    requests: Requests,
    address: Address,
    bucket: String,
    /// The name of this run, with which its keys begin.
    run: String,
    is_own_bucket: bool,
    /// The bucket of this run.
    made: OnceCell<()>,
    if_absent: OnceCell<IfAbsent>,
}

/// How the storage handles a put that must not overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IfAbsent {
    Honoured,
    /// The second put of a key overwrites the first.
    Ignored,
    /// It refuses such puts altogether.
    Unsupported,
}

#[async_trait]
impl Engine for S3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        let (bucket, run, base) = (&self.bucket, &self.run, &self.address.base);
        match self.is_own_bucket {
            true => format!("the bucket {bucket}: aws --endpoint-url {base} s3 rb --force s3://{bucket}"),
            false => format!(
                "objects of {bucket} that begin with {run}/: \
                 aws --endpoint-url {base} s3 rm --recursive s3://{bucket}/{run}/"
            ),
        }
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        self.make_bucket().await?;
        let probe = timeout(PROBE_MAX * 5, async {
            anyhow::Ok(vec![
                judge_connection(self.address.is_tls, is_local(&self.address.host)),
                judge_if_absent(self.if_absent().await?),
                judge_payload_hash(self.requests.refuses_wrong_payload(&self.key_url("payload")).await?),
                judge_checksums(self.requests.checksums(&self.key_url("checksum")).await?),
                judge_ranges(self.has_ranges().await?),
                judge_versioning(self.requests.has_versions(&self.bucket).await?),
            ])
        });
        probe.await.context("the storage took too long to answer: look at its log")?
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let floors = self.floors(results).await?;
        let gone = "the storage stopped answering: look at its log, and whether its disk is full";
        let threads: &[usize] = match (args.output.quick, args.small) {
            (true, _) => &[8],
            (_, true) => &[8, 12, 16],
            _ => &[8, 9, 10, 11, 12, 13, 14, 15, 16],
        };
        let objects = threads.iter().copied().max().unwrap_or(1) as u64;
        for size in SIZES {
            self.measure_puts(&size, objects.max(samples(args, &size) / 4), results).await.context(gone)?;
            for row in size.rows.iter().filter(|row| threads.contains(&row.threads)) {
                self.measure_gets(&size, row, samples(args, &size), &floors, results).await.context(gone)?;
            }
        }
        self.measure_own_rows(objects, args, results).await.context(gone)
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        if !self.is_own_bucket {
            return self.delete_objects().await;
        }
        for _ in 0..DELETIONS_MAX {
            // It is refused while the bucket has objects.
            if self.requests.delete_bucket(&self.bucket).await? {
                return Ok(());
            }
            self.delete_objects().await?;
        }
        bail!("the bucket fills as fast as it is emptied")
    }
}

/// Operations of a row.
fn samples(args: &EnginesArgs, size: &Size) -> u64 {
    match size.bytes {
        0..=0x2_0000 => args.pick(1_000, 400),
        0x2_0001..=0x10_0000 => args.pick(400, 100),
        _ => args.pick(100, 40),
    }
}

/// What bounds every storage, whatever its quality.
struct Floors {
    connect_ms: f64,
    /// Only for a storage on this machine.
    loopback_mb_per_second: Option<f64>,
}

impl Floors {
    /// The highest rate of this many clients, each with one read in flight, in 10^6 bytes a second.
    fn mb_per_second(&self, threads: usize, bytes: usize) -> f64 {
        let by_round_trips = (threads * bytes) as f64 / 1e3 / self.connect_ms;
        self.loopback_mb_per_second.map_or(by_round_trips, |loopback| loopback.min(by_round_trips))
    }

    /// Milliseconds until the last byte, for a client that uses the network alone.
    fn last_byte_ms(&self, bytes: usize) -> f64 {
        let sending = self.loopback_mb_per_second.map_or(0.0, |mb| bytes as f64 / 1e3 / mb);
        self.connect_ms + sending
    }
}

/// Where other clients find the storage and the keys of this run.
pub(crate) struct Location {
    pub(crate) endpoint: String,
    pub(crate) region: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
    pub(crate) bucket: String,
    /// What is removed at the end begins with it and a slash.
    pub(crate) prefix: String,
}

impl S3 {
    /// The client that sends each request once, as it is.
    pub(crate) fn store(&self) -> Arc<AmazonS3> {
        self.store.clone()
    }

    pub(crate) fn location(&self) -> Location {
        Location {
            endpoint: self.address.base.clone(),
            region: self.requests.region.clone(),
            access_key: self.requests.credential.key_id.clone(),
            secret_key: self.requests.credential.secret_key.clone(),
            bucket: self.bucket.clone(),
            prefix: self.run.clone(),
        }
    }

    /// Makes the bucket of this run, once.
    pub(crate) async fn make_bucket(&self) -> anyhow::Result<()> {
        if !self.is_own_bucket {
            return Ok(());
        }
        self.made.get_or_try_init(|| self.requests.make_bucket(&self.bucket)).await.map(drop)
    }

    /// A key of this run.
    pub(crate) fn key(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.run))
    }

    fn key_url(&self, name: &str) -> String {
        format!("/{}/{}/{name}", self.bucket, self.run)
    }

    async fn floors(&self, results: &Mutex<Results>) -> anyhow::Result<Floors> {
        let connect_ms = network::connect_ms(&self.address.host, self.address.port).await?;
        let loopback_mb_per_second = match is_local(&self.address.host) {
            true => Some(network::loopback_mb_per_second().await?),
            false => None,
        };
        let mut results = results.lock();
        let mut table = results.table(NAME, "floors");
        table.shown("round trip of the network p50", "ms", connect_ms);
        if let Some(mb) = loopback_mb_per_second {
            table.shown("one connection within this machine", "MB/s", mb);
        }
        Ok(Floors { connect_ms, loopback_mb_per_second })
    }

    /// Finds out, once, with two puts of the same key.
    async fn if_absent(&self) -> anyhow::Result<IfAbsent> {
        let find = async || {
            let key = self.key("if-absent");
            let put = async || self.store.put_opts(&key, "once".into(), PutMode::Create.into()).await;
            match put().await {
                Ok(_) => {}
                Err(Error::Generic { .. } | Error::NotImplemented { .. }) => {
                    // It must be the condition that fails, and not all puts.
                    self.store.put(&key, "once".into()).await.context("can't put an object")?;
                    return Ok(IfAbsent::Unsupported);
                }
                Err(error) => return Err(error).context("can't put an object"),
            }
            match put().await {
                Ok(_) => Ok(IfAbsent::Ignored),
                Err(Error::AlreadyExists { .. }) => Ok(IfAbsent::Honoured),
                Err(error) => Err(error).context("can't put an object again"),
            }
        };
        self.if_absent.get_or_try_init(find).await.copied()
    }

    /// Whether the read of a part gets that part.
    async fn has_ranges(&self) -> anyhow::Result<bool> {
        let key = self.key("range");
        self.store.put(&key, "0123456789".into()).await?;
        // An answer with the whole object is an error of the crate.
        Ok(self.store.get_range(&key, 3..7).await.is_ok_and(|part| part == "3456"))
    }

    async fn measure_puts(
        &self,
        size: &Size,
        operations: u64,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let payload = random_payload(size.bytes);
        let (store, bytes) = (self.store.clone(), size.bytes);
        let keys = self.key(&format!("{bytes}"));
        let operation = move |_, number: u64| {
            let (store, payload) = (store.clone(), payload.clone());
            let key = keys.clone().join(number.to_string());
            async move {
                store.put(&key, payload).await?;
                Ok(Done::new("put", bytes))
            }
        };
        let measured = load(&format!("PUT of {}", size.name), CLIENTS, operations, operation).await?;
        let times = measured.times("put").service;
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("PUT by {CLIENTS} threads"));
        let run = measured.circumstances("put");
        table.rate(
            format!("{}: throughput", size.name),
            "MB/s",
            measured.mb_per_second(),
            References::NONE,
            &run,
        );
        table.time(format!("{}: p50", size.name), times.median_ms(), References::NONE, &run);
        table.time(format!("{}: p99", size.name), times.p99_ms(), References::NONE, &run);
        table.curve("s3: PUT", size.name, &times);
        Ok(())
    }

    /// A published row: each thread reads an object of its own over and over.
    async fn measure_gets(
        &self,
        size: &Size,
        row: &Published,
        operations: u64,
        floors: &Floors,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let (store, bytes) = (self.store.clone(), size.bytes);
        let keys = self.key(&format!("{bytes}"));
        let operation = move |client: usize, _| {
            let (store, key) = (store.clone(), keys.clone().join(client.to_string()));
            async move { get(&store, &key, bytes).await }
        };
        let what = format!("GET of {} by {} threads", size.name, row.threads);
        // Opens the connections.
        load(&what, row.threads, row.threads as u64, operation.clone()).await?;
        let measured = load(&what, row.threads, operations, operation).await?;
        let mut results = results.lock();
        let Times { service, first_byte, .. } = measured.times("get");
        results.table(NAME, &what).curve(
            format!("s3: GET of {}, last byte", size.name),
            format!("{} threads", row.threads),
            &service,
        );
        let mut table = results.table(NAME, what);
        let run = measured.circumstances("get");
        let floor = Some(floors.mb_per_second(row.threads, bytes));
        let references = References { seed: Some(row.mb_per_second), floor };
        table.rate("throughput", "MB/s", measured.mb_per_second(), references, &run);
        add_spread(&mut table, "first byte", &first_byte, row.first_byte, floors.connect_ms, &run);
        let floor = floors.last_byte_ms(bytes);
        add_spread(&mut table, "last byte", &service, row.last_byte, floor, &run);
        Ok(())
    }

    /// Rows that the published table lacks, for small objects. They exist: the puts stored them.
    async fn measure_own_rows(
        &self,
        objects: u64,
        args: &EnginesArgs,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let operations = args.pick(2_000, 400);
        let [small, .., large] = SIZES;
        let (store, keys) = (self.store.clone(), self.key(&small.bytes.to_string()));
        let head = move |_, number: u64| {
            let (store, key) = (store.clone(), keys.clone().join((number % objects).to_string()));
            async move {
                let found = store.head(&key).await?;
                ensure!(
                    found.size == small.bytes as u64,
                    "an object of {} has {} bytes",
                    small.name,
                    found.size
                );
                Ok(Done::new("HEAD", 0))
            }
        };
        let heads = load("HEAD", CLIENTS, operations, head).await?;
        let (store, keys) = (self.store.clone(), self.key(&large.bytes.to_string()));
        let range = move |_, number: u64| {
            let (store, key) = (store.clone(), keys.clone().join((number % objects).to_string()));
            let parts = large.bytes as u64 / RANGE_BYTES;
            let start = Random::new(number, 0).below(parts) * RANGE_BYTES;
            async move {
                let part = store.get_range(&key, start..start + RANGE_BYTES).await?;
                ensure!(part.len() as u64 == RANGE_BYTES, "a part has {} bytes", part.len());
                Ok(Done::new("GET of a part", part.len()))
            }
        };
        let ranges = load("GET of a part", CLIENTS, operations, range).await?;
        {
            let mut results = results.lock();
            let mut table = results.table(NAME, format!("small requests by {CLIENTS} threads"));
            add_times(&mut table, "HEAD", &heads);
            add_times(&mut table, "GET of a part", &ranges);
        }
        match self.if_absent().await? {
            IfAbsent::Unsupported => Ok(()),
            _ => self.measure_puts_if_absent(operations, results).await,
        }
    }

    async fn measure_puts_if_absent(&self, operations: u64, results: &Mutex<Results>) -> anyhow::Result<()> {
        let payload = random_payload(SIZES[0].bytes);
        let (store, keys) = (self.store.clone(), self.key("absent"));
        let put = move |_, number: u64| {
            let (store, payload) = (store.clone(), payload.clone());
            let key = keys.clone().join(number.to_string());
            async move {
                match store.put_opts(&key, payload, PutMode::Create.into()).await {
                    Ok(_) => Ok(Done::new(ACCEPTED, SIZES[0].bytes)),
                    Err(Error::AlreadyExists { .. }) => Ok(Done::new(REFUSED, SIZES[0].bytes)),
                    Err(error) => Err(error.into()),
                }
            }
        };
        let first = load("PUT if absent", CLIENTS, operations, put.clone()).await?;
        // Only existing keys.
        let again = load("second PUT if absent", CLIENTS, first.operations, put).await?;
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("small requests by {CLIENTS} threads"));
        add_times(&mut table, ACCEPTED, &first);
        let refused = again.times(REFUSED).service.len();
        table.shown(
            "second PUTs of a key that are refused",
            "%",
            refused as f64 / again.operations.max(1) as f64 * 100.0,
        );
        add_times(&mut table, REFUSED, &again);
        Ok(())
    }

    async fn delete_objects(&self) -> anyhow::Result<()> {
        let prefix = Path::from(self.run.clone());
        let keys = self.store.list(Some(&prefix)).map_ok(|object| object.location).boxed();
        let mut deleted = self.store.delete_stream(keys);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                // Another clean-up was faster, or there is no such bucket.
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

const ACCEPTED: &str = "PUT if absent";
const REFUSED: &str = "PUT if absent, refused";

/// Bytes that no storage can compress.
fn random_payload(bytes: usize) -> PutPayload {
    let mut payload = vec![0; bytes];
    Random::new(bytes as u64, 1).fill(&mut payload);
    payload.into()
}

async fn get(store: &AmazonS3, key: &Path, bytes: usize) -> anyhow::Result<Done> {
    let begun = Instant::now();
    let mut parts = store.get(key).await?.into_stream();
    let first_byte = Some(begun.elapsed());
    let mut received = 0;
    while let Some(part) = parts.next().await {
        received += part?.len();
    }
    ensure!(received == bytes, "an object of {bytes} bytes has {received}");
    Ok(Done { first_byte, ..Done::new("get", bytes) })
}

async fn load<F, W>(what: &str, clients: usize, operations: u64, operation: F) -> anyhow::Result<Measured>
where
    F: Fn(usize, u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<Done>> + Send,
{
    let bar = progress::bar(&format!("s3: {what}"), operations);
    let measured = closed_loop(clients, operations, LIMIT, &bar, operation).await;
    bar.finish_and_clear();
    measured
}

/// The average and the percentiles of a published row.
fn add_spread(
    table: &mut Figures<'_>,
    row: &str,
    times: &crate::measure::Latencies,
    published: Spread,
    floor: f64,
    run: &Circumstances,
) {
    let references = |seed| References { seed: Some(seed), floor: Some(floor) };
    table.time(format!("{row}: average"), times.mean_ms(), references(published.average), run);
    for (percentile, seed) in PERCENTILES.into_iter().zip(published.percentiles) {
        let name = match percentile {
            0.0 => "min".to_owned(),
            100.0 => "max".to_owned(),
            between => format!("p{between}"),
        };
        table.time(format!("{row}: {name}"), times.percentile_ms(percentile), references(seed), run);
    }
}

/// Rate and times of one kind of operation, with nothing to compare them with.
fn add_times(table: &mut Figures<'_>, kind: &'static str, measured: &Measured) {
    let (times, run) = (measured.times(kind).service, measured.circumstances(kind));
    table.rate(kind, "1/s", measured.per_second(), References::NONE, &run);
    if times.len() > 0 {
        table.time(format!("{kind} p50"), times.median_ms(), References::NONE, &run);
        table.time(format!("{kind} p99"), times.p99_ms(), References::NONE, &run);
        table.curve("s3: small requests", kind, &times);
    }
}

fn judge_connection(is_tls: bool, is_local: bool) -> EngineSetting {
    match (is_tls, is_local) {
        (true, _) => EngineSetting::safe(NAME, "connection", "TLS"),
        (false, true) => EngineSetting::safe(NAME, "connection", "plain, within this machine"),
        (false, false) => EngineSetting::safe(NAME, "connection", "plain").into_unsafe(
            "everybody on the way can read and change the objects",
            "give the storage a certificate and use https://",
        ),
    }
}

fn judge_if_absent(found: IfAbsent) -> EngineSetting {
    let setting = |value: &str| EngineSetting::safe(NAME, "put if absent (If-None-Match: *)", value);
    match found {
        IfAbsent::Honoured => setting("honoured"),
        IfAbsent::Ignored => setting("ignored").into_unsafe(
            "a put that must not overwrite does overwrite: two servers that write at once can't tell who was first",
            "upgrade the storage to a release with conditional writes (AWS, MinIO, Ceph from Squid on, Versity)",
        ),
        IfAbsent::Unsupported => setting("refused").into_costly(
            "every put needs a HEAD before it",
            "upgrade the storage to a release with conditional writes (AWS, MinIO, Ceph from Squid on, Versity)",
        ),
    }
}

fn judge_payload_hash(is_proven: bool) -> EngineSetting {
    let setting = |value: &str| EngineSetting::safe(NAME, "signed hash of the payload", value);
    match is_proven {
        true => setting("checked"),
        false => setting("not checked").into_unsafe(
            "an object that was damaged on its way is stored and acknowledged",
            "upgrade the storage, or put a proxy before it that checks x-amz-content-sha256",
        ),
    }
}

fn judge_checksums(found: requests::Checksums) -> EngineSetting {
    use requests::Checksums;
    let setting = |value: &str| EngineSetting::safe(NAME, "checksums (x-amz-checksum-sha256)", value);
    match found {
        Checksums::Checked => setting("checked"),
        Checksums::Ignored => setting("ignored").into_costly(
            "the storage keeps no checksum: only a whole read shows that an object is damaged",
            "upgrade the storage to a release with additional checksums",
        ),
        Checksums::Refused => setting("refused").into_costly(
            "clients that send checksums by default, as the SDKs of 2025 do, can't write",
            "upgrade the storage, or set request_checksum_calculation = when_required in such clients",
        ),
    }
}

fn judge_ranges(has_ranges: bool) -> EngineSetting {
    let setting = |value: &str| EngineSetting::safe(NAME, "reads of a part (Range)", value);
    match has_ranges {
        true => setting("honoured"),
        false => setting("ignored").into_costly(
            "a read of a part of a large mail transfers all of it",
            "upgrade the storage, or let a proxy before it keep the header Range",
        ),
    }
}

fn judge_versioning(has_versions: Option<bool>) -> EngineSetting {
    let setting = |value: &str| EngineSetting::safe(NAME, "versioning of the bucket", value);
    match has_versions {
        None => setting("unknown"),
        Some(false) => setting("off"),
        Some(true) => setting("on").into_costly(
            "what is deleted keeps its space, also what this bench has deleted",
            "suspend versioning, or add a rule that expires old versions",
        ),
    }
}

#[cfg(test)]
mod tests;
