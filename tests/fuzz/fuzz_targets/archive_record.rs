//! Any bytes as a buffer of records, such as a damaged log may have.
#![no_main]

#[path = "../properties/archive_record.rs"]
mod archive_record;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|buffer: &[u8]| archive_record::archive_record(buffer));
