//! Messages made of any bytes, which must be read back unchanged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail_wire::properties;

fuzz_target!(|bytes: &[u8]| properties::compose(bytes));
