//! Any bytes as the header of the PROXY protocol.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_net::proxy;

fuzz_target!(|bytes: &[u8]| proxy::assert_parsed_alike(bytes));
