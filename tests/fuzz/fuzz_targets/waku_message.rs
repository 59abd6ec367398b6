//! Any bytes as a message from the wire.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku_wire::properties;

fuzz_target!(|wire: &[u8]| properties::waku_message(wire));
