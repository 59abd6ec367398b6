//! The fields of the index, and how texts become terms.

use ::tantivy::{
    Index, TantivyDocument, Term,
    schema::{
        BytesOptions, FAST, Field as IndexField, INDEXED, IndexRecordOption, NumericOptions, Schema,
        TextFieldIndexing, TextOptions,
    },
    tokenizer::{TextAnalyzer, Token, TokenStream, Tokenizer},
};

use crate::{
    AccountId, Document, Field, RecordId, Revision, Words, document::searched_part, matching::texts,
};

/// The names of the tokenisers in the index' own schema.
const WORDS: &str = "words";
const HEADER_WORDS: &str = "header_words";

/// The separator between the name of a header field and a word of its value, in texts and in terms.
const AFTER_NAME: char = '\0';

/// The fields of the index. `docs/formats/search.md` lists them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    /// The id of an email; the revision in an account's state.
    pub(super) number: IndexField,
    pub(super) received: IndexField,
    /// The account of an email.
    account: IndexField,
    /// The account and the id of an email, which identify it for removal.
    key: IndexField,
    /// The account of a state.
    state: IndexField,
    texts: [(Field, IndexField); 7],
    headers: IndexField,
}

impl Fields {
    pub(super) fn schema() -> (Schema, Self) {
        let mut schema = Schema::builder();
        let exact = NumericOptions::default().set_indexed();
        let fields = Self {
            number: schema.add_u64_field("number", FAST),
            received: schema.add_i64_field("received", FAST),
            account: schema.add_u64_field("account", exact.clone()),
            key: schema.add_bytes_field("key", BytesOptions::from(INDEXED)),
            state: schema.add_u64_field("state", exact),
            texts: Field::ALL.map(|field| (field, schema.add_text_field(name(field), text_options(WORDS)))),
            headers: schema.add_text_field("headers", text_options(HEADER_WORDS)),
        };
        (schema.build(), fields)
    }

    pub(super) fn text(&self, field: Field) -> IndexField {
        let known = self.texts.iter().find(|(known, _)| *known == field);
        known.map_or(self.headers, |(_, field)| *field) // all are known
    }

    pub(super) fn account_term(&self, account: AccountId) -> Term {
        Term::from_field_u64(self.account, u64::from(account.0))
    }

    pub(super) fn state_term(&self, account: AccountId) -> Term {
        Term::from_field_u64(self.state, u64::from(account.0))
    }

    pub(super) fn key_term(&self, account: AccountId, id: RecordId) -> Term {
        Term::from_field_bytes(self.key, &key(account, id))
    }

    /// The term of a word of a header field's value.
    pub(super) fn header_term(&self, name: &str, word: &str) -> Term {
        Term::from_field_text(self.headers, &format!("{name}{AFTER_NAME}{word}"))
    }

    pub(super) fn word_term(&self, field: Field, word: &str) -> Term {
        Term::from_field_text(self.text(field), word)
    }

    pub(super) fn document(&self, account: AccountId, document: &Document) -> TantivyDocument {
        let mut row = TantivyDocument::default();
        row.add_u64(self.number, document.id.0);
        row.add_i64(self.received, document.received);
        row.add_u64(self.account, u64::from(account.0));
        row.add_bytes(self.key, &key(account, document.id));
        for (field, index_field) in self.texts {
            for text in texts(document, field) {
                if !text.is_empty() {
                    row.add_text(index_field, text);
                }
            }
        }
        for (name, value) in &document.headers {
            let name = name.to_ascii_lowercase();
            row.add_text(self.headers, format!("{name}{AFTER_NAME}{}", searched_part(value)));
        }
        row
    }

    pub(super) fn state(&self, account: AccountId, revision: Revision) -> TantivyDocument {
        let mut row = TantivyDocument::default();
        row.add_u64(self.number, revision.0);
        row.add_u64(self.state, u64::from(account.0));
        row
    }
}

/// Registers the tokenisers with an index. They are code, so an index that was opened does not have them.
pub(super) fn register_tokenizers(index: &Index) {
    let words = TextAnalyzer::builder(WordTokenizer { is_header: false }).build();
    index.tokenizers().register(WORDS, words);
    let words = TextAnalyzer::builder(WordTokenizer { is_header: true }).build();
    index.tokenizers().register(HEADER_WORDS, words);
}

fn text_options(tokenizer: &str) -> TextOptions {
    let indexing = TextFieldIndexing::default()
        .set_tokenizer(tokenizer)
        .set_index_option(IndexRecordOption::WithFreqsAndPositions)
        .set_fieldnorms(false); // nothing is ranked
    TextOptions::default().set_indexing_options(indexing)
}

fn name(field: Field) -> &'static str {
    match field {
        Field::From => "from",
        Field::To => "to",
        Field::Cc => "cc",
        Field::Bcc => "bcc",
        Field::Subject => "subject",
        Field::Body => "body",
        Field::Attachments => "attachments",
    }
}

fn key(account: AccountId, id: RecordId) -> Vec<u8> {
    [&account.0.to_be_bytes()[..], &id.0.to_be_bytes()[..]].concat()
}

/// [`Words`] for Tantivy. The first term of a header field is the name alone, and each other one begins with the name.
#[derive(Clone)]
struct WordTokenizer {
    is_header: bool,
}

impl Tokenizer for WordTokenizer {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        let split = if self.is_header { text.split_once(AFTER_NAME) } else { None };
        let (prefix, text) = match split {
            Some((name, value)) => (format!("{name}{AFTER_NAME}"), value),
            None => (String::new(), text),
        };
        WordStream { is_name_next: self.is_header, prefix, words: Words::new(text), token: Token::default() }
    }
}

struct WordStream<'t> {
    is_name_next: bool,
    prefix: String,
    words: Words<'t>,
    token: Token,
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        self.token.text.clear();
        self.token.text.push_str(&self.prefix);
        if self.is_name_next {
            self.is_name_next = false;
            self.token.position = 0;
            return true;
        }
        let Some(word) = self.words.advance() else { return false };
        self.token.text.push_str(&word.text);
        // The name is at position 0.
        let offset = usize::from(!self.prefix.is_empty());
        self.token.position = usize::try_from(word.position).unwrap_or(usize::MAX).saturating_add(offset);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}
