//! Which documents match a filter.

use restante_search::{Document, Field, Filter, matches};

use crate::{
    Subject,
    common::{A, anywhere, email, found, header, id, in_field, index},
};

crate::promises! {
    any: [
        eq2_each_field_is_found_by_its_own_condition,
        eq2_text_looks_into_every_field,
        eq2_all_words_must_be_there_in_any_field,
        eq2_a_phrase_is_found_in_its_order_alone,
        eq2_a_phrase_stays_within_one_entry,
        eq2_names_with_dots_are_phrases,
        eq2_case_and_accents_make_no_difference,
        eq2_scripts_without_spaces_are_found_by_any_part,
        eq2_a_text_without_words_matches_everything,
        l3_operators_nest_and_have_their_values_when_empty,
        eq1_header_conditions_look_at_fields_of_that_name,
        eq1_a_long_header_value_is_found_by_its_beginning,
        a_long_word_is_found_by_its_beginning,
    ],
    disk: []
}

/// Compares an engine and direct matching with what is expected.
async fn check(subject: &Subject, documents: Vec<Document>, cases: &[(Filter, &[u64])]) {
    let opened = subject.open().await;
    index(&opened, A, documents.clone()).await;
    for (filter, expected) in cases {
        assert_eq!(found(&opened, A, filter.clone()).await, *expected, "{filter:?}");
        let direct: Vec<u64> = documents
            .iter()
            .filter(|document| matches(document, filter))
            .map(|document| document.id.0)
            .collect();
        assert_eq!(direct, *expected, "{filter:?} directly");
    }
}

fn in_each_field() -> Vec<Document> {
    let list = |word: &str| vec![word.to_owned()];
    vec![
        Document { id: id(1), from: list("Alice alice@a.example"), ..Document::default() },
        Document { id: id(2), to: list("Alice alice@a.example"), ..Document::default() },
        Document { id: id(3), cc: list("Alice alice@a.example"), ..Document::default() },
        Document { id: id(4), bcc: list("Alice alice@a.example"), ..Document::default() },
        Document { id: id(5), subject: "about Alice".into(), ..Document::default() },
        Document { id: id(6), body: vec!["x".into(), "Dear Alice,".into()], ..Document::default() },
        Document { id: id(7), attachments: list("alice.pdf"), ..Document::default() },
        Document { id: id(8), body: list("Bob"), ..Document::default() },
    ]
}

async fn eq2_each_field_is_found_by_its_own_condition(subject: Subject) {
    let cases: Vec<(Filter, &[u64])> = vec![
        (in_field(Field::From, "alice"), &[1]),
        (in_field(Field::To, "alice"), &[2]),
        (in_field(Field::Cc, "alice"), &[3]),
        (in_field(Field::Bcc, "alice"), &[4]),
        (in_field(Field::Subject, "alice"), &[5]),
        (in_field(Field::Body, "alice"), &[6]),
        (in_field(Field::Attachments, "alice"), &[7]),
        (in_field(Field::From, "alice@a.example"), &[1]),
        (in_field(Field::From, "Bob"), &[]),
    ];
    check(&subject, in_each_field(), &cases).await;
}

async fn eq2_text_looks_into_every_field(subject: Subject) {
    check(&subject, in_each_field(), &[(anywhere("alice"), &[1, 2, 3, 4, 5, 6, 7]), (anywhere("bob"), &[8])])
        .await;
}

async fn eq2_all_words_must_be_there_in_any_field(subject: Subject) {
    let mut both = email(1, "the second word");
    both.subject = "the first word".into();
    let documents = vec![both, email(2, "first"), email(3, "second first")];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("first second"), &[1, 3]),
        (in_field(Field::Body, "first second"), &[3]),
        (in_field(Field::Body, "second"), &[1, 3]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq2_a_phrase_is_found_in_its_order_alone(subject: Subject) {
    let documents = vec![
        email(1, "one two three"),
        email(2, "two one three"),
        email(3, "one and two"),
        email(4, "one one two"),
        email(5, "one, (two)"),
    ];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("\"one two\""), &[1, 4, 5]),
        (anywhere("'one two three'"), &[1]),
        (anywhere("one two"), &[1, 2, 3, 4, 5]),
        (anywhere("'one one'"), &[4]),
        (anywhere("'one two' three"), &[1]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq2_a_phrase_stays_within_one_entry(subject: Subject) {
    let mut apart = email(1, "");
    apart.body = vec!["ends one".into(), "two begins".into()];
    apart.to = vec!["one".into(), "two".into()];
    apart.headers = vec![("X-A".into(), "one".into()), ("X-A".into(), "two".into())];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("'one two'"), &[2]),
        (in_field(Field::Body, "one two"), &[1, 2]),
        (header("x-a", Some("'one two'")), &[]),
        (header("x-a", Some("one two")), &[1]),
    ];
    check(&subject, vec![apart, email(2, "one two")], &cases).await;
}

