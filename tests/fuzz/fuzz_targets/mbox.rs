//! Any bytes as an mbox, and as a message that is exported into one and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_mail_files::fuzz_mbox(bytes));
