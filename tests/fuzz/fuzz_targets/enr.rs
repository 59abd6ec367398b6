//! Any bytes as a node's record.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku_wire::properties;

fuzz_target!(|wire: &[u8]| properties::enr(wire));
