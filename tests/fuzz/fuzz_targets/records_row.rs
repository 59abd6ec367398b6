//! Any bytes as a row or a key of a record store, such as a damaged disk may have.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_records::fuzz_row(bytes));
