//! Checks the properties of the fuzz targets for header forms and composing with their committed seeds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};

use restante_mail_wire::properties;

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
fn header_forms_of_the_corpus_hold() {
    for (name, bytes) in seeds("header_forms") {
        println!("{name}"); // shown when the property fails
        properties::header_forms(&bytes);
    }
}

#[test]
fn composed_messages_of_the_corpus_hold() {
    for (name, bytes) in seeds("compose") {
        println!("{name}"); // shown when the property fails
        properties::compose(&bytes);
    }
}
