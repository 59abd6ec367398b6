//! The tokeniser: one for all engines, for query texts and for direct matching.

use std::{
    collections::VecDeque,
    mem::{swap, take},
    ops::Range,
};

use unicode_normalization::{
    UnicodeNormalization,
    char::{canonical_combining_class, is_combining_mark},
};

/// The number of characters of a word that are compared: longer ones are data, such as base64.
pub const WORD_CHARS_MAX: usize = 64;

/// The most marks that belong to the character before them: normalising sorts them, which takes more than linear time.
const CLUSTER_CHARS_MAX: usize = 32;

/// A word of a text, as it is compared: decomposed (NFKD), without diacritics, case folded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Word {
    /// The folded text.
    pub text: String,
    /// Its number in the text. A pair has that of its first character.
    pub position: u32,
    /// The bytes of the text that it was made of.
    pub range: Range<usize>,
    /// Whether it is two adjacent characters of a script without spaces between words. Each of the two is a word, too.
    pub is_pair: bool,
}

/// The words of a text, one after the other, in linear time.
///
/// - A word is a run of letters and digits of any script; everything else separates. So `example.com` has two words.
/// - Letters are compared without case and without accents: `Straße`, `STRAẞE` and `STRASSE`, `café` and `cafe` are equal. Vowel signs of
///   Indic scripts and the voicing marks of kana stay, since words differ by them alone.
/// - Scripts that are written without spaces (Han, kana, Hangul, Thai, Lao, Khmer, Burmese) have a word for each character and one
///   for each pair, so that a query of any length finds them.
/// - A pictograph is a word. Soft hyphens, joiners and variation selectors are left out.
#[derive(Debug)]
pub struct Words<'t> {
    text: &'t str,
    offset: usize,
    position: u32,
    /// The word that is being read; empty when there is none.
    word: Word,
    word_chars: usize,
    /// The previous character, if pairs can be made of it.
    previous: Option<(String, Range<usize>)>,
    ready: VecDeque<Word>,
    current: Word,
}

impl<'t> Words<'t> {
    /// The words of `text`.
    pub fn new(text: &'t str) -> Self {
        Self {
            text,
            offset: 0,
            position: 0,
            word: Word::default(),
            word_chars: 0,
            previous: None,
            ready: VecDeque::new(),
            current: Word::default(),
        }
    }

    /// The next word; `None` at the end. A pair follows the word of its first character.
    pub fn advance(&mut self) -> Option<&Word> {
        loop {
            if let Some(word) = self.ready.pop_front() {
                self.current = word;
                return Some(&self.current);
            }
            let Some(&byte) = self.text.as_bytes().get(self.offset) else {
                self.previous = None;
                if !self.end_word() {
                    return None;
                }
                continue;
            };
            match byte {
                _ if byte.is_ascii_alphanumeric() => {
                    self.read_ascii_word();
                    let is_end = self.text.as_bytes().get(self.offset).is_none_or(u8::is_ascii);
                    if is_end {
                        // The common case: no allocation.
                        self.number_word();
                        swap(&mut self.current, &mut self.word);
                        self.clear_word();
                        return Some(&self.current);
                    }
                }
                _ if byte.is_ascii() => {
                    self.offset += 1;
                    self.separate();
                }
                _ => self.read_cluster(),
            }
        }
    }

    fn read_ascii_word(&mut self) {
        self.previous = None;
        let rest = self.text.as_bytes().get(self.offset..).unwrap_or_default();
        let length = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let range = self.offset..self.offset + length;
        self.offset = range.end;
        self.extend_word(range.clone());
        for byte in rest.iter().take(length.min(WORD_CHARS_MAX.saturating_sub(self.word_chars))) {
            self.word.text.push(byte.to_ascii_lowercase() as char);
            self.word_chars += 1;
        }
    }

    /// Reads a character that is not ASCII, and the marks that belong to it.
    fn read_cluster(&mut self) {
        let rest = self.text.get(self.offset..).unwrap_or_default();
        let mut chars = rest.char_indices();
        let first = chars.next().map_or('\0', |(_, first)| first);
        let joined = chars.take(CLUSTER_CHARS_MAX).find(|(_, c)| !joins_the_one_before(*c));
        let length = match joined {
            Some((end, _)) => end,
            None => rest.char_indices().nth(CLUSTER_CHARS_MAX + 1).map_or(rest.len(), |(end, _)| end),
        };
        let cluster = rest.get(..length).unwrap_or_default();
        let range = self.offset..self.offset + length;
        self.offset = range.end;
        if length == first.len_utf8() && is_plain_ideograph(first) {
            return self.add_ideograph(first.to_string(), range);
        }
        let folded = cluster.nfkd().filter(|c| !is_dropped(*c)).flat_map(folded_case).nfc();
        let folded: Vec<char> = folded.collect();
        if folded.is_empty() && joins_the_one_before(first) && !self.word.text.is_empty() {
            self.word.range.end = range.end; // a diacritic of the word's last letter
        }
        let mut ideograph = String::new();
        for c in folded {
            let is_mark = is_combining_mark(c);
            if !ideograph.is_empty() && is_mark {
                ideograph.push(c);
                continue;
            }
            if !ideograph.is_empty() {
                self.add_ideograph(take(&mut ideograph), range.clone());
            }
            match c {
                _ if is_ideograph(c) => ideograph.push(c),
                _ if is_pictograph(c) => self.add_pictograph(c, range.clone()),
                _ if c.is_alphanumeric() || (is_mark && !self.word.text.is_empty()) => {
                    self.add_letter(c, range.clone());
                }
                _ if is_mark => {}
                _ => self.separate(),
            }
        }
        if !ideograph.is_empty() {
            self.add_ideograph(ideograph, range);
        }
    }

