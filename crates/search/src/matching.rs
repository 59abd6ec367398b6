//! Matching a document without an index.

use std::{collections::HashMap, ops::Range};

use crate::{Document, Field, Filter, HeaderName, Phrase, SearchText, Words, document::searched_part};

/// Whether a document matches. The time is linear in the length of the document.
pub fn matches(document: &Document, filter: &Filter) -> bool {
    let mut wanted = Wanted::default();
    wanted.add(filter);
    let found = Found::of(document, &wanted);
    evaluate(filter, document, &found)
}

/// Where the text of a field contains what a filter searches for, as ranges of bytes, ascending and not adjacent or
/// overlapping; for highlighting. Negated and header conditions are left out.
pub fn marks(field: Field, text: &str, filter: &Filter) -> Vec<Range<usize>> {
    let mut phrases = Vec::new();
    positive_phrases(filter, field, &mut phrases);
    let mut wanted = Wanted::default();
    for phrase in &phrases {
        wanted.add_phrase(phrase);
    }
    let mut occurrences = Occurrences::default();
    let mut ranges: HashMap<u32, Range<usize>> = HashMap::new();
    let mut words = Words::new(text);
    while let Some(word) = words.advance() {
        if let Some(number) = wanted.words.get(word.text.as_str()) {
            occurrences.add(*number, u64::from(word.position));
            let range = ranges.entry(word.position).or_insert_with(|| word.range.clone());
            range.end = range.end.max(word.range.end);
        }
    }
    let mut marks: Vec<Range<usize>> = Vec::new();
    for phrase in phrases {
        occurrences.each_start(phrase, &wanted, |start| {
            for (offset, _) in phrase.words() {
                let position = u32::try_from(start).unwrap_or(u32::MAX).saturating_add(*offset);
                marks.extend(ranges.get(&position).cloned());
            }
            true
        });
    }
    merged(marks)
}

fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

fn positive_phrases<'f>(filter: &'f Filter, field: Field, phrases: &mut Vec<&'f Phrase>) {
    match filter {
        Filter::And(filters) | Filter::Or(filters) => {
            for filter in filters {
                positive_phrases(filter, field, phrases);
            }
        }
        Filter::Text(text) => phrases.extend(text.phrases()),
        Filter::In(of, text) if *of == field => phrases.extend(text.phrases()),
        Filter::In(..) | Filter::Not(_) | Filter::Header(..) => {}
    }
}

/// The words of a filter, numbered.
#[derive(Default)]
struct Wanted<'f> {
    words: HashMap<&'f str, usize>,
}

impl<'f> Wanted<'f> {
    fn add(&mut self, filter: &'f Filter) {
        match filter {
            Filter::And(filters) | Filter::Or(filters) | Filter::Not(filters) => {
                for filter in filters {
                    self.add(filter);
                }
            }
            Filter::Text(text) | Filter::In(_, text) | Filter::Header(_, Some(text)) => {
                text.phrases().iter().for_each(|phrase| self.add_phrase(phrase));
            }
            Filter::Header(_, None) => {}
        }
    }

    fn add_phrase(&mut self, phrase: &'f Phrase) {
        for (_, word) in phrase.words() {
            let number = self.words.len();
            self.words.entry(word).or_insert(number);
        }
    }
}

/// Where a text, or a list of texts, contains the words of a filter: positions, ascending, by the number of the word.
#[derive(Default)]
struct Occurrences(HashMap<usize, Vec<u64>>);

