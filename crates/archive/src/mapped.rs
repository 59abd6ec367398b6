//! Files shared with the page cache. The only module of this crate that needs `unsafe`.
#![allow(
    unsafe_code,
    reason = "mapping a file can't be checked by the compiler; each block gives its reason"
)]

use std::{fs::File, io};

use bytes::Bytes;
use memmap2::{Advice, MmapOptions};

/// When the pages of a mapping are entered into the page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    AsTouched,
    AtOnce,
}

/// Maps the first `len` bytes of a file for reading. The mapping lives as long as the last clone of the bytes.
///
/// `len` may exceed the file's length, so that a file that grows needs one mapping only. Bytes beyond the end must not be
/// accessed: the engine only reads records whose write succeeded, or that are within the length that the file had when it was
/// opened.
pub(crate) fn map(file: &File, len: usize, pages: Pages) -> io::Result<Bytes> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: segments are append-only. A byte is written before its offset is published and is not changed afterwards; a file is
    // truncated only after the last published record. The archive's folder is locked against other writers of this program;
    // changing the files by hand can make reads return other bytes, which the checksums detect, or fault, which ends the process
    // without harm to the data.
    let mapping = unsafe { MmapOptions::new().len(len).map(file)? };
    if pages == Pages::AtOnce {
        // An older kernel can't; then pages are entered when they are accessed.
        let _ = mapping.advise(Advice::PopulateRead);
    }
    Ok(Bytes::from_owner(mapping))
}

/// Cache lines of a record that are prefetched; the processor's own prefetcher loads the rest.
const LINES_AHEAD: usize = 4;
const LINE_BYTES: usize = 64;

/// Asks the processor to fetch the beginning of the record at `offset`, which is going to be read soon.
#[inline]
pub(crate) fn fetch_ahead(bytes: &[u8], offset: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..LINES_AHEAD {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = bytes.as_ptr().wrapping_add(offset + line * LINE_BYTES);
        // SAFETY: a prefetch reads nothing: with an unmapped address it does nothing at all.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, offset, LINES_AHEAD, LINE_BYTES);
}
