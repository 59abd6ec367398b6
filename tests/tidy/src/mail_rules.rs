//! Each rule of `docs/design/mail-rules.md` has a test with its number in its name.

use std::{collections::BTreeSet, path::Path};

use crate::tidy::texts;

const PAGE: &str = "docs/design/mail-rules.md";
/// Where the tests are.
const FOLDERS: [&str; 10] = [
    "crates/checks",
    "crates/delivery",
    "crates/directory",
    "crates/indexer",
    "crates/jmap",
    "crates/mail",
    "crates/mail-wire",
    "crates/restante",
    "crates/search",
    "crates/smtp",
];

/// The rules of the page, as prefixes of the names of their tests.
fn rules(page: &str) -> BTreeSet<String> {
    let number = |line: &str| Some(line.strip_prefix("- **")?.split_once("**")?.0.to_lowercase());
    page.lines().filter_map(number).collect()
}

/// The names of the tests in a text: functions below an attribute that ends with `test]` or `test(..)]`.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.contains("::test]") || line.contains("::test(");
            return None;
        }
        if line.starts_with("///") {
            return None;
        }
        let signature = line.strip_prefix("async ").unwrap_or(line);
        let name = signature.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next());
        // A property test is in a macro, whose attribute is the same.
        let name = name.filter(|_| is_test);
        is_test = false;
        name
    })
}

/// The number at the beginning of a test's name, if it looks like that of a rule: `mb4_...`, `searchsnippet_...`.
fn number_of(name: &str, rules: &BTreeSet<String>) -> Option<String> {
    if let Some(begin) = rules.iter().find(|begin| name.starts_with(&format!("{begin}_"))) {
        return Some(begin.clone());
    }
    let (begin, _) = name.split_once('_')?;
    let letters = begin.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_number = letters.len() < begin.len() && matches!(letters, "sm" | "mb" | "eq" | "es");
    is_number.then(|| begin.to_owned())
}

#[test]
fn each_rule_of_mail_has_a_test_and_each_number_a_rule() {
    let texts = texts();
    let (_, page) = texts.iter().find(|(path, _)| path == Path::new(PAGE)).unwrap();
    let rules = rules(page);
    assert!(rules.len() > 90, "the rules were not found");
    let mut tested = BTreeSet::new();
    let is_code = |path: &Path| {
        FOLDERS.iter().any(|folder| path.starts_with(folder))
            && path.extension().is_some_and(|end| end == "rs")
    };
    for (_, text) in texts.iter().filter(|(path, _)| is_code(path)) {
        tested.extend(tests(text).filter_map(|name| number_of(name, &rules)));
    }
    let missing: Vec<&String> = rules.difference(&tested).collect();
    assert!(
        missing.is_empty(),
        "rules of {PAGE} without a test whose name begins with their number: {missing:?}"
    );
    let unknown: Vec<&String> = tested.difference(&rules).collect();
    assert!(unknown.is_empty(), "tests of rules that {PAGE} does not have: {unknown:?}");
}
