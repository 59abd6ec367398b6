//! Any bytes as each request and response of the protocols between peers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku_wire::properties;

fuzz_target!(|wire: &[u8]| properties::waku_rpc(wire));
