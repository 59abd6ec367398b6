//! Blob/get (RFC 9404 §4.2).

use bytes::Bytes;
use restante_core::Error;
use restante_directory::Access;
use sha1::{Digest, Sha1};
use sha2::Sha256;

use crate::core::{
    Args, BlobRef, Content, Context, Exchange, List, Members, MethodError, content::on_a_core,
    ids::account_id,
};

/// A property of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    Text,
    Base64,
    /// As text if it is UTF-8, else as base64.
    Data,
    Sha1,
    Sha256,
    Size,
}

impl Property {
    fn read(name: &str) -> Option<Option<Self>> {
        Some(Some(match name {
            "data:asText" => Self::Text,
            "data:asBase64" => Self::Base64,
            "data" => Self::Data,
            "digest:sha" => Self::Sha1,
            "digest:sha-256" => Self::Sha256,
            "size" => Self::Size,
            "id" => return Some(None), // always returned
            _ => return None,
        }))
    }
}

/// What is requested of each blob.
struct Asked {
    properties: Vec<Property>,
    offset: u64,
    length: Option<u64>,
}

pub(super) async fn get(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let ids = args.ids_to_get(context, &exchange.creations)?;
    let ids = ids.ok_or_else(|| MethodError::argument("ids", "expected an array: blobs can't be listed"))?;
    let asked = Asked {
        properties: properties(args.nullable("properties")?)?,
        offset: args.nullable("offset")?.unwrap_or_default(),
        length: args.nullable("length")?,
    };
    args.done()?;
    let mut budget = Budget {
        data_bytes: context.config.response_bytes_max.get().saturating_sub(exchange.answers.bytes()),
        hashed_bytes: &mut exchange.hashed_bytes,
    };
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    let mut not_found = Vec::new();
    let mut list = answer.list("list");
    for id in ids {
        let content = match id.parse::<BlobRef>() {
            Ok(blob) => context.content(account, &blob).await?,
            Err(()) => None,
        };
        match content {
            Some(content) => write(context, &id, content, &asked, &mut budget, &mut list).await?,
            None => not_found.push(id),
        }
    }
    drop(list);
    answer.field("notFound", &not_found);
    Ok(())
}

fn properties(names: Option<Vec<String>>) -> Result<Vec<Property>, MethodError> {
    let Some(names) = names else { return Ok(vec![Property::Data, Property::Size]) };
    let unknown = || MethodError::argument("properties", "there is an unknown property");
    let mut properties = Vec::new();
    for name in names {
        if let Some(property) = Property::read(&name).ok_or_else(unknown)?
            && !properties.contains(&property)
        {
            properties.push(property);
        }
    }
    Ok(properties)
}

/// How much more a call may do.
struct Budget<'e> {
    /// How many bytes of data the response may still have.
    data_bytes: usize,
    /// The bytes that the request has hashed.
    hashed_bytes: &'e mut u64,
}

impl Budget<'_> {
    /// Counts the bytes to be hashed: one request may hash as many as both digests of the longest upload need, or those of one blob.
    fn count_hashed(&mut self, context: &Context, bytes: u64) -> Result<(), MethodError> {
        let total = self.hashed_bytes.saturating_add(bytes);
        if *self.hashed_bytes > 0 && total > context.config.upload_bytes_max.get().saturating_mul(2) {
            let problem =
                "the blobs are too long for digests of all in one request: ask for fewer, or for ranges";
            return Err(MethodError::RequestTooLarge(problem.to_owned()));
        }
        *self.hashed_bytes = total;
        Ok(())
    }
}

/// Writes one blob.
async fn write(
    context: &Context,
    id: &str,
    content: Content,
    asked: &Asked,
    budget: &mut Budget<'_>,
    list: &mut List<'_>,
) -> Result<(), MethodError> {
    let size = content.size();
    let end = asked.length.map_or(size, |length| asked.offset.saturating_add(length));
    let is_truncated = asked.offset > size || end > size;
    let needs_bytes = asked.properties.iter().any(|property| *property != Property::Size);
    let shown = asked
        .properties
        .iter()
        .any(|property| matches!(property, Property::Text | Property::Base64 | Property::Data));
    let range = asked.offset.min(size)..end.min(size).max(asked.offset.min(size));
    // Base64 and escapes make the data longer; only data that is not text becomes more than twice as long.
    let length = range.end - range.start;
    if shown && length.saturating_mul(2) > budget.data_bytes as u64 {
        let problem = "the data of these blobs is too long for one response: ask for fewer, or for ranges";
        return Err(MethodError::RequestTooLarge(problem.to_owned()));
    }
    let is_digest = |property: &&Property| matches!(property, Property::Sha1 | Property::Sha256);
    let digests = asked.properties.iter().filter(is_digest).count();
    budget.count_hashed(context, length.saturating_mul(digests as u64))?;
    let bytes = if needs_bytes { context.bytes(&content, range).await? } else { Bytes::new() };
    let text = if shown { std::str::from_utf8(&bytes).ok() } else { None };
    let mut object = list.object();
    object.field("id", id);
    let mut is_encoding_problem = false;
    for property in &asked.properties {
        match property {
            Property::Size => object.field("size", &size),
            Property::Sha1 => object.field("digest:sha", &digest::<Sha1>(&bytes).await?),
            Property::Sha256 => object.field("digest:sha-256", &digest::<Sha256>(&bytes).await?),
            Property::Text => {
                is_encoding_problem |= text.is_none();
                object.field("data:asText", &text);
            }
            Property::Base64 => write_base64(&bytes, object.member("data:asBase64")),
            // Each member is written once, even if two names select it.
            Property::Data => match text {
                Some(_) if asked.properties.contains(&Property::Text) => {}
                None if asked.properties.contains(&Property::Base64) => is_encoding_problem = true,
                Some(text) => object.field("data:asText", text),
                None => {
                    is_encoding_problem = true;
                    write_base64(&bytes, object.member("data:asBase64"));
                }
            },
        }
    }
    if is_encoding_problem {
        object.field("isEncodingProblem", &true);
    }
    if is_truncated && needs_bytes {
        object.field("isTruncated", &true);
    }
    if shown {
        budget.data_bytes -= bytes.len();
    }
    Ok(())
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    base64_simd::STANDARD.encode_append(bytes, out);
    out.push(b'"');
}

/// A digest in base64.
async fn digest<D: Digest>(bytes: &Bytes) -> Result<String, Error> {
    let hashed = bytes.clone();
    on_a_core(bytes.len(), move || base64_simd::STANDARD.encode_to_string(D::digest(&hashed))).await
}
