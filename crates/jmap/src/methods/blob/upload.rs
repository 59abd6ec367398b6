//! Blob/upload (RFC 9404 §4.1).

use std::collections::{BTreeSet, HashMap, VecDeque};

use async_trait::async_trait;
use bytes::Bytes;
use restante_blobs::Source;
use restante_core::Error;
use restante_directory::Access;
use restante_records::{AccountId, RecordId};
use serde_json::{Map, Value};

use super::{note, over_quota};
use crate::{
    core::{
        Args, Argument, BlobRef, Content, Context, Creations, Exchange, Id, Members, MethodError, Object,
        SetError,
        ids::{BlobBase, account_id, is_id},
        set::{write_errors, write_map},
    },
    methods::mail_errors::of_step,
};

/// The type of a blob when the client names none.
const OCTETS: &str = "application/octet-stream";

pub(super) async fn upload(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Write).await?;
    let create: Map<String, Value> = args.required("create")?;
    args.done()?;
    if !create.keys().all(|key| is_id(key)) {
        return Err(MethodError::argument("create", "expected an object with ids as keys"));
    }
    context.check_objects_in_set(create.len())?;
    let mut plan = Plan::new(create, context.config.blob_sources_max.get());
    for upload in plan.sources(&exchange.creations) {
        exchange.uploads.renew(context, account, upload).await?;
    }
    let mut created = Vec::new();
    while let Some((key, upload)) = plan.next() {
        let media_type = upload.media_type.clone();
        let made = make(context, account, exchange, upload).await.map_err(MethodError::from);
        match of_step(made, !created.is_empty())? {
            Ok((blob, size)) => {
                exchange.creations.insert(&key, blob.to_string());
                let mut json = Vec::new();
                let mut object = Object::open(&mut json);
                object.field("id", &blob.to_string());
                object.field("type", media_type.as_deref().unwrap_or(OCTETS));
                object.field("size", &size);
                drop(object);
                created.push((key, json));
            }
            Err(error) => plan.failed.push((key, error)),
        }
    }
    let not_created = plan.finish();
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    write_map(&mut answer, "created", &created, |json, out| out.extend_from_slice(json));
    write_errors(&mut answer, "notCreated", &not_created);
    Ok(())
}

/// A blob to make.
struct Upload {
    sources: Vec<DataSource>,
    media_type: Option<String>,
}

/// A piece of a blob.
enum DataSource {
    Bytes(Bytes),
    Blob { id: Id, offset: u64, length: Option<u64> },
}

/// The blobs of a call, ordered so that each comes after its sources.
struct Plan {
    waiting: HashMap<String, Upload>,
    /// For each blob the number of blobs of the call that it still waits for; each counts as often as it is named.
    missing: HashMap<String, usize>,
    /// For each blob the blobs that wait for it.
    dependents: HashMap<String, Vec<String>>,
    ready: VecDeque<String>,
    failed: Vec<(String, SetError)>,
    last: Option<String>,
}

impl Plan {
    fn new(create: Map<String, Value>, sources_max: usize) -> Self {
        let (mut waiting, mut failed) = (HashMap::new(), Vec::new());
        for (key, value) in create {
            match Upload::read(value, sources_max) {
                Ok(upload) => {
                    waiting.insert(key, upload);
                }
                Err(error) => failed.push((key, error)),
            }
        }
        let mut missing = HashMap::new();
        let mut dependents: HashMap<String, Vec<String>> = HashMap::new();
        let mut ready = VecDeque::new();
        for (key, upload) in &waiting {
            let mut count = 0;
            for needed in upload.needs().filter(|needed| waiting.contains_key(*needed)) {
                count += 1;
                dependents.entry(needed.to_owned()).or_default().push(key.clone());
            }
            if count == 0 {
                ready.push_back(key.clone());
            }
            missing.insert(key.clone(), count);
        }
        Self { waiting, missing, dependents, ready, failed, last: None }
    }

    /// The existing uploads that are sources of blobs of the call.
    fn sources(&self, creations: &Creations) -> BTreeSet<RecordId> {
        let named = self.waiting.values().flat_map(Upload::blobs);
        let blobs = named.filter_map(|id| creations.resolve(id.as_str())?.parse::<BlobRef>().ok());
        let upload = |blob: BlobRef| match blob.base {
            BlobBase::Upload(upload) => Some(upload),
            BlobBase::Email(_) => None,
        };
        blobs.filter_map(upload).collect()
    }

    /// The next blob to make, when the previous one was made or has failed.
    fn next(&mut self) -> Option<(String, Upload)> {
        if let Some(last) = self.last.take() {
            for dependent in self.dependents.remove(&last).unwrap_or_default() {
                let Some(missing) = self.missing.get_mut(&dependent) else { continue };
                *missing -= 1;
                if *missing == 0 {
                    self.ready.push_back(dependent);
                }
            }
        }
        let key = self.ready.pop_front()?;
        self.last = Some(key.clone());
        let upload = self.waiting.remove(&key)?;
        Some((key, upload))
    }

    /// The blobs that were not made: those that are left wait for themselves.
    fn finish(mut self) -> Vec<(String, SetError)> {
        let circular = |key| (key, SetError::invalid(["data"], "the blob is made of itself"));
        self.failed.extend(self.waiting.into_keys().map(circular));
        self.failed
    }
}