    fn add_letter(&mut self, c: char, range: Range<usize>) {
        self.previous = None;
        self.extend_word(range);
        if self.word_chars < WORD_CHARS_MAX {
            self.word.text.push(c);
            self.word_chars += 1;
        }
    }

    fn add_ideograph(&mut self, text: String, range: Range<usize>) {
        self.end_word();
        if let Some((previous, before)) = self.previous.take() {
            let (position, range) = (self.position.saturating_sub(1), before.start..range.end);
            self.ready.push_back(Word { text: previous + &text, position, range, is_pair: true });
        }
        let word = Word { text: text.clone(), position: self.position, range: range.clone(), is_pair: false };
        self.position = self.position.saturating_add(1);
        self.ready.push_back(word);
        self.previous = Some((text, range));
    }

    fn add_pictograph(&mut self, c: char, range: Range<usize>) {
        self.separate();
        self.extend_word(range);
        self.word.text.push(c);
        self.end_word();
    }

    fn separate(&mut self) {
        self.previous = None;
        self.end_word();
    }

    fn extend_word(&mut self, range: Range<usize>) {
        if self.word.text.is_empty() {
            self.word.range = range;
        } else {
            self.word.range.end = range.end;
        }
    }

    /// Ends the word that is being read; false when there is none.
    fn end_word(&mut self) -> bool {
        if self.word.text.is_empty() {
            return false;
        }
        self.number_word();
        let word = take(&mut self.word);
        self.ready.push_back(word);
        self.clear_word();
        true
    }

    fn number_word(&mut self) {
        self.word.position = self.position;
        self.position = self.position.saturating_add(1);
    }

    fn clear_word(&mut self) {
        self.word.text.clear();
        self.word_chars = 0;
    }
}

/// Full case folding, as far as the standard library's mappings provide it: ß, ẞ and SS, ς and Σ. The upper case of ß is SS, but
/// that of ẞ is ẞ itself: so the lower case is computed first.
fn folded_case(c: char) -> impl Iterator<Item = char> {
    c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

/// Whether a character is part of the one before it: marks, the later letters of a decomposed Hangul syllable, voicing marks of
/// half the width.
fn joins_the_one_before(c: char) -> bool {
    is_combining_mark(c) || matches!(c, '\u{1160}'..='\u{11ff}' | '\u{ff9e}' | '\u{ff9f}')
}

/// Whether a decomposed character is left out: diacritics, and invisible characters.
fn is_dropped(c: char) -> bool {
    let is_invisible = matches!(
        c,
        '\u{ad}' | '\u{200c}' | '\u{200d}' | '\u{2060}' | '\u{feff}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}'
    );
    // Classes 7 to 9 are nuktas, voicing marks of kana, and viramas: parts of a letter rather than accents.
    is_invisible || !matches!(canonical_combining_class(c), 0 | 7..=9)
}

/// Whether a character is an ideograph that folding leaves as it is.
fn is_plain_ideograph(c: char) -> bool {
    let is_kana = matches!(c, '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fc}');
    is_kana || matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7a3}')
}

/// Whether a character belongs to a script that is written without spaces between words, or in which, as in Korean, particles
/// are attached to a word.
fn is_ideograph(c: char) -> bool {
    let is_of_script = matches!(
        c,
        '\u{0e00}'..='\u{0eff}' // Thai, Lao
            | '\u{1000}'..='\u{109f}' // Burmese
            | '\u{1100}'..='\u{11ff}' // Hangul letters
            | '\u{1780}'..='\u{17ff}' // Khmer
            | '\u{2e80}'..='\u{2fdf}' // radicals
            | '\u{3005}'..='\u{3007}'
            | '\u{3021}'..='\u{3029}'
            | '\u{3040}'..='\u{30ff}' // kana
            | '\u{3100}'..='\u{318f}' // Bopomofo, Hangul letters
            | '\u{31a0}'..='\u{31bf}'
            | '\u{31f0}'..='\u{31ff}'
            | '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{a4cf}' // Han, Yi
            | '\u{a960}'..='\u{a97f}'
            | '\u{ac00}'..='\u{d7ff}' // Hangul
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}'
    );
    is_of_script && c.is_alphanumeric()
}

/// Whether a character is a symbol that people search for.
fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{2600}'..='\u{27bf}' | '\u{1f000}'..='\u{1faff}')
}

#[cfg(test)]
mod tests;
