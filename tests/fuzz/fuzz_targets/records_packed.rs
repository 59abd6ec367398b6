//! Any bytes as packed properties and as a cursor of records.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_records::fuzz_packed(bytes));
