//! The fields of the index, and how documents and states are written. `docs/formats/search-opensearch.md` describes them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    AccountId, Document, Error, Field, HeaderName, OpensearchConfig, RecordId, Revision, Words,
    document::searched_part, matching::texts,
};

/// The version of the fields, the analysers and the tokeniser. An index of another version is rebuilt.
pub(super) const FORMAT: u64 = 2;

/// The separator between words of the same position.
const SAME_POSITION: char = '\u{b7}';
/// In a phrase, a position where any word matches.
const ANY_WORD: &str = "\u{b7}";
/// The prefix of a word in the field `words` that is from another field than the body.
const NOT_OF_BODY: &str = "~";
/// The separator between the name of a header field and a word of its value.
const AFTER_NAME: char = ':';

/// The `_id` and the routing of the document that has the checkpoint.
pub(super) const META: &str = "meta";
/// More characters than any cell has; the tokeniser would split longer ones.
const CELL_CHARS_MAX: usize = 16_384;
/// The most hits of one request, as the index is configured.
pub(super) const WINDOW: usize = 10_000;

/// The settings and the mapping of an index.
pub(super) fn index_body(config: &OpensearchConfig, aliases: &[&str]) -> Value {
    let aliases: serde_json::Map<String, Value> =
        aliases.iter().map(|alias| ((*alias).to_owned(), json!({}))).collect();
    json!({ "settings": { "index": settings(config) }, "mappings": mappings(), "aliases": aliases })
}

fn settings(config: &OpensearchConfig) -> Value {
    let analyzer = |filter: &str| json!({"type": "custom", "tokenizer": "cells", "filter": [filter]});
    json!({
        "number_of_shards": config.shards,
        "number_of_replicas": config.replicas,
        // A commit refreshes. A refresh before its end would show a part of it.
        "refresh_interval": "-1",
        // A write is acknowledged after it is synced.
        "translog.durability": "request",
        // A write that was delayed in transit must not bring back what was deleted meanwhile.
        "gc_deletes": "10m",
        "max_result_window": WINDOW,
        "store.stats_refresh_interval": "1s",
        "analysis": {
            "tokenizer": {"cells": {"type": "whitespace", "max_token_length": CELL_CHARS_MAX}},
            "filter": {
                "words_of_cell": {
                    "type": "pattern_capture",
                    "preserve_original": false,
                    "patterns": [format!("([^{SAME_POSITION}]+)")],
                },
                "any_word": {"type": "stop", "stopwords": [ANY_WORD]},
            },
            "analyzer": {"cells": analyzer("words_of_cell"), "phrase": analyzer("any_word")},
        },
    })
}

fn mappings() -> Value {
    let text = json!({"type": "text", "norms": false, "analyzer": "cells", "search_analyzer": "phrase"});
    json!({
        "_meta": {"restante": {"format": FORMAT}},
        "dynamic": "strict",
        "_routing": {"required": true},
        "_source": {"includes": ["revision", "unfinished", "checkpoint"]},
        "properties": {
            "account": {"type": "keyword", "doc_values": false},
            "number": {"type": "long"},
            "received": {"type": "long"},
            "state": {"type": "long"},
            "revision": {"type": "long", "index": false},
            "unfinished": {"type": "boolean", "doc_values": false},
            "checkpoint": {"type": "keyword", "index": false, "doc_values": false},
            "words": text, "from": text, "to": text, "cc": text, "bcc": text, "subject": text, "attachments": text,
            "headers": text,
        },
    })
}

/// The version of the format of an index, by its mapping; `None` when it is not ours.
pub(super) fn format_of(index: &Value) -> Option<u64> {
    index.pointer("/mappings/_meta/restante/format")?.as_u64()
}

pub(super) fn email_id(account: AccountId, id: RecordId) -> String {
    format!("{}-{}", account.0, id.0)
}

pub(super) fn state_id(account: AccountId) -> String {
    format!("state-{}", account.0)
}

/// Maps unsigned numbers to signed ones in the same order: OpenSearch sorts no others fast.
pub(super) fn signed(number: u64) -> i64 {
    (number ^ (1 << 63)).cast_signed()
}

pub(super) fn unsigned(number: i64) -> u64 {
    number.cast_unsigned() ^ (1 << 63)
}

/// An email, as it is written. Its texts are the words that our tokeniser makes.
#[derive(Serialize)]
struct Row {
    account: String,
    number: i64,
    received: i64,
    /// The words of the body, and those of the other fields with the prefix [`NOT_OF_BODY`].
    words: Vec<String>,
    from: Vec<String>,
    to: Vec<String>,
    cc: Vec<String>,
    bcc: Vec<String>,
    subject: Vec<String>,
    attachments: Vec<String>,
    headers: Vec<String>,
}

