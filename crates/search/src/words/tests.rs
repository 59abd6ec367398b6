use proptest::prelude::*;

use super::*;

fn words(text: &str) -> Vec<String> {
    let mut reader = Words::new(text);
    let mut words = Vec::new();
    while let Some(word) = reader.advance() {
        words.push(word.text.clone());
    }
    words
}

fn positions(text: &str) -> Vec<(u32, String)> {
    let mut reader = Words::new(text);
    let mut words = Vec::new();
    while let Some(word) = reader.advance() {
        words.push((word.position, word.text.clone()));
    }
    words
}

#[test]
fn eq2_words_are_runs_of_letters_and_digits() {
    assert_eq!(words("Hello, World! 4x4"), ["hello", "world", "4x4"]);
    assert_eq!(words("example.com"), ["example", "com"]);
    assert_eq!(words("alice_b+c@example.org"), ["alice", "b", "c", "example", "org"]);
    assert_eq!(words(" .,;\u{3000}- "), [""; 0]);
    assert_eq!(words(""), [""; 0]);
}

#[test]
fn eq2_case_and_diacritics_are_folded() {
    for (a, b) in [
        ("Straße", "STRASSE"),
        ("STRAẞE", "strasse"),
        ("CAFÉ", "cafe"),
        ("cafe\u{301}", "café"),
        ("ΣΊΣΥΦΟΣ", "σισυφος"),
        ("İstanbul", "ISTANBUL"),
        ("ﬁnance", "FINANCE"),
        ("Ｆｕｌｌ", "full"),
        ("ёлка", "ЕЛКА"),
        ("x²", "X2"),
        ("שָׁלוֹם", "שלום"),
    ] {
        assert_eq!(words(a), words(b), "{a} {b}");
        assert_eq!(words(a).len(), 1, "{a}");
    }
}

#[test]
fn eq2_a_letter_in_its_lower_and_its_upper_case_is_the_same_word() {
    // The iota below a Greek letter is a mark, which is left out, and in upper case a letter.
    let has_iota_below = |letter: char| letter.nfkd().any(|c| c == '\u{345}');
    for letter in (char::MIN..=char::MAX).filter(|letter| letter.is_alphabetic()) {
        let same = words(&letter.to_string());
        assert_eq!(words(&letter.to_lowercase().to_string()), same, "{letter}");
        if !has_iota_below(letter) {
            assert_eq!(words(&letter.to_uppercase().to_string()), same, "{letter}");
        }
    }
}

#[test]
fn eq2_vowel_signs_and_voicing_marks_stay() {
    assert_ne!(words("कि"), words("का"));
    assert_eq!(words("हिन्दी").len(), 1);
    assert_ne!(words("が"), words("か"));
    assert_eq!(words("か\u{3099}"), words("が"));
    assert_eq!(words("ｶﾞ"), words("ガ"));
}

#[test]
fn eq2_scripts_without_spaces_have_characters_and_pairs() {
    assert_eq!(
        positions("東京都"),
        [(0, "東"), (0, "東京"), (1, "京"), (1, "京都"), (2, "都")].map(|(n, w)| (n, w.to_owned())),
    );
    assert_eq!(words("東 京"), ["東", "京"]);
    assert_eq!(positions("ab東cd"), [(0, "ab"), (1, "東"), (2, "cd")].map(|(n, w)| (n, w.to_owned())));
    assert_eq!(words("한국"), ["한", "한국", "국"]);
    assert_eq!(words("\u{1112}\u{1161}\u{11ab}"), ["한"], "a syllable in its letters");
    assert!(words("ภาษาไทย").contains(&"ไท".to_owned()));
}

#[test]
fn what_is_not_visible_separates_nothing() {
    assert_eq!(words("ex\u{ad}ample zero\u{200d}width"), ["example", "zerowidth"]);
    assert_eq!(words("❤\u{fe0f}ok🎉"), ["❤", "ok", "🎉"]);
}

#[test]
fn a_long_word_is_cut_and_the_next_one_is_not_affected() {
    let long = "x".repeat(WORD_CHARS_MAX + 10);
    assert_eq!(words(&format!("{long} y")), [&long[..WORD_CHARS_MAX], "y"]);
    let long = "é".repeat(WORD_CHARS_MAX + 10);
    assert_eq!(words(&format!("{long}y z")), ["e".repeat(WORD_CHARS_MAX), "z".to_owned()]);
}

#[test]
fn a_character_with_endless_marks_is_one_word() {
    let zalgo = format!("a{}b c", "\u{301}\u{316}".repeat(100_000));
    assert_eq!(words(&zalgo), ["ab", "c"]);
    let zalgo = format!("é{}b c", "\u{301}".repeat(100_000));
    assert_eq!(words(&zalgo), ["eb", "c"]);
}

proptest! {
    #[test]
    fn words_are_in_order_and_inside_of_the_text(text in "\\PC{0,40}|[a-z東京é\u{301}\u{ad} .]{0,20}") {
        let mut reader = Words::new(&text);
        let mut last = 0;
        while let Some(word) = reader.advance() {
            prop_assert!(!word.text.is_empty());
            prop_assert!(word.position >= last || word.is_pair);
            prop_assert!(!text[word.range.clone()].is_empty());
            last = word.position;
        }
    }

    #[test]
    fn words_of_a_part_are_words_of_the_whole(a in "[a-zé東京 .]{0,12}", b in "[a-zé東京 .]{0,12}") {
        let whole = words(&format!("{a} {b}"));
        let parts = [words(&a), words(&b)].concat();
        prop_assert_eq!(whole, parts);
    }
}
