//! The fuzz target's property of session records over its committed seeds.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

#[test]
fn records_of_the_corpus_hold() {
    let folder = std::path::Path::new("../../tests/fuzz/corpus/session_record");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        restante_sessions::fuzz_record(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 8, "the seeds were not found");
}
