//! Any bytes, split anywhere, as what follows DATA and as chunks of BDAT.
#![no_main]

use libfuzzer_sys::fuzz_target;
use restante_mail_wire::smtp::properties;

fuzz_target!(|input: &[u8]| {
    let (splits, bytes) = properties::with_splits(input);
    properties::data(bytes, &splits);
    properties::chunks(bytes, &splits);
});
