//! Limits of all engines, with the same errors.

use std::ops::Range;

use crate::{Error, LIST_BLOBS_MAX, TOUCH_BLOBS_MAX};

pub(crate) fn check_length(bytes: u64, bytes_max: u64) -> Result<(), Error> {
    match bytes > bytes_max {
        true => Err(Error::invalid(format!("the blob is longer than the limit of {bytes_max} bytes"))),
        false => Ok(()),
    }
}

pub(crate) fn check_limit(limit: usize) -> Result<(), Error> {
    match (1..=LIST_BLOBS_MAX).contains(&limit) {
        true => Ok(()),
        false => Err(Error::invalid(format!("the limit must be 1 to {LIST_BLOBS_MAX}, not {limit}"))),
    }
}

pub(crate) fn check_touch(blobs: usize) -> Result<(), Error> {
    match blobs > TOUCH_BLOBS_MAX {
        true => Err(Error::invalid(format!(
            "{blobs} blobs are too many: at most {TOUCH_BLOBS_MAX} are touched at once"
        ))),
        false => Ok(()),
    }
}

pub(crate) fn check_range(range: &Range<u64>) -> Result<(), Error> {
    match range.end < range.start {
        true => Err(Error::invalid(format!(
            "the range ends at {} before it begins at {}",
            range.end, range.start
        ))),
        false => Ok(()),
    }
}

/// The part of a range that is inside a blob of `bytes` bytes.
pub(crate) fn clip(range: &Range<u64>, bytes: u64) -> Range<u64> {
    range.start.min(bytes)..range.end.min(bytes)
}
