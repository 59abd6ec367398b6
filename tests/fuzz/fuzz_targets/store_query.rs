//! Any bytes as a store query, from a query string and from a JSON body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku::rest;

fuzz_target!(|bytes: &[u8]| rest::fuzz_store_query(bytes));
