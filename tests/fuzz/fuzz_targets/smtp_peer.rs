//! Any bytes, split anywhere, as the replies of a server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail_wire::smtp::properties;

fuzz_target!(|input: &[u8]| {
    let (splits, bytes) = properties::with_splits(input);
    properties::peer(bytes, &splits);
});
