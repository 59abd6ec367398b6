//! The fuzz target's property of records over its committed seeds.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test ends where something is not as it should be"
)]

#[path = "../../../tests/fuzz/properties/archive_record.rs"]
mod archive_record;

#[test]
fn records_of_the_corpus_hold() {
    let folder = std::path::Path::new("../../tests/fuzz/corpus/archive_record");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        archive_record::archive_record(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 5, "the seeds were not found");
}
