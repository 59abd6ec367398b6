//! Habits of the house that no compiler keeps.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders that hold nothing of ours.
const OUTSIDE: &[&str] = &["target", ".git", "data", "corpus", "artifacts", "node_modules"];
/// What is looked at; other files are data.
const TEXTS: &[&str] = &["rs", "md", "toml", "sh", "py", "html", "json", "yml", "yaml"];
/// Names without an ending that are texts.
const NAMES: &[&str] = &["Makefile", "down", "run", "up", "with"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All texts of the repository with their paths below its root.
fn texts() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !OUTSIDE.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if TEXTS.contains(&ending) || NAMES.contains(&name.as_str()) {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(&root).unwrap().to_owned(), text));
            }
        }
    }
    assert!(found.len() > 20, "the repository was not found");
    found
}

fn sources() -> impl Iterator<Item = (PathBuf, String)> {
    texts().into_iter().filter(|(path, _)| path.extension().is_some_and(|ending| ending == "rs"))
}

/// Lines that hold one of the words, as `path:line: word`.
fn lines_with(files: impl Iterator<Item = (PathBuf, String)>, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(word.as_str())) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    found
}

/// clippy counts the lines of every function; this holds the rule, its number, and that nobody steps out of it.
#[test]
fn no_function_may_exceed_a_hundred_lines() {
    let lints: toml::Table = fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    assert_eq!(lints["workspace"]["lints"]["clippy"]["too_many_lines"].as_str(), Some("warn"));
    let clippy: toml::Table = fs::read_to_string(root().join("clippy.toml")).unwrap().parse().unwrap();
    assert_eq!(clippy["too-many-lines-threshold"].as_integer(), Some(100));
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    assert!(makefile.contains("-D warnings"), "make check turns warnings into errors");

    for crate_folder in fs::read_dir(root().join("crates")).unwrap() {
        let manifest = crate_folder.unwrap().path().join("Cargo.toml");
        let manifest: toml::Table = fs::read_to_string(manifest).unwrap().parse().unwrap();
        assert_eq!(manifest["lints"]["workspace"].as_bool(), Some(true), "{}", manifest["package"]["name"]);
    }
    // Put together here, so that this file doesn't name itself.
    let exempt = ["allow", "expect"].map(|word| format!("{word}(clippy::{}", "too_many_lines"));
    assert_eq!(lines_with(sources(), &exempt), Vec::<String>::new());
}

#[test]
fn nothing_is_left_to_do() {
    let words = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    assert_eq!(lines_with(sources(), &words), Vec::<String>::new());
}

/// A path of the machine where something was written helps nobody elsewhere.
#[test]
fn no_text_names_a_machines_folders() {
    let words = ["work", "root", "home", "Users"].map(|folder| format!("/{folder}/"));
    // A content or pubsub topic may look like a path; a folder is named behind a space, a quote or a bracket.
    let named: Vec<String> =
        words.iter().flat_map(|word| [' ', '"', '\'', '`', '(', '='].map(|c| format!("{c}{word}"))).collect();
    assert_eq!(lines_with(texts().into_iter(), &named), Vec::<String>::new());
}
