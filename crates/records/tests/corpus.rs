//! The fuzz targets' properties of packed properties, cursors and rows over their committed seeds.
#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

/// Runs a property over the seeds of a target, and returns how many there are.
fn run(target: &str, property: fn(&[u8])) -> usize {
    let corpus = std::path::Path::new("../../tests/fuzz/corpus");
    let seeds = std::fs::read_dir(corpus.join(target)).unwrap();
    seeds.map(|seed| property(&std::fs::read(seed.unwrap().path()).unwrap())).count()
}

#[test]
fn packed_properties_and_cursors_of_the_corpus_hold() {
    assert!(run("records_packed", restante_records::fuzz_packed) >= 15, "the seeds were not found");
}

#[test]
fn rows_of_the_corpus_hold() {
    assert!(run("records_row", restante_records::fuzz_row) >= 15, "the seeds were not found");
}