pub(super) fn document(account: AccountId, document: &Document) -> Result<Vec<u8>, Error> {
    let cells_of = |field: Field, prefix: &str| -> Vec<String> {
        let cells = texts(document, field).into_iter().map(|text| cells(text, prefix));
        cells.filter(|cells| !cells.is_empty()).collect()
    };
    let mut words = cells_of(Field::Body, "");
    for field in Field::ALL.into_iter().filter(|field| *field != Field::Body) {
        words.extend(cells_of(field, NOT_OF_BODY));
    }
    let row = Row {
        account: account.0.to_string(),
        number: signed(document.id.0),
        received: document.received,
        words,
        from: cells_of(Field::From, ""),
        to: cells_of(Field::To, ""),
        cc: cells_of(Field::Cc, ""),
        bcc: cells_of(Field::Bcc, ""),
        subject: cells_of(Field::Subject, ""),
        attachments: cells_of(Field::Attachments, ""),
        headers: document.headers.iter().filter_map(|(name, value)| header_cells(name, value)).collect(),
    };
    serde_json::to_vec(&row)
        .map_err(|error| Error::internal("a document can't be written").with_source(error))
}

/// The name alone, then the words of the value; `None` for a name that no condition can have.
fn header_cells(name: &str, value: &str) -> Option<String> {
    let name = HeaderName::new(name)?;
    let prefix = format!("{}{AFTER_NAME}", name.as_str());
    let words = cells(searched_part(value), &prefix);
    Some(if words.is_empty() { prefix } else { format!("{prefix} {words}") })
}

/// The words of a text, each with a prefix, positions separated by a space.
fn cells(text: &str, prefix: &str) -> String {
    let mut cells = String::with_capacity(text.len());
    let mut next = 0;
    let mut words = Words::new(text);
    while let Some(word) = words.advance() {
        if word.position < next {
            cells.push(SAME_POSITION);
        }
        while next <= word.position {
            if next > 0 {
                cells.push(' ');
            }
            if next < word.position {
                cells.push_str(ANY_WORD);
            }
            next += 1;
        }
        cells.push_str(prefix);
        cells.push_str(&word.text);
    }
    cells
}

/// The state of an account. It has the least number and the latest time, so that it is the first hit in each order.
pub(super) fn state(account: AccountId, revision: Revision, is_unfinished: bool) -> Value {
    let mut state = json!({
        "account": account.0.to_string(),
        "state": account.0,
        "number": i64::MIN,
        "received": i64::MAX,
        "revision": i64::try_from(revision.0).unwrap_or(i64::MAX),
    });
    if is_unfinished && let Some(fields) = state.as_object_mut() {
        fields.insert("unfinished".to_owned(), true.into());
    }
    state
}

/// The field that contains the words of a field of documents, and the prefix that they have there.
pub(super) fn text_field(field: Field) -> &'static str {
    match field {
        Field::From => "from",
        Field::To => "to",
        Field::Cc => "cc",
        Field::Bcc => "bcc",
        Field::Subject => "subject",
        Field::Body => "words",
        Field::Attachments => "attachments",
    }
}

/// The prefixes that a word of any field may have in the field `words`.
pub(super) const ANYWHERE: [&str; 2] = ["", NOT_OF_BODY];

/// The prefix of the words of a header field.
pub(super) fn header_prefix(name: &HeaderName) -> String {
    format!("{}{AFTER_NAME}", name.as_str())
}

/// A phrase, without any condition on positions between its words.
pub(super) fn phrase_cells(words: &[(u32, String)], prefix: &str) -> String {
    let mut cells = String::new();
    let mut next = words.first().map_or(0, |(position, _)| *position);
    for (position, word) in words {
        while next < *position {
            cells.push_str(ANY_WORD);
            cells.push(' ');
            next += 1;
        }
        cells.push_str(prefix);
        cells.push_str(word);
        cells.push(' ');
        next += 1;
    }
    cells.truncate(cells.trim_end().len());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SearchText;

    #[test]
    fn words_stand_at_their_positions() {
        for (text, expected) in
            [("", ""), ("Some Words", "some words"), ("東京都 x", "東·東京 京·京都 都 x"), ("東", "東")]
        {
            assert_eq!(cells(text, ""), expected);
        }
        assert_eq!(cells("東京 a.b", "n:"), "n:東·n:東京 n:京 n:a n:b");
        assert_eq!(header_cells("Subject", "A b").unwrap(), "subject: subject:a subject:b");
        assert_eq!(header_cells("X", "...").unwrap(), "x:");
        assert_eq!(header_cells("not a name", "x"), None);
    }

    #[test]
    fn phrases_keep_the_distance_of_their_words() {
        for (text, prefix, expected) in [
            ("'some words'", "", "some words"),
            ("東京都abc", "", "東京 京都 · abc"),
            ("東京x", "~", "~東京 · ~x"),
        ] {
            let text = SearchText::parse(text).unwrap();
            assert_eq!(phrase_cells(text.phrases()[0].words(), prefix), expected);
        }
    }

    #[test]
    fn numbers_keep_their_order_as_signed_ones() {
        let numbers = [0, 1, (1 << 63) - 1, 1 << 63, u64::MAX];
        assert!(numbers.map(signed).is_sorted());
        assert_eq!(numbers.map(|number| unsigned(signed(number))), numbers);
    }
}
