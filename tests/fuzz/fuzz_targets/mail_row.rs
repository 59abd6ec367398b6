//! Any bytes as the row of an email, such as a damaged disk may have.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_mail::row::fuzz_row(bytes));
