//! Maps errors of the mail model to errors of one object of a /set.

use restante_mail::MailError;
use serde_json::Value;

use crate::core::{IdType, MethodError, SetError};

/// The error of one object (RFC 8620 §5.3, RFC 8621 §2.5 and §4.6).
pub(crate) fn of_object(error: MailError) -> SetError {
    let text = error.to_string();
    match error {
        MailError::NotFound => SetError::not_found(),
        MailError::OverQuota => SetError::new("overQuota").describe(text),
        MailError::TooManyMailboxes => SetError::new("tooManyMailboxes").describe(text),
        MailError::TooManyKeywords => SetError::new("tooManyKeywords").describe(text),
        MailError::UnknownMailbox(_) | MailError::NoMailbox => SetError::invalid(["mailboxIds"], text),
        MailError::BadKeyword(_) => SetError::invalid(["keywords"], text),
        MailError::AlreadyExists { existing } => {
            SetError::new("alreadyExists").with("existingId", IdType::Mailbox.id(existing)).describe(text)
        }
        MailError::HasChild => SetError::new("mailboxHasChild").describe(text),
        MailError::HasEmail => SetError::new("mailboxHasEmail").describe(text),
        MailError::Invalid { properties, why } => SetError::invalid(properties, why),
        MailError::CannotUnsend => SetError::new("cannotUnsend").describe(text),
        MailError::Forbidden(why) => SetError::new("forbidden").describe(why),
        // Only reached by a call that has already changed something: see `of_edit`.
        MailError::StateMismatch | MailError::Store(_) => SetError::new(MethodError::from(error).name()),
    }
}

/// The error of one object, or of the whole call when the store failed before the call has changed anything: then the client may repeat
/// the call.
pub(crate) fn of_edit(error: MailError, has_changed: bool) -> Result<SetError, MethodError> {
    match error {
        MailError::StateMismatch | MailError::Store(_) if !has_changed => Err(error.into()),
        other => Ok(of_object(other)),
    }
}

/// The outcome of one object of a call. When the store fails after the call has changed something, the call itself must not fail: the
/// error is that of the object.
pub(crate) fn of_step<T>(
    outcome: Result<Result<T, SetError>, MethodError>,
    has_changed: bool,
) -> Result<Result<T, SetError>, MethodError> {
    match outcome {
        Err(error) if has_changed => Ok(Err(SetError::new(error.name()))),
        outcome => outcome,
    }
}

/// `blobNotFound` with the ids of all blobs that are not there (RFC 8621 §4.6).
pub(crate) fn blobs_not_found(ids: Vec<String>) -> SetError {
    SetError::new("blobNotFound").with("notFound", Value::from(ids))
}

/// `tooLarge` with the limit in bytes.
pub(crate) fn too_large(bytes_max: u64) -> SetError {
    SetError::new("tooLarge").with("maxSize", bytes_max)
}

#[cfg(test)]
mod tests {
    use restante_core::Error;

    use super::*;

    #[test]
    fn m1_a_call_that_has_changed_something_does_not_fail_any_more() {
        let failed = || Err::<Result<(), SetError>, MethodError>(MethodError::ServerUnavailable);
        assert_eq!(of_step(failed(), false), Err(MethodError::ServerUnavailable));
        assert_eq!(of_step(failed(), true), Ok(Err(SetError::new("serverUnavailable"))));
        let store = || MailError::Store(Error::unavailable("a test"));
        assert_eq!(of_edit(store(), false), Err(MethodError::ServerUnavailable));
        assert_eq!(of_edit(store(), true), Ok(SetError::new("serverUnavailable")));
        assert_eq!(of_edit(MailError::StateMismatch, false), Err(MethodError::StateMismatch));
        assert_eq!(of_edit(MailError::NotFound, false), Ok(SetError::not_found()));
    }
}
