//! Each rule of `docs/design/mail-rules.md` has a test that bears its number.

use std::{collections::BTreeSet, path::Path};

use crate::tidy::texts;

const PAGE: &str = "docs/design/mail-rules.md";
/// The end of a rule that has no test.
const NOT_BUILT: &str = "*Not built yet.*";
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

/// The rules of the page: the beginning of the names of their tests, and whether they are built.
fn rules(page: &str) -> Vec<(String, bool)> {
    let rule = |line: &str| {
        let (number, rest) = line.strip_prefix("- **")?.split_once("**")?;
        Some((number.to_lowercase(), !rest.ends_with(NOT_BUILT)))
    };
    page.lines().filter_map(rule).collect()
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
        // A property test stands in a macro, whose attribute is the same.
        let name = name.filter(|_| is_test);
        is_test = false;
        name
    })
}

/// The number at the beginning of a test's name, if it looks like that of a rule: `mb4_...`, `searchsnippet_...`.
fn number_of(name: &str, rules: &[(String, bool)]) -> Option<String> {
    if let Some((begin, _)) = rules.iter().find(|(begin, _)| name.starts_with(&format!("{begin}_"))) {
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
    let missing: Vec<&String> = rules
        .iter()
        .filter(|(rule, is_built)| *is_built && !tested.contains(rule))
        .map(|(rule, _)| rule)
        .collect();
    assert!(
        missing.is_empty(),
        "rules of {PAGE} without a test whose name begins with their number: {missing:?}"
    );
    let built: BTreeSet<&String> =
        rules.iter().filter(|(_, is_built)| *is_built).map(|(rule, _)| rule).collect();
    let unknown: Vec<&String> = tested.iter().filter(|rule| !built.contains(rule)).collect();
    assert!(unknown.is_empty(), "tests of rules that {PAGE} does not have, or has as not built: {unknown:?}");
}
