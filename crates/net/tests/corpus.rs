//! Checks the property of the fuzz target on its committed seeds in every test run, without a fuzzer.

use std::{fs, path::Path};

use restante_net::proxy;

#[test]
fn proxy_headers_of_the_corpus_hold() {
    let folder = Path::new("../../tests/fuzz/corpus/proxy_header");
    let mut seeds = 0;
    for entry in fs::read_dir(folder).unwrap() {
        proxy::assert_parsed_alike(&fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 7, "{} has the seeds", folder.display());
}
