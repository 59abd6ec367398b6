//! Checks the properties of the fuzz targets for their committed seeds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};

use restante_waku_wire::properties;

/// The seeds of a fuzz target with their names, in order.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new("../../tests/fuzz/corpus").join(target);
    let mut seeds: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    seeds.sort();
    assert!(seeds.len() >= 5, "the seeds of {target} were not found");
    seeds
}

#[test]
fn messages_of_the_corpus_hold() {
    for (name, wire) in seeds("waku_message") {
        println!("{name}"); // shown when the property fails
        properties::waku_message(&wire);
    }
}

#[test]
fn content_topics_of_the_corpus_hold() {
    for (name, text) in seeds("content_topic") {
        println!("{name}"); // shown when the property fails
        properties::content_topic(std::str::from_utf8(&text).unwrap());
    }
}

#[test]
fn requests_and_responses_of_the_corpus_hold() {
    for (name, wire) in seeds("waku_rpc") {
        println!("{name}"); // shown when the property fails
        properties::waku_rpc(&wire);
    }
}

#[test]
fn node_records_of_the_corpus_hold() {
    for (name, wire) in seeds("enr") {
        println!("{name}"); // shown when the property fails
        properties::enr(&wire);
    }
}
