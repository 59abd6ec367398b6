//! Any bytes as a header, and as a value in all forms, charsets and encodings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail_wire::properties;

fuzz_target!(|bytes: &[u8]| properties::header_forms(bytes));
