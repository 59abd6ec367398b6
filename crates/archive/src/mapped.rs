//! Files shared with the page cache. The one place of this crate that needs `unsafe`.
#![allow(
    unsafe_code,
    reason = "mapping a file can't be checked by the compiler; each block gives its reason"
)]

use std::{fs::File, io};

use bytes::Bytes;
use memmap2::{Advice, MmapOptions};

/// When a mapping's pages are entered into the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    AsTouched,
    AtOnce,
}

/// Maps the first `len` bytes of a file for reading. The mapping lives as long as the last clone of the bytes.
///
/// `len` may go beyond the file's end, so that a file that grows needs one mapping only. Bytes beyond the end must not be
/// touched: the engine only reads records whose write it has seen succeed, or that lie below the length that it found.
pub(crate) fn map(file: &File, len: usize, pages: Pages) -> io::Result<Bytes> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: segments are append-only. A byte is written before its offset is published and is not changed afterwards; a
    // file is cut only after the last published record. The archive's folder is locked against other
    // writers of this program; somebody who changes the files by hand can make reads return other bytes, which the
    // checksums notice, or fault, which ends the process without harm to the data.
    let mapping = unsafe { MmapOptions::new().len(len).map(file)? };
    if pages == Pages::AtOnce {
        // An older kernel can't; then they are entered as they are touched.
        let _ = mapping.advise(Advice::PopulateRead);
    }
    Ok(Bytes::from_owner(mapping))
}

/// Lines of a record that are asked for ahead of time; the processor notices by itself that the rest is wanted.
const LINES_AHEAD: usize = 4;
const LINE_BYTES: usize = 64;

/// Asks the processor to fetch the beginning of the record at `offset`, which is going to be read soon.
#[inline]
pub(crate) fn fetch_ahead(bytes: &[u8], offset: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..LINES_AHEAD {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = bytes.as_ptr().wrapping_add(offset + line * LINE_BYTES);
        // SAFETY: a prefetch reads nothing: with an address that is not mapped it does nothing at all.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, offset, LINES_AHEAD, LINE_BYTES);
}
