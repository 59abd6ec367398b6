//! Any bytes as a store query of a peer, and as a peer's answer to ours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku::store;

fuzz_target!(|bytes: &[u8]| store::fuzz_store_rpc(bytes));
