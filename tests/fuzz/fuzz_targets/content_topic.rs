//! Any text as a content topic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_waku_wire::properties;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        properties::content_topic(text);
    }
});
