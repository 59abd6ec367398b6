//! SearchSnippet/get (RFC 8621 §5.1).

use std::ops::Range;

use restante_directory::Access;
use restante_search::{self as search, Document, Field, marks};
use serde_json::Value;
use tracing::warn;

use crate::core::{
    Args, Context, Exchange, Id, IdType, Members, MethodError, answers::write_json, content::on_a_core, ids,
};

use super::{
    document,
    get::is_damage,
    query::{filter::Filter, text},
};

/// The longest preview, in octets (RFC 8621 §5).
const PREVIEW_BYTES_MAX: usize = 255;

/// The longest subject: as much as a client shows in any list.
const SUBJECT_BYTES_MAX: usize = 2_048;

/// A preview begins at most this many characters before the first match.
const CHARS_BEFORE: usize = 40;

const OPEN: &str = "<mark>";
const CLOSE: &str = "</mark>";

/// SearchSnippet/get.
pub(crate) async fn get(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Read).await?;
    let filter = args.nullable::<Value>("filter")?.unwrap_or_default();
    let filter = Filter::parse(&filter, &exchange.creations, &context.config)?;
    let filter = text::of_filter(&filter)?;
    let asked = args.required::<Vec<Id>>("emailIds")?;
    args.done()?;
    context.check_objects_in_get(asked.len())?;
    let creations = &exchange.creations;
    let asked: Vec<String> = asked
        .into_iter()
        .map(|id| creations.resolve(id.as_str()).unwrap_or_else(|| id.as_str()).to_owned())
        .collect();
    let mut not_found = Vec::new();
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &ids::account_id(account));
    let mut list = answer.list("list");
    for id in asked {
        let document = match IdType::Email.record(&id) {
            Some(record) => document::read(context, account, record).await,
            None => Ok(None),
        };
        let snippet = match document {
            Ok(Some(document)) => {
                let filter = filter.clone();
                on_a_core(document.bytes(), move || Snippet::of(&document, &filter)).await?
            }
            Ok(None) => {
                not_found.push(id);
                continue;
            }
            // The email exists, but is damaged. The other emails still get their snippets.
            Err(error) if is_damage(&error) => {
                warn!(account = account.0, email = %id, %error, "the message of an email can't be read");
                Snippet { subject: None, preview: None }
            }
            Err(error) => return Err(error.into()),
        };
        let mut item = list.object();
        item.field("emailId", &id);
        item.field("subject", &snippet.subject);
        item.field("preview", &snippet.preview);
    }
    drop(list);
    let not_found = if not_found.is_empty() { None } else { Some(not_found) };
    write_json(&not_found, answer.member("notFound"));
    Ok(())
}

/// Where an email matches the search.
#[derive(Debug, PartialEq, Eq)]
struct Snippet {
    subject: Option<String>,
    preview: Option<String>,
}

impl Snippet {
    fn of(document: &Document, filter: &search::Filter) -> Self {
        let in_subject = marks(Field::Subject, &document.subject, filter);
        let subject =
            (!in_subject.is_empty()).then(|| highlight(&document.subject, &in_subject, 0, SUBJECT_BYTES_MAX));
        let preview = document.body.iter().find_map(|body| {
            let marks = marks(Field::Body, body, filter);
            let first = marks.first()?.start;
            Some(highlight(body, &marks, start_before(body, first), PREVIEW_BYTES_MAX))
        });
        Self { subject, preview }
    }
}

/// The start of a preview that shows a match: at a word some characters before the match.
fn start_before(text: &str, first: usize) -> usize {
    let before = text.get(..first).unwrap_or_default();
    let Some((start, _)) = before.char_indices().rev().nth(CHARS_BEFORE) else { return 0 };
    let cut = before.get(start..).unwrap_or_default();
    // A word that would be cut is left out, unless there is nothing else.
    cut.find(char::is_whitespace).map_or(start, |space| start + space + 1)
}

