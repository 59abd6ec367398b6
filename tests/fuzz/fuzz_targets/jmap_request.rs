//! Any bytes as a request of JMAP, with its result references.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_jmap::fuzz_request(bytes));
