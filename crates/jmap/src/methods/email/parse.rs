//! Email/parse (RFC 8621 §4.9).

use std::collections::HashSet;

use restante_directory::Access;
use restante_mail::message;

use crate::core::{
    Args, BlobRef, Context, Exchange, Id, Members, MethodError, Object, answers::write_json, ids,
};

use super::{
    load,
    properties::Wanted,
    render::{Ready, Rendering},
};

/// This many bytes suffice to decide whether a blob is a message.
const BEGINNING_BYTES: u64 = 64 << 10;

/// Email/parse.
pub(crate) async fn parse(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let asked = args.required::<Vec<Id>>("blobIds")?;
    let wanted = Wanted::take(&mut args, false)?;
    args.done()?;
    context.check_objects_in_get(asked.len())?;
    let (mut not_found, mut not_parsable) = (Vec::new(), Vec::new());
    let mut parsed = Vec::new();
    let mut seen = HashSet::new();
    let bytes_max = context.config.response_bytes_max.get();
    let mut members = Object::open(&mut parsed);
    let mut is_empty = true;
    let mut bytes = exchange.answers.bytes();
    for asked in &asked {
        let id = exchange.creations.resolve(asked.as_str()).unwrap_or_else(|| asked.as_str());
        if !seen.insert(id.to_owned()) {
            continue;
        }
        let blob = id.parse::<BlobRef>().ok();
        let content = match &blob {
            Some(blob) => context.content(account, blob).await?,
            None => None,
        };
        let Some((blob, content)) = blob.zip(content) else {
            not_found.push(id.to_owned());
            continue;
        };
        let beginning = context.bytes(&content, 0..BEGINNING_BYTES).await?;
        if !message::is_message(&beginning) {
            not_parsable.push(id.to_owned());
            continue;
        }
        let loaded = load::whole(context, &content, &wanted).await?;
        let Some(message) = &loaded.message else { continue };
        let rendering = Rendering {
            stored: None,
            blob: &blob,
            size: content.size(),
            ready: Ready::Message(message),
            structure: &loaded.structure,
            raw: &loaded.raw,
            values: &loaded.values,
        };
        is_empty = false;
        let out = members.member(id);
        let from = out.len();
        rendering.write(&wanted, out);
        bytes += out.len() - from;
        if bytes > bytes_max {
            let text = format!(
                "the answer has more than {bytes_max} bytes: ask for fewer messages or smaller bodies"
            );
            return Err(MethodError::RequestTooLarge(text));
        }
    }
    drop(members);
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &ids::account_id(account));
    if is_empty {
        answer.field("parsed", &());
    } else {
        answer.member("parsed").extend_from_slice(&parsed);
    }
    for (name, ids) in [("notParsable", not_parsable), ("notFound", not_found)] {
        let ids = if ids.is_empty() { None } else { Some(ids) };
        write_json(&ids, answer.member(name));
    }
    Ok(())
}
