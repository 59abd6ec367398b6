//! New emails of Email/set (RFC 8621 §4.6).

use std::collections::HashMap;

use bytes::Bytes;
use restante_mail::{CreatedEmail, NewEmail};
use restante_mail_wire::compose::ComposeError;
use restante_records::AccountId;
use serde_json::{Map, Value};

use super::{
    draft::{self, Draft, Invalid},
    placement::Placement,
    stored,
    write::{self, Origin},
};
use crate::{
    core::{
        BlobRef, Context, Creations, IdType, Members, MethodError, Object, SetError,
        content::{Content, on_a_core},
    },
    methods::mail_errors::{blobs_not_found, too_large},
};

/// What all new emails of a call share.
pub(super) struct Create<'c> {
    pub(super) context: &'c Context,
    pub(super) account: AccountId,
    /// The most bytes that the account may have.
    pub(super) quota: Option<u64>,
}

impl Create<'_> {
    /// Reads an Email object, and puts its message into the store. The inner error concerns this email only.
    pub(super) async fn read(
        &self,
        key: &str,
        email: &Value,
        creations: &Creations,
    ) -> Result<Result<NewEmail, SetError>, MethodError> {
        let Some(object) = email.as_object() else {
            return Ok(Err(SetError::new("invalidProperties").describe("expected an object")));
        };
        let mut invalid = Invalid::default();
        let placement = Placement::read(object, creations, &mut invalid);
        let draft = Draft::read(object, &mut invalid);
        if !invalid.is_empty() {
            return Ok(Err(invalid.into_error()));
        }
        // Any number of parts may share a text, so a short request can describe a message of any size. No encoding shortens a text, so
        // a message that is too large is refused before it is composed.
        let size_max = self.context.config.upload_bytes_max.get();
        if draft.text_bytes() > size_max {
            return Ok(Err(too_large(size_max)));
        }
        let blobs = match self.blobs(&draft, creations).await? {
            Ok(blobs) => blobs,
            Err(error) => return Ok(Err(error)),
        };
        let now = self.context.clock().now();
        let origin = Origin {
            account: self.account,
            key: key.to_owned(),
            revision: self.context.records().states(self.account).await?.revision,
            now,
            domain: self.context.login.address.domain().to_string(),
        };
        let blob_bytes: usize = blobs.values().map(Bytes::len).sum();
        let text_bytes = usize::try_from(draft.text_bytes()).unwrap_or(usize::MAX);
        let bytes = blob_bytes.saturating_add(text_bytes);
        let raw = match on_a_core(bytes, move || write::message(draft, &blobs, &origin)).await? {
            Ok(raw) => raw,
            Err(error) => return Ok(Err(of_compose(object, &error))),
        };
        if raw.len() as u64 > size_max {
            return Ok(Err(too_large(size_max)));
        }
        let message = stored::put(self.context, raw.into()).await?;
        Ok(Ok(NewEmail {
            if_in_state: None,
            message,
            mailboxes: placement.mailboxes,
            keywords: placement.keywords.unwrap_or_default(),
            received: placement.received.unwrap_or_else(|| now.seconds()),
            quota: self.quota,
        }))
    }

    /// The bytes of all blobs, by the ids that the draft uses for them (ES3).
    async fn blobs(
        &self,
        draft: &Draft,
        creations: &Creations,
    ) -> Result<Result<HashMap<String, Bytes>, SetError>, MethodError> {
        let mut contents: HashMap<&str, Content> = HashMap::new();
        let mut not_found: Vec<String> = Vec::new();
        let mut total: u64 = 0;
        for id in draft.blobs() {
            if let Some(content) = contents.get(id) {
                total = total.saturating_add(content.size());
                continue;
            }
            let blob = creations.resolve(id).and_then(|id| id.parse::<BlobRef>().ok());
            let content = match blob {
                Some(blob) => self.context.content(self.account, &blob).await?,
                None => None,
            };
            match content {
                Some(content) => {
                    total = total.saturating_add(content.size());
                    contents.insert(id, content);
                }
                None if not_found.iter().any(|known| known == id) => {}
                None => not_found.push(id.to_owned()),
            }
        }
        if !not_found.is_empty() {
            return Ok(Err(blobs_not_found(not_found)));
        }
        let bytes_max = self.context.config.attachments_bytes_max.get();
        if total > bytes_max {
            return Ok(Err(too_large(bytes_max)));
        }
        let mut blobs = HashMap::with_capacity(contents.len());
        for (id, content) in contents {
            let bytes = self.context.bytes(&content, 0..content.size()).await?;
            blobs.insert(id.to_owned(), bytes);
        }
        Ok(Ok(blobs))
    }
}

/// The error for a field that can't be written: names the property that gave it, or the properties of the body.
fn of_compose(email: &Map<String, Value>, error: &ComposeError) -> SetError {
    let text = error.to_string();
    match draft::property_of_field(email, &error.field) {
        Some(property) => SetError::invalid([property], text),
        None => {
            let bodies = ["bodyStructure", "textBody", "htmlBody", "attachments"];
            SetError::invalid(bodies.into_iter().filter(|body| email.contains_key(*body)), text)
        }
    }
}

/// What a response returns for a new email.
pub(super) fn created_json(made: &CreatedEmail, size: u64) -> String {
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    IdType::Email.write(made.id, object.member("id"));
    object.field("blobId", &BlobRef::email(made.id).to_string());
    IdType::Thread.write(made.thread, object.member("threadId"));
    object.field("size", &size);
    drop(object);
    String::from_utf8(json).unwrap_or_default()
}
