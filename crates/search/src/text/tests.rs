use super::*;

fn phrases(text: &str) -> Vec<Vec<String>> {
    let text = SearchText::parse(text).unwrap();
    let words = |phrase: &Phrase| phrase.words().iter().map(|(_, word)| word.clone()).collect();
    text.phrases().iter().map(words).collect()
}

#[test]
fn eq2_white_space_separates_what_must_all_be_there() {
    assert_eq!(phrases("  one\ttwo\u{3000}three\n"), [["one"], ["two"], ["three"]]);
    assert_eq!(phrases("one ONE one"), [["one"]], "once is enough");
    assert!(phrases("").is_empty());
    assert!(phrases(" - !").is_empty(), "no word demands nothing");
}

#[test]
fn eq2_quotation_marks_make_phrases() {
    assert_eq!(phrases("\"one two\" three"), [vec!["one", "two"], vec!["three"]]);
    assert_eq!(phrases("'one two'three"), [vec!["one", "two"], vec!["three"]]);
    assert_eq!(phrases("'one \"two' \"it's three\""), [vec!["one", "two"], vec!["it", "s", "three"]]);
}

#[test]
fn eq2_a_backslash_makes_the_next_character_ordinary() {
    assert_eq!(phrases(r#""one \" two" three"#), [vec!["one", "two"], vec!["three"]]);
    assert_eq!(phrases(r"'don\'t stop' now"), [vec!["don", "t", "stop"], vec!["now"]]);
    assert_eq!(phrases(r#"'one \\' two"#), [["one"], ["two"]]);
    assert_eq!(phrases(r#"\"one two\""#), [["one"], ["two"]]);
}

#[test]
fn eq2_a_quotation_mark_without_its_counterpart_is_ordinary() {
    assert_eq!(phrases("'tis the season"), [["tis"], ["the"], ["season"]]);
    assert_eq!(phrases("don't stop"), [vec!["don", "t"], vec!["stop"]]);
    assert_eq!(phrases("5\" disk \"one two\""), [vec!["5"], vec!["disk"], vec!["one", "two"]]);
}

#[test]
fn eq2_a_name_with_dots_is_a_phrase() {
    assert_eq!(phrases("alice@example.com"), [["alice", "example", "com"]]);
}

#[test]
fn eq2_ideographs_are_looked_for_by_pairs() {
    let text = SearchText::parse("東京都 京 a東京").unwrap();
    let expected: [&[(u32, &str)]; 3] = [&[(0, "東京"), (1, "京都")], &[(0, "京")], &[(0, "a"), (1, "東京")]];
    for (phrase, expected) in text.phrases().iter().zip(expected) {
        let words: Vec<_> = phrase.words().iter().map(|(offset, word)| (*offset, word.as_str())).collect();
        assert_eq!(words, expected);
    }
}

#[test]
fn too_many_words_are_refused() {
    let many: Vec<String> = (0..=TEXT_WORDS_MAX).map(|n| n.to_string()).collect();
    assert!(SearchText::parse(&many.join(" ")).is_err());
    assert!(SearchText::parse(&many.join("-")).is_err());
    assert!(SearchText::parse(&many[1..].join(" ")).is_ok());
}

#[test]
fn many_unpaired_quotation_marks_take_linear_time() {
    let text = "\" ' ".to_owned() + &"'x ".repeat(1_000_000);
    assert!(SearchText::parse(&text).is_ok(), "each pair of marks is the same phrase");
    let text = "\\\" ".repeat(500_000) + "\"";
    assert!(SearchText::parse(&text).is_ok());
}
