//! Writes the message of a draft (ES2).

use std::collections::HashMap;

use bytes::Bytes;
use restante_core::Timestamp;
use restante_mail_wire::{
    compose::{self, ComposeError},
    header::Date,
};
use restante_records::{AccountId, Revision};
use sha2::{Digest, Sha256};

use super::draft::{Content, Draft, DraftBody, DraftPart};

/// The values for fields that the draft does not set.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) account: AccountId,
    /// The creation id.
    pub(super) key: String,
    /// The revision of the account before the message was made.
    pub(super) revision: Revision,
    pub(super) now: Timestamp,
    /// The domain of its Message-ID.
    pub(super) domain: String,
}

impl Origin {
    /// The seed of the Message-ID and the boundaries: creation ids distinguish the messages of one call, time and revision those of
    /// several calls.
    fn seed(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.account.0.to_be_bytes());
        hash.update(self.revision.0.to_be_bytes());
        hash.update(self.now.nanos().to_be_bytes());
        hash.update(self.key.as_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        hash.first_chunk().copied().unwrap_or_default()
    }
}

/// The octets of a message. `blobs` has the bytes of all blobs that the draft names.
pub(super) fn message(
    draft: Draft,
    blobs: &HashMap<String, Bytes>,
    origin: &Origin,
) -> Result<Vec<u8>, ComposeError> {
    let message = compose::Message { fields: draft.fields, root: root(draft.body, blobs) };
    let date = Date { seconds: origin.now.seconds(), offset_minutes: 0 };
    message.write(&compose::Origin { seed: origin.seed(), date, host: &origin.domain })
}

/// The tree of parts.
pub(super) fn root(body: DraftBody, blobs: &HashMap<String, Bytes>) -> compose::Part {
    match body {
        DraftBody::Structure(root) => part(*root, blobs),
        DraftBody::Lists { text, html, attachments } => compose::Part::assemble(
            text.map(|text| part(*text, blobs)),
            html.map(|html| part(*html, blobs)),
            attachments.into_iter().map(|attachment| part(attachment, blobs)).collect(),
        ),
    }
}

fn part(part: DraftPart, blobs: &HashMap<String, Bytes>) -> compose::Part {
    let media_type = part.media_type().to_owned();
    let content = match part.content {
        Content::Text(text) => compose::Content::Text(text),
        Content::Blob(id) => compose::Content::Bytes(blobs.get(&id).cloned().unwrap_or_default()),
        Content::Parts(parts) => {
            compose::Content::Parts(parts.into_iter().map(|inner| self::part(inner, blobs)).collect())
        }
    };
    compose::Part {
        media_type,
        parameters: part.charset.map(|charset| ("charset".to_owned(), charset)).into_iter().collect(),
        disposition: part.disposition,
        name: part.name,
        cid: part.cid,
        languages: part.language,
        location: part.location,
        fields: part.fields,
        content,
    }
}