/// A text from an offset on with its matches marked, in HTML, at most this many bytes: neither an entity nor a mark is cut. White space
/// is collapsed.
fn highlight(text: &str, marks: &[Range<usize>], from: usize, bytes_max: usize) -> String {
    let mut out = String::new();
    let mut marks = marks.iter().skip_while(|mark| mark.end <= from).peekable();
    let mut is_marked = false;
    let mut is_space = true; // skips white space at the beginning
    for (offset, c) in text.get(from..).unwrap_or_default().char_indices() {
        let offset = from + offset;
        if is_marked && marks.peek().is_none_or(|mark| offset >= mark.end) {
            out.push_str(CLOSE);
            is_marked = false;
            marks.next();
        }
        if c.is_whitespace() && is_space {
            continue;
        }
        is_space = c.is_whitespace();
        let begins = !is_marked && marks.peek().is_some_and(|mark| mark.contains(&offset));
        let mut buffer = [0; 4];
        let piece = if is_space { " " } else { escaped(c, &mut buffer) };
        let opened = if begins { OPEN.len() } else { 0 };
        let closed = if begins || is_marked { CLOSE.len() } else { 0 };
        if out.len() + opened + piece.len() + closed > bytes_max {
            break;
        }
        if begins {
            out.push_str(OPEN);
            is_marked = true;
        }
        out.push_str(piece);
    }
    if is_marked {
        out.push_str(CLOSE);
    }
    out
}

fn escaped(c: char, buffer: &mut [u8; 4]) -> &str {
    match c {
        '&' => "&amp;",
        '<' => "&lt;",
        '>' => "&gt;",
        _ => c.encode_utf8(buffer),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use restante_search::SearchText;

    use super::*;

    fn filter(text: &str) -> search::Filter {
        search::Filter::Text(SearchText::parse(text).unwrap())
    }

    fn snippet(subject: &str, body: &str, text: &str) -> Snippet {
        let document =
            Document { subject: subject.to_owned(), body: vec![body.to_owned()], ..Document::default() };
        Snippet::of(&document, &filter(text))
    }

    #[test]
    fn searchsnippet_marks_matches_and_escapes_first() {
        let found = snippet("Fish & <chips>", "a > b,\r\n  fish  soup", "fish");
        assert_eq!(found.subject.unwrap(), "<mark>Fish</mark> &amp; &lt;chips&gt;");
        assert_eq!(found.preview.unwrap(), "a &gt; b, <mark>fish</mark> soup");
    }

    #[test]
    fn searchsnippet_is_null_without_a_match() {
        let none = Snippet { subject: None, preview: None };
        assert_eq!(snippet("Fish", "soup", "meat"), none);
        let not = search::Filter::Not(vec![filter("fish")]);
        let document = Document { subject: "fish".to_owned(), ..Document::default() };
        assert_eq!(Snippet::of(&document, &not), none);
    }

    #[test]
    fn searchsnippet_shows_the_surroundings_of_the_first_match() {
        let body = format!("{}needle {}", "hay ".repeat(1_000), "stack ".repeat(1_000));
        let preview = snippet("", &body, "needle").preview.unwrap();
        assert!(preview.starts_with("hay hay"), "{preview}");
        assert!(preview.contains("<mark>needle</mark> stack"), "{preview}");
        assert!(preview.len() <= PREVIEW_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn searchsnippet_has_at_most_255_octets_and_no_cut_entity(body in "[a&<>ä \n]{0,400}", at in 0_usize..400) {
            let at = body.char_indices().nth(at).map_or(body.len(), |(offset, _)| offset);
            let body = format!("{} needle {}", &body[..at], &body[at..]);
            let preview = snippet("", &body, "needle").preview.unwrap();
            prop_assert!(preview.len() <= PREVIEW_BYTES_MAX, "{}", preview.len());
            prop_assert!(preview.contains("<mark>needle</mark>"), "{preview}");
            let plain = preview.replace(OPEN, "").replace(CLOSE, "");
            prop_assert!(!plain.contains(['<', '>']));
            for piece in plain.split('&').skip(1) {
                prop_assert!(["amp;", "lt;", "gt;"].iter().any(|entity| piece.starts_with(entity)), "{plain}");
            }
        }
    }
}
