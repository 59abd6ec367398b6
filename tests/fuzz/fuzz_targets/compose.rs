//! Messages made of any bytes, which have to be read again as they were.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail_wire::properties;

fuzz_target!(|bytes: &[u8]| properties::compose(bytes));
