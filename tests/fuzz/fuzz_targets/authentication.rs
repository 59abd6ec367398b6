//! Any bytes as a message from outside, and as the DNS records of its domains.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_checks::properties;

fuzz_target!(|bytes: &[u8]| properties::authentication(bytes));