async fn eq2_names_with_dots_are_phrases(subject: Subject) {
    let documents =
        vec![email(1, "at www.example.com/x"), email(2, "com example"), email(3, "bob@example.com.")];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("example.com"), &[1, 3]),
        (anywhere("bob@example.com"), &[3]),
        (anywhere("example com"), &[1, 2, 3]),
        (anywhere("exam"), &[]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq2_case_and_accents_make_no_difference(subject: Subject) {
    let documents = vec![email(1, "Crème BRÛLÉE"), email(2, "Die STRASSE"), email(3, "ΟΔΟΣ")];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("creme brulee"), &[1]),
        (anywhere("'CRÈME brulée'"), &[1]),
        (anywhere("straße"), &[2]),
        (anywhere("οδος"), &[3]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq2_scripts_without_spaces_are_found_by_any_part(subject: Subject) {
    let documents =
        vec![email(1, "私は東京都に住んでいます。"), email(2, "京都の東"), email(3, "서울특별시 x東京")];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere("東京"), &[1, 3]),
        (anywhere("京都"), &[1, 2]),
        (anywhere("東京都"), &[1]),
        (anywhere("東"), &[1, 2, 3]),
        (anywhere("京東"), &[]),
        (anywhere("東 京都"), &[1, 2]),
        (anywhere("특별"), &[3]),
        (anywhere("x東"), &[3]),
        (anywhere("住んで"), &[1]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq2_a_text_without_words_matches_everything(subject: Subject) {
    let documents = vec![email(1, "one"), email(2, "")];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere(""), &[1, 2]),
        (anywhere(" - "), &[1, 2]),
        (in_field(Field::Subject, ""), &[1, 2]),
        (anywhere("one -"), &[1]),
        (header("x", Some("")), &[]),
    ];
    check(&subject, documents, &cases).await;
}

async fn l3_operators_nest_and_have_their_values_when_empty(subject: Subject) {
    let documents = vec![email(1, "a b"), email(2, "b c"), email(3, "c a"), email(4, "d")];
    let word = |word: &str| anywhere(word);
    let cases: Vec<(Filter, &[u64])> = vec![
        (Filter::And(vec![]), &[1, 2, 3, 4]),
        (Filter::Or(vec![]), &[]),
        (Filter::Not(vec![]), &[1, 2, 3, 4]),
        (Filter::And(vec![word("a"), word("b")]), &[1]),
        (Filter::Or(vec![word("a"), word("b")]), &[1, 2, 3]),
        (Filter::Not(vec![word("a"), word("b")]), &[4]),
        (Filter::Not(vec![Filter::Not(vec![word("a")])]), &[1, 3]),
        (Filter::Or(vec![Filter::Not(vec![word("a")]), word("b")]), &[1, 2, 4]),
        (Filter::And(vec![Filter::Or(vec![word("a"), word("b")]), Filter::Not(vec![word("c")])]), &[1]),
        (Filter::Not(vec![Filter::Or(vec![])]), &[1, 2, 3, 4]),
        (Filter::Not(vec![Filter::And(vec![])]), &[]),
        (Filter::Or(vec![Filter::And(vec![]), word("a")]), &[1, 2, 3, 4]),
    ];
    check(&subject, documents, &cases).await;
}

async fn eq1_header_conditions_look_at_fields_of_that_name(subject: Subject) {
    let mut first = email(1, "subject none");
    first.headers =
        vec![("X-Spam".into(), "Yes, score=5".into()), ("List-Id".into(), "<rust.example>".into())];
    let mut second = email(2, "x-spam yes");
    second.headers = vec![
        ("x-spam".into(), "no".into()),
        ("X-Spam".into(), "maybe Yes".into()),
        ("X-Empty".into(), "".into()),
    ];
    let cases: Vec<(Filter, &[u64])> = vec![
        (header("X-SPAM", None), &[1, 2]),
        (header("list-id", None), &[1]),
        (header("x-empty", None), &[2]),
        (header("x", None), &[]),
        (header("X-Spam", Some("yes")), &[1, 2]),
        (header("X-Spam", Some("no")), &[2]),
        (header("List-Id", Some("yes")), &[]),
        (header("X-Spam", Some("'score 5'")), &[1]),
        (header("X-Spam", Some("x-spam")), &[]),
        (anywhere("score"), &[]),
        (Filter::Not(vec![header("list-id", None)]), &[2]),
    ];
    check(&subject, vec![first, second], &cases).await;
}

async fn eq1_a_long_header_value_is_found_by_its_beginning(subject: Subject) {
    let mut long = email(1, "");
    long.headers = vec![("X-Long".into(), format!("begin {} end", "é".repeat(600)))];
    check(
        &subject,
        vec![long],
        &[(header("x-long", Some("begin")), &[1]), (header("x-long", Some("end")), &[])],
    )
    .await;
}

async fn a_long_word_is_found_by_its_beginning(subject: Subject) {
    let long = "x".repeat(100);
    let documents = vec![email(1, &format!("{long} y"))];
    let cases: Vec<(Filter, &[u64])> = vec![
        (anywhere(&long), &[1]),
        (anywhere(&format!("'{long}z y'")), &[1]),
        (anywhere(&long[..63]), &[]),
    ];
    check(&subject, documents, &cases).await;
}
