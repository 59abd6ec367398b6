//! Arbitrary bytes as rows and keys, for the fuzz target: what is decoded must be encoded as the same bytes again, so that each
//! row has only one form.

use super::{
    bodies::blobs_of,
    dictionary::{Dictionary, EMPTY},
    schema::{
        AccountRow, LiveRow, StateRow, TombstoneRow, account_key, body_key, decode_account_key,
        decode_body_key, decode_feed, decode_feed_key, decode_follower_key, decode_number, decode_state_key,
        encode_feed, encode_number, feed_key, follower_account_key, follower_key, skip_value, state_key,
    },
};
use crate::{BODY_BLOBS_MAX, BODY_BYTES_MAX, Position, entries};

/// # Panics
/// If decoding panics, or if bytes are accepted that would be encoded differently.
pub(crate) fn rows(bytes: &[u8]) {
    values(bytes);
    keys(bytes);
    if let Ok(blobs) = blobs_of(bytes) {
        assert!(blobs.count() <= BODY_BLOBS_MAX, "a body refers to no more blobs than it may");
    }
    if let Some(Ok(body)) = Dictionary::new(EMPTY, &[]).map(|empty| empty.decompress(bytes)) {
        assert!(body.len() <= BODY_BYTES_MAX, "a frame is of no more bytes than a body may have");
    }
    let mut skipped = bytes;
    let mut taken = bytes;
    if entries::take_value(&mut taken).is_some() {
        assert!(skip_value(&mut skipped).is_some(), "what can be taken can be skipped");
        assert_eq!(skipped, taken, "both leave the same");
    }
}

fn values(bytes: &[u8]) {
    if let Some(row) = StateRow::decode(bytes) {
        assert_eq!(&row.encode()[..], bytes, "a state");
    }
    if let Some(row) = LiveRow::decode(bytes) {
        assert_eq!(&row.encode()[..], bytes, "the history of a record");
    }
    if let Some(row) = TombstoneRow::decode(bytes) {
        assert_eq!(&row.encode()[..], bytes, "a tombstone");
    }
    if let Some(row) = AccountRow::decode(bytes) {
        assert_eq!(&row.encode()[..], bytes, "an account");
    }
    if let Some(touched) = decode_feed(&feed_key(Position(1)), bytes) {
        assert_eq!(&encode_feed(&touched)[..], bytes, "a row of the feed");
    }
    if let Some(number) = decode_number(bytes) {
        assert_eq!(&encode_number(number)[..], bytes, "a number");
    }
}

fn keys(bytes: &[u8]) {
    if let Some(account) = decode_account_key(bytes) {
        assert_eq!(&account_key(account)[..], bytes, "the key of an account");
    }
    if let Some((account, kind, id)) = decode_state_key(bytes) {
        assert_eq!(&state_key(account, kind, id)[..], bytes, "the key of a state");
    }
    if let Some(body) = decode_body_key(bytes) {
        assert_eq!(&body_key(body)[..], bytes, "the key of a body");
    }
    if let Some(position) = decode_feed_key(bytes) {
        assert_eq!(&feed_key(position)[..], bytes, "a position");
    }
    match decode_follower_key(bytes) {
        Some((name, None)) => assert_eq!(&follower_key(&name)[..], bytes, "the key of a follower"),
        Some((name, Some(account))) => {
            assert_eq!(&follower_account_key(&name, account)[..], bytes, "the key of a follower's account");
        }
        None => {}
    }
}
