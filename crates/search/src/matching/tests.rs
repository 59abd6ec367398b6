use super::*;
use crate::SearchText;

fn text(text: &str) -> SearchText {
    SearchText::parse(text).unwrap()
}

/// The text with brackets around what is marked.
fn marked(field: Field, text: &str, filter: &Filter) -> String {
    let mut marked = text.to_owned();
    for range in marks(field, text, filter).into_iter().rev() {
        marked.insert(range.end, ']');
        marked.insert(range.start, '[');
    }
    marked
}

#[test]
fn words_are_marked_as_they_stand_in_the_text() {
    let filter = Filter::Text(text("cafe straße"));
    assert_eq!(
        marked(Field::Body, "Café, CAFE\u{301}! Strassen STRASSE", &filter),
        "[Café], [CAFE\u{301}]! Strassen [STRASSE]"
    );
    assert_eq!(marked(Field::Body, "nothing", &filter), "nothing");
    assert_eq!(marked(Field::Body, "", &filter), "");
}

#[test]
fn phrases_are_marked_where_all_of_them_stands() {
    let filter = Filter::Text(text("'one two'"));
    assert_eq!(marked(Field::Body, "one, two one two", &filter), "[one], [two] [one] [two]");
    assert_eq!(marked(Field::Body, "two one three two", &filter), "two one three two");
    let filter = Filter::Text(text("example.com"));
    assert_eq!(
        marked(Field::Body, "com www.example.com example", &filter),
        "com www.[example].[com] example"
    );
}

#[test]
fn ideographs_are_marked_together() {
    assert_eq!(marked(Field::Body, "私は東京都に", &Filter::Text(text("東京都"))), "私は[東京都]に");
    assert_eq!(marked(Field::Body, "京 東京", &Filter::Text(text("京"))), "[京] 東[京]");
}

#[test]
fn only_conditions_of_the_field_that_are_not_negated_are_marked() {
    let filter = Filter::And(vec![
        Filter::In(Field::Subject, text("one")),
        Filter::Or(vec![Filter::In(Field::Body, text("two")), Filter::Text(text("three"))]),
        Filter::Not(vec![Filter::Text(text("four"))]),
        Filter::Header(HeaderName::new("x").unwrap(), Some(text("five"))),
    ]);
    assert_eq!(marked(Field::Subject, "one two three four five", &filter), "[one] two [three] four five");
    assert_eq!(marked(Field::Body, "one two three four five", &filter), "one [two] [three] four five");
}

#[test]
fn marks_that_meet_are_one() {
    let filter = Filter::And(vec![Filter::Text(text("'a b'")), Filter::Text(text("'b c' b"))]);
    assert_eq!(marked(Field::Body, "a b c", &filter), "[a] [b] [c]");
    assert_eq!(marks(Field::Body, "東京都", &Filter::Text(text("東京 京都"))), vec![0..9]);
}

#[test]
fn a_phrase_of_a_common_word_takes_no_more_than_linear_time() {
    let body = "a ".repeat(500_000) + "b";
    let document = Document { body: vec![body], ..Document::default() };
    let phrase = format!("'{} b'", ["a"; 200].join(" "));
    assert!(matches(&document, &Filter::Text(text(&phrase))));
    let phrase = format!("'b {}'", ["a"; 200].join(" "));
    assert!(!matches(&document, &Filter::Text(text(&phrase))));
}
