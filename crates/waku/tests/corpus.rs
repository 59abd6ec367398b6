//! The property of the fuzz target `store_query` over its committed seeds.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

#[test]
fn store_queries_of_the_corpus_hold() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/store_query");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        restante_waku::rest::fuzz_store_query(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 5, "the seeds were not found");
}
