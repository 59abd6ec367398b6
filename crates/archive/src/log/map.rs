//! Files shared with the page cache. The one place of this crate that needs `unsafe`.
#![allow(
    unsafe_code,
    reason = "mapping a file can't be checked by the compiler; each block gives its reason"
)]

use std::{fs::File, io};

use bytes::Bytes;
use memmap2::MmapOptions;

/// Maps the first `len` bytes of a file for reading. The mapping lives as long as the last clone of the bytes.
///
/// `len` may go beyond the file's end, so that a file that grows needs one mapping only. Bytes beyond the end must not be
/// touched: the engine only reads records whose write it has seen succeed, or that lie below the length that it found.
pub(super) fn map(file: &File, len: usize) -> io::Result<Bytes> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: segments are append-only. A byte is written before anybody is told of it and is not changed afterwards; a
    // file is cut only behind the last record that anybody was told of. The archive's folder is locked against other
    // writers of this program; somebody who changes the files by hand can make reads return other bytes, which the
    // checksums notice, or fault, which ends the process without harm to the data.
    let mapping = unsafe { MmapOptions::new().len(len).map(file)? };
    Ok(Bytes::from_owner(mapping))
}