impl Upload {
    fn read(value: Value, sources_max: usize) -> Result<Self, SetError> {
        let Value::Object(mut members) = value else {
            return Err(SetError::new("invalidProperties").describe("expected an object"));
        };
        let sources = members.remove("data").and_then(Vec::<Value>::read);
        let sources =
            sources.ok_or_else(|| SetError::invalid(["data"], "expected an array of data sources"))?;
        let media_type = match members.remove("type") {
            None | Some(Value::Null) => None,
            Some(Value::String(media_type)) => Some(media_type),
            Some(_) => return Err(SetError::invalid(["type"], "expected a string or null")),
        };
        if !members.is_empty() {
            return Err(SetError::invalid(members.into_iter().map(|(name, _)| name), "unknown properties"));
        }
        if sources.len() > sources_max {
            return Err(SetError::invalid(
                ["data"],
                format!("a blob is made of at most {sources_max} sources"),
            ));
        }
        let sources: Result<Vec<DataSource>, &str> = sources.into_iter().map(DataSource::read).collect();
        let sources = sources.map_err(|problem| SetError::invalid(["data"], problem))?;
        Ok(Self { sources, media_type })
    }

    /// The blobs that it is made of.
    fn blobs(&self) -> impl Iterator<Item = &Id> {
        self.sources.iter().filter_map(|source| match source {
            DataSource::Blob { id, .. } => Some(id),
            DataSource::Bytes(_) => None,
        })
    }

    /// The creation ids of the blobs that it is made of.
    fn needs(&self) -> impl Iterator<Item = &str> {
        self.blobs().filter_map(|id| id.as_str().strip_prefix('#'))
    }
}

impl DataSource {
    /// Reads a source, which has exactly one of its three forms; `Err` says what is wrong.
    fn read(value: Value) -> Result<Self, &'static str> {
        let Value::Object(mut members) = value else { return Err("a data source is an object") };
        members.retain(|_, value| !value.is_null());
        let text = members.remove("data:asText");
        let base64 = members.remove("data:asBase64");
        let blob = members.remove("blobId");
        let source = match (text, base64, blob) {
            (Some(text), None, None) => {
                let text = String::read(text).ok_or("data:asText is a string")?;
                Self::Bytes(text.into_bytes().into())
            }
            (None, Some(base64), None) => {
                let text = String::read(base64).ok_or("data:asBase64 is a string")?;
                let bytes = base64_simd::STANDARD.decode_to_vec(text);
                Self::Bytes(bytes.map_err(|_| "data:asBase64 is not base64 (RFC 4648 §4)")?.into())
            }
            (None, None, Some(id)) => {
                let id = <Id as Argument>::read(id).ok_or("blobId is an id")?;
                let offset = number(members.remove("offset"))?.unwrap_or_default();
                let length = number(members.remove("length"))?;
                Self::Blob { id, offset, length }
            }
            _ => return Err("a data source has exactly one of data:asText, data:asBase64 and blobId"),
        };
        if !members.is_empty() {
            return Err("a data source has an unknown member, or a range without blobId");
        }
        Ok(source)
    }
}

/// A number of a range, if it is given.
fn number(value: Option<Value>) -> Result<Option<u64>, &'static str> {
    let Some(value) = value else { return Ok(None) };
    let number = u64::read(value);
    number.map(Some).ok_or("offset and length of a data source are whole numbers from 0 to 2^53-1")
}

/// A source whose bytes are known to exist.
enum Piece {
    Bytes(Bytes),
    Range(Content, std::ops::Range<u64>),
}

/// Makes a blob; returns it with its size.
async fn make(
    context: &Context,
    account: AccountId,
    exchange: &mut Exchange,
    upload: Upload,
) -> Result<Result<(BlobRef, u64), SetError>, Error> {
    let (mut pieces, mut missing, mut size) = (VecDeque::new(), Vec::new(), 0_u64);
    for source in upload.sources {
        let piece = match source {
            DataSource::Bytes(bytes) => Piece::Bytes(bytes),
            DataSource::Blob { id, offset, length } => {
                let blob = exchange.creations.resolve(id.as_str());
                let blob = blob.and_then(|id| id.parse::<BlobRef>().ok());
                let content = match blob {
                    Some(blob) => context.content(account, &blob).await?,
                    None => None,
                };
                let Some(content) = content else {
                    missing.push(id.into_string());
                    continue;
                };
                let end = length.map_or(Some(content.size()), |length| offset.checked_add(length));
                let Some(end) = end.filter(|end| *end <= content.size() && offset <= *end) else {
                    return Ok(Err(SetError::invalid(["data"], "a range ends after the end of its blob")));
                };
                Piece::Range(content, offset..end)
            }
        };
        size = size.saturating_add(piece.size());
        pieces.push_back(piece);
    }
    if !missing.is_empty() {
        return Ok(Err(SetError::new("blobNotFound").with("notFound", missing)));
    }
    if size > context.config.upload_bytes_max.get() {
        return Ok(Err(SetError::new("tooLarge").with("maxSize", context.config.upload_bytes_max.get())));
    }
    if !exchange.uploads.admit(&context.config, size) {
        return Ok(Err(over_quota()));
    }
    let put = context.blobs().put(&mut Pieces { context, pieces, current: None }).await?;
    let blob = note(context, account, (put.id, put.bytes), &mut exchange.uploads).await?;
    Ok(Ok((blob, put.bytes)))
}

impl Piece {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Range(_, range) => range.end - range.start,
        }
    }
}

/// The bytes of the sources, one after the other.
struct Pieces<'c> {
    context: &'c Context,
    pieces: VecDeque<Piece>,
    current: Option<Box<dyn Source>>,
}

#[async_trait]
impl Source for Pieces<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if let Some(current) = &mut self.current
                && let Some(chunk) = current.next().await?
            {
                return Ok(Some(chunk));
            }
            self.current = match self.pieces.pop_front() {
                None => return Ok(None),
                Some(Piece::Bytes(bytes)) => Some(Box::new(bytes)),
                Some(Piece::Range(content, range)) => Some(self.context.stream(content, range).await?),
            };
        }
    }
}
