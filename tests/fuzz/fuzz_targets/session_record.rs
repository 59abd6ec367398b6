//! Any bytes as a record of sessions, such as another program may leave in a shared table.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| restante_sessions::fuzz_record(bytes));