impl Occurrences {
    fn of<'t>(texts: impl IntoIterator<Item = &'t str>, wanted: &Wanted<'_>) -> Self {
        let mut occurrences = Self::default();
        for (entry, text) in texts.into_iter().enumerate() {
            let base = (entry as u64) << 32; // so that no phrase matches across entries
            let mut words = Words::new(text);
            while let Some(word) = words.advance() {
                if let Some(number) = wanted.words.get(word.text.as_str()) {
                    occurrences.add(*number, base + u64::from(word.position));
                }
            }
        }
        occurrences
    }

    fn add(&mut self, word: usize, position: u64) {
        self.0.entry(word).or_default().push(position);
    }

    fn has(&self, phrase: &Phrase, wanted: &Wanted<'_>) -> bool {
        let mut is_found = false;
        self.each_start(phrase, wanted, |_| {
            is_found = true;
            false
        });
        is_found
    }

    /// Calls `each` with the position at which each occurrence of a phrase begins, until it returns false.
    fn each_start(&self, phrase: &Phrase, wanted: &Wanted<'_>, mut each: impl FnMut(u64) -> bool) {
        let mut lists: Vec<(u64, &[u64])> = Vec::new();
        for (offset, word) in phrase.words() {
            let number = wanted.words.get(word.as_str());
            let Some(positions) = number.and_then(|number| self.0.get(number)) else { return };
            lists.push((u64::from(*offset), positions));
        }
        lists.sort_by_key(|(_, positions)| positions.len());
        let Some(((rarest_offset, rarest), others)) = lists.split_first() else { return };
        for position in *rarest {
            let Some(start) = position.checked_sub(*rarest_offset) else { continue };
            let is_all = others.iter().all(|(offset, list)| list.binary_search(&(start + offset)).is_ok());
            if is_all && !each(start) {
                return;
            }
        }
    }
}

/// Where a document contains the words of a filter.
struct Found<'f> {
    wanted: &'f Wanted<'f>,
    fields: [Occurrences; 7],
}

impl<'f> Found<'f> {
    fn of(document: &Document, wanted: &'f Wanted<'f>) -> Self {
        let fields = Field::ALL.map(|field| Occurrences::of(texts(document, field), wanted));
        Self { wanted, fields }
    }

    fn has(&self, field: Field, phrase: &Phrase) -> bool {
        let occurrences = Field::ALL.into_iter().zip(&self.fields).find(|(of, _)| *of == field);
        occurrences.is_some_and(|(_, occurrences)| occurrences.has(phrase, self.wanted))
    }
}

/// The texts of a field. A phrase doesn't match across two of them.
pub(crate) fn texts(document: &Document, field: Field) -> Vec<&str> {
    let list = match field {
        Field::Subject => return vec![&document.subject],
        Field::From => &document.from,
        Field::To => &document.to,
        Field::Cc => &document.cc,
        Field::Bcc => &document.bcc,
        Field::Body => &document.body,
        Field::Attachments => &document.attachments,
    };
    list.iter().map(String::as_str).collect()
}

fn evaluate(filter: &Filter, document: &Document, found: &Found<'_>) -> bool {
    let holds = |filter: &Filter| evaluate(filter, document, found);
    match filter {
        Filter::And(filters) => filters.iter().all(holds),
        Filter::Or(filters) => filters.iter().any(holds),
        Filter::Not(filters) => !filters.iter().any(holds),
        Filter::Text(text) => {
            let anywhere = |phrase: &Phrase| Field::ALL.into_iter().any(|field| found.has(field, phrase));
            text.phrases().iter().all(anywhere)
        }
        Filter::In(field, text) => text.phrases().iter().all(|phrase| found.has(*field, phrase)),
        Filter::Header(name, text) => has_header(document, name, text.as_ref(), found),
    }
}

fn has_header(document: &Document, name: &HeaderName, text: Option<&SearchText>, found: &Found<'_>) -> bool {
    let of_name = document.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name.as_str()));
    let values: Vec<&str> = of_name.map(|(_, value)| searched_part(value)).collect();
    let Some(text) = text else { return !values.is_empty() };
    if values.is_empty() {
        return false;
    }
    let occurrences = Occurrences::of(values, found.wanted);
    text.phrases().iter().all(|phrase| occurrences.has(phrase, found.wanted))
}

#[cfg(test)]
mod tests;
