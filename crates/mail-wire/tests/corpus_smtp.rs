//! Checks the properties of SMTP's fuzz targets with their committed seeds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};

use restante_mail_wire::smtp::properties;

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
fn smtp_data_of_the_corpus_holds() {
    for (name, input) in seeds("smtp_data") {
        println!("{name}"); // shown when the property fails
        let (splits, bytes) = properties::with_splits(&input);
        properties::data(bytes, &splits);
        properties::chunks(bytes, &splits);
    }
}

#[test]
fn smtp_commands_of_the_corpus_hold() {
    for (name, input) in seeds("smtp_command") {
        println!("{name}"); // shown when the property fails
        let (splits, bytes) = properties::with_splits(&input);
        properties::lines(bytes, &splits);
    }
}

#[test]
fn smtp_replies_of_the_corpus_hold() {
    for (name, input) in seeds("smtp_peer") {
        println!("{name}"); // shown when the property fails
        let (splits, bytes) = properties::with_splits(&input);
        properties::peer(bytes, &splits);
    }
}
