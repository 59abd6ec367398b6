//! What the storage's errors mean for a store of blobs, and how to handle them.

use std::error::Error as StdError;

use restante_core::ErrorKind;

use crate::Error;

/// An error of a request.
pub(super) struct Failed {
    pub(super) error: Error,
    /// S3's code for the error, if the answer had one.
    pub(super) code: Option<String>,
    /// The HTTP status, if there was an answer.
    pub(super) status: Option<u16>,
}

impl Failed {
    /// Whether the storage has refused the request: it has not been executed.
    pub(super) fn is_refused(&self) -> bool {
        self.status.is_some_and(|status| (400..500).contains(&status) && status != 408 && status != 429)
    }
}

/// The error of a request that did `what` to the object `key`.
pub(super) fn failed(what: &str, key: &str, error: object_store::Error) -> Failed {
    let text = all_texts(&error);
    let (code, status) = (code(&text).map(str::to_owned), status(&text));
    let (kind, advice) = advice(code.as_deref().unwrap_or_default(), status, &text);
    let answer = match (&code, status) {
        (Some(code), _) => format!("the storage answered {code}{}", message(&text)),
        (None, Some(status)) => format!("the storage answered with status {status}"),
        (None, None) => reason(&error),
    };
    let failed = Error::new(kind, format!("can't {what} {key} in the S3 storage: {answer}: {advice}"));
    // The text of an answer contains its whole body, which may be a page of XML.
    let error = if status.is_some() { failed } else { failed.with_source(error) };
    Failed { error, code, status }
}

fn advice(code: &str, status: Option<u16>, text: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Full, Unavailable};
    match (code, status) {
        ("RequestTimeTooSkewed", _) => (
            Unavailable,
            "the clocks of this machine and of the storage differ by a quarter of an hour or more: set them",
        ),
        (
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidSecurity"
            | "InvalidToken"
            | "XAdminUserNotFound",
            _,
        ) => (Unavailable, "look at blobs.s3.access_key and at the secret key"),
        ("AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException", _) => {
            (Unavailable, "look at blobs.s3.region and blobs.s3.endpoint")
        }
        ("NoSuchBucket", _) => (Unavailable, "create the bucket, or look at blobs.url"),
        ("QuotaExceeded" | "QuotaExceededException" | "XMinioStorageFull" | "InsufficientStorage", _)
        | (_, Some(507)) => (Full, "raise the quota of the bucket, or add disks to the storage"),
        ("SlowDown" | "ServiceUnavailable" | "TooManyRequests", _) | (_, Some(429 | 503)) => {
            (Unavailable, "it asks for fewer requests: try again later")
        }
        (_, Some(401 | 403)) => (Unavailable, "let the key list, read, write and delete in the bucket"),
        (_, Some(500..)) => (Unavailable, "look at the log of the storage"),
        (_, Some(_)) => (Unavailable, "is it a storage with the interface of S3? look at blobs.s3.endpoint"),
        (_, None) if text.contains("invalid peer certificate") => {
            (Unavailable, "look at its certificate and at blobs.s3.ca_file")
        }
        (_, None) => (Unavailable, "is it running? look at blobs.s3.endpoint"),
    }
}

/// The texts of an error and of its causes.
fn all_texts(error: &object_store::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

/// The text of the first cause.
fn reason(error: &object_store::Error) -> String {
    let mut last: &dyn StdError = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// The text of `<Code>`.
fn code(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_name =
        !code.is_empty() && code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then_some(code)
}

/// The most characters of a `<Message>` that are shown.
const MESSAGE_CHARS_MAX: usize = 200;

/// The text of `<Message>` in brackets, after a space; empty if there is none.
fn message(text: &str) -> String {
    let message = text.split_once("<Message>").and_then(|(_, rest)| rest.split_once("</Message>"));
    let message = message.map_or("", |(message, _)| message).trim().trim_end_matches('.');
    if message.is_empty() {
        return String::new();
    }
    format!(" ({})", message.chars().take(MESSAGE_CHARS_MAX).collect::<String>())
}

/// The status that `object_store` has put into its text.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Failed {
        let source = text.to_owned().into();
        failed("put", "b/aa/x", object_store::Error::Generic { store: "S3", source })
    }

    #[test]
    fn errors_name_what_to_do() {
        for (text, kind, hint) in [
            (
                "Server returned non-2xx status code: 403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code></Error>",
                ErrorKind::Unavailable,
                "clocks",
            ),
            (
                "non-2xx status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>",
                ErrorKind::Unavailable,
                "secret key",
            ),
            (
                "non-2xx status code: 404 Not Found: <Code>NoSuchBucket</Code>",
                ErrorKind::Unavailable,
                "create the bucket",
            ),
            ("non-2xx status code: 503 x: <Code>SlowDown</Code>", ErrorKind::Unavailable, "fewer requests"),
            ("non-2xx status code: 507 Insufficient Storage: ", ErrorKind::Full, "quota"),
            ("non-2xx status code: 403 x: <Code>QuotaExceeded</Code>", ErrorKind::Full, "quota"),
            ("non-2xx status code: 500 x: ", ErrorKind::Unavailable, "log of the storage"),
            ("connection refused", ErrorKind::Unavailable, "is it running"),
        ] {
            let failed = of(text);
            assert_eq!(failed.error.kind(), kind, "{text}");
            assert!(failed.error.to_string().contains(hint), "{}", failed.error);
        }
    }

    /// Once, an error ended with the whole answer, which may have kilobytes.
    #[test]
    fn of_an_answer_code_and_message_are_repeated() {
        let rest = "x".repeat(2_000);
        let answer = format!(
            "status code: 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><Message>There is no such key.</Message>{rest}</Error>"
        );
        let error = of(&answer).error;
        let said = error.to_string();
        assert!(
            said.contains(": the storage answered InvalidAccessKeyId (There is no such key): look"),
            "{said}"
        );
        assert!(StdError::source(&error).is_none());
        assert_eq!(message(&format!("<Message>{rest}</Message>")).len(), MESSAGE_CHARS_MAX + 3);
        assert!(StdError::source(&of("connection refused").error).is_some());
    }

    #[test]
    fn only_an_answer_says_that_it_was_not_done() {
        assert!(of("status code: 403 Forbidden: ").is_refused());
        for text in ["status code: 500 x: ", "status code: 503 x: ", "status code: 429 x: ", "timed out"] {
            assert!(!of(text).is_refused(), "{text}");
        }
    }

    #[test]
    fn what_is_no_code_is_not_repeated() {
        assert_eq!(code("<Code>a b</Code>"), None);
        assert_eq!(code("<Code>x"), None);
        assert_eq!(code("<Code></Code>"), None);
    }
}
