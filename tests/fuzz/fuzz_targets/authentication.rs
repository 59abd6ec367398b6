//! Any bytes as a message from outside, whose domains say the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_checks::properties;

fuzz_target!(|bytes: &[u8]| properties::authentication(bytes));
