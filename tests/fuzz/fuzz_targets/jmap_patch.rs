//! Any bytes as an object of JMAP and a patch for it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_jmap::fuzz_patch(bytes));
