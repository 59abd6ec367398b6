use proptest::prelude::*;

use super::super::*;
use crate::properties;

/// Enough to notice quadratic time.
const BYTES: usize = 32 * 1024;

/// Fields that could take quadratic time or memory. They are parsed in all forms, and the size of the result is bounded by that
/// of the field.
#[test]
fn e4_hostile_fields_take_linear_time() {
    let patterns = [
        "(",
        "((a)",
        ")",
        "\"",
        "\"\\",
        "\\\"",
        "<",
        "<a@b",
        "<@a,",
        "<;",
        ">",
        "[",
        "[a",
        ",",
        ";",
        ":",
        "a:",
        "@",
        "a@",
        "a@:",
        " ",
        "\r\n ",
        "=?",
        "=?utf-8?q?",
        "=?utf-8?q?a?= ",
        "=?utf-8?b?YQ==?= ",
        "=?utf-7?q?+AKM-?= ",
        "=?utf-8?q?=?=",
        "=?x-unknown?q?a?= ",
        "a@b,",
        "a@b ",
        "a@b (c) ",
        "<a@b>",
        "g:a@b;",
        "\"a\" <a@b>,",
        "\";\";",
        "\\\";",
        ";a*0=",
        ";a*=utf-8''%41",
        ";a*1=b",
        "\u{301}",
        "=?utf-8?q?=CC=81?= ",
        "(=?utf-8?q?a?=) ",
        "%41",
        "'",
        ";name=\"=?utf-8?q?a?= \"",
    ];
    for pattern in patterns {
        let middle = pattern.repeat(BYTES / pattern.len());
        let end = format!("{middle}@");
        let behind =
            [format!("x@y:{middle}"), format!("\"{middle}"), format!("({middle}"), format!("<{middle}>")];
        for value in [middle, end].iter().chain(&behind) {
            properties::header_forms(value.as_bytes());
        }
    }
    let many = "a@b,".repeat(100_000);
    assert_eq!(as_addresses(many.as_bytes()).len(), 100_000);
    let deep = format!("a@b {}x{}", "(".repeat(100_000), ")".repeat(100_000));
    let name = as_addresses(deep.as_bytes())[0].name.clone().unwrap();
    assert_eq!(name.len(), 200_000 - 1);
}

proptest! {
    #[test]
    fn e4_no_value_makes_a_form_panic(bytes: Vec<u8>) {
        properties::header_forms(&bytes);
    }

    #[test]
    fn e4_no_structured_value_makes_a_form_panic(
        value in "([<>()\\[\\]\",;:@\\\\ a=]|\r\n |=\\?utf-8\\?q\\?a\\?=|a@b|\\*0\\*=|utf-8''%41|é|Mon, 1 Jan 2024 00:00 ){0,24}"
    ) {
        properties::header_forms(value.as_bytes());
    }

    #[test]
    fn e2_fields_and_what_stands_between_are_the_header(message in "([a-z]{0,3}|:|\r\n|\n| |\t){0,24}") {
        properties::header_forms(message.as_bytes());
    }
}
