//! Blob/copy (RFC 8620 §6.3), and Blob/upload, Blob/get and Blob/lookup (RFC 9404).

mod get;
mod lookup;
mod upload;

pub(crate) use lookup::TYPES as LOOKUP_TYPES;
use restante_core::{BlobId, Error};
use restante_directory::Access;
use restante_records::AccountId;

use super::mail_errors::of_step;
use crate::core::{
    Args, BlobRef, Capability, Content, Context, Exchange, Id, Members, Method, MethodError, SetError,
    ids::account_id,
    set::{write_errors, write_map},
    uploads::{self, UsedUploads},
    write_json,
};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Blob/copy",
        capability: Capability::Core,
        run: |context, exchange, args| Box::pin(copy(context, exchange, args)),
    },
    Method {
        name: "Blob/upload",
        capability: Capability::Blob,
        run: |context, exchange, args| Box::pin(upload::upload(context, exchange, args)),
    },
    Method {
        name: "Blob/get",
        capability: Capability::Blob,
        run: |context, exchange, args| Box::pin(get::get(context, exchange, args)),
    },
    Method {
        name: "Blob/lookup",
        capability: Capability::Blob,
        run: |context, exchange, args| Box::pin(lookup::lookup(context, exchange, args)),
    },
];

/// Blob/copy: the copy is an upload in the other account.
async fn copy(context: &Context, exchange: &mut Exchange, mut args: Args) -> Result<(), MethodError> {
    let from = args.from_account(context).await?;
    let to = args.account(context, Access::Write).await?;
    let ids: Vec<Id> = args.required("blobIds")?;
    args.done()?;
    context.check_objects_in_set(ids.len())?;
    let (mut copied, mut not_copied) = (Vec::new(), Vec::new());
    for id in ids {
        let copy = match exchange.creations.resolve(id.as_str()).and_then(|id| id.parse::<BlobRef>().ok()) {
            Some(blob) => copy_one(context, from, &blob, to, &mut exchange.uploads).await,
            None => Ok(Err(SetError::not_found())),
        };
        let copy = copy.map_err(MethodError::from);
        let id = id.into_string();
        match of_step(copy, !copied.is_empty())? {
            Ok(copy) => copied.push((id, copy.to_string())),
            Err(error) => not_copied.push((id, error)),
        }
    }
    let mut answer = exchange.answers.begin();
    answer.field("fromAccountId", &account_id(from));
    answer.field("accountId", &account_id(to));
    write_map(&mut answer, "copied", &copied, write_json);
    write_errors(&mut answer, "notCopied", &not_copied);
    Ok(())
}

/// Copies a blob. The inner error concerns this blob only.
async fn copy_one(
    context: &Context,
    from: AccountId,
    blob: &BlobRef,
    to: AccountId,
    uploads: &mut UsedUploads,
) -> Result<Result<BlobRef, SetError>, Error> {
    let Some(content) = context.content(from, blob).await? else { return Ok(Err(SetError::not_found())) };
    let size = content.size();
    if !uploads.admit(&context.config, size) {
        return Ok(Err(over_quota()));
    }
    let stored = match content {
        Content::Stored { blob, .. } => {
            // It may be about to be swept.
            let touched = context.blobs().touch(&[blob]).await?;
            if touched.first() != Some(&true) {
                return Ok(Err(SetError::not_found()));
            }
            blob
        }
        Content::Decoded(mut bytes) => context.blobs().put(&mut bytes).await?.id,
    };
    note(context, to, (stored, size), uploads).await.map(Ok)
}

/// Records a blob that was stored or touched as an upload of the user; its bytes were admitted.
async fn note(
    context: &Context,
    account: AccountId,
    (blob, size): (BlobId, u64),
    uploads: &mut UsedUploads,
) -> Result<BlobRef, Error> {
    let upload = uploads::note(context, account, blob, size).await?;
    uploads.made(account, upload);
    Ok(BlobRef::upload(upload))
}

/// `overQuota` for a blob that would evict others of the same request.
fn over_quota() -> SetError {
    SetError::new("overQuota").describe(
        "the blobs that this request makes are longer than the quota of uploads, with the uploads that they are made of: make some \
         of them in another request",
    )
}
