//! Checks the properties of the fuzz targets for their committed seeds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Checks a property for each seed of a target.
fn each_seed(target: &str, property: impl Fn(&[u8])) {
    let folder = std::path::Path::new("../../tests/fuzz/corpus").join(target);
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        property(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 5, "the seeds were not found");
}

#[test]
fn store_queries_of_the_corpus_hold() {
    each_seed("store_query", restante_waku::rest::fuzz_store_query);
}

#[test]
fn store_requests_and_answers_of_the_corpus_hold() {
    each_seed("store_rpc", restante_waku::store::fuzz_store_rpc);
}
