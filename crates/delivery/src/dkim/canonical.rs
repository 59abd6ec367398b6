//! The signed form of header fields and bodies: the canonical form "relaxed".

use aws_lc_rs::digest::{Context, Digest, SHA256};
use restante_mail_wire::canonical::Canonical;

/// Appends a header field, without a line break after it.
pub(super) fn field(name: &str, value: &[u8], to: &mut Vec<u8>) {
    Canonical::Relaxed.append_field(name.as_bytes(), value, to);
}

/// The SHA-256 of a body.
pub(super) fn body_hash(body: &[u8]) -> Digest {
    let mut hasher = Context::new(&SHA256);
    Canonical::Relaxed.body(body, &mut |chunk| hasher.update(chunk));
    hasher.finish()
}
