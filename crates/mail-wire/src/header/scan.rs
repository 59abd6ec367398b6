//! The tokens of structured fields, RFC 5322, section 3.2.

use super::encoded_word::EncodedWord;

/// A token of a structured field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'v> {
    /// White space and folds.
    Space,
    /// The text between the parentheses of a comment, including nested comments.
    Comment(&'v [u8]),
    /// The text between quotes.
    Quoted(&'v [u8]),
    /// A domain literal with its brackets.
    Literal(&'v [u8]),
    /// An encoded word that is separated from other words, and its octets.
    Encoded(EncodedWord<'v>, &'v [u8]),
    /// Other octets: letters, digits, dots, UTF-8.
    Atom(&'v [u8]),
    /// One of `< > , ; : @`, or an unclosed quote.
    Special(u8),
}

/// Splits a structured field into tokens.
///
/// An unclosed parenthesis or quote would include everything that follows. So it and later ones do not count as delimiters, which
/// preserves the addresses, and keeps the time linear.
#[derive(Clone, Debug)]
pub(super) struct Scanner<'v> {
    rest: &'v [u8],
    has_comments: bool,
    has_quotes: bool,
    /// The last token was a word, so an encoded word directly after it is not decoded.
    is_behind_word: bool,
}

impl<'v> Scanner<'v> {
    pub(super) fn new(value: &'v [u8]) -> Self {
        Self { rest: value, has_comments: true, has_quotes: true, is_behind_word: false }
    }

    /// Whether a closing bracket follows before an opening one.
    pub(super) fn is_in_brackets(&self) -> bool {
        memchr::memchr2(b'<', b'>', self.rest).and_then(|at| self.rest.get(at)) == Some(&b'>')
    }

    /// The octets that have not been read.
    pub(super) fn rest(&self) -> &'v [u8] {
        self.rest
    }

    /// The next token that is neither white space nor a comment.
    pub(super) fn next_word(&mut self) -> Option<Token<'v>> {
        self.find(|token| !matches!(token, Token::Space | Token::Comment(_)))
    }

    /// The octets before the next `end`, which is skipped too; `None`, and nothing is skipped, if there is no `end`.
    pub(super) fn take_until(&mut self, end: u8) -> Option<&'v [u8]> {
        let at = memchr::memchr(end, self.rest)?;
        let (taken, rest) = self.rest.split_at(at);
        self.rest = rest.get(1..).unwrap_or_default();
        Some(taken)
    }

    /// Splits off `length` octets.
    fn take(&mut self, length: usize) -> &'v [u8] {
        let (taken, rest) = self.rest.split_at_checked(length).unwrap_or((self.rest, b""));
        self.rest = rest;
        taken
    }

    /// Splits off a token with one delimiter at each end.
    fn take_delimited(&mut self, length: usize) -> &'v [u8] {
        let taken = self.take(length);
        taken.get(1..taken.len().saturating_sub(1)).unwrap_or_default()
    }

    fn special(&mut self) -> Token<'v> {
        Token::Special(self.take(1).first().copied().unwrap_or_default())
    }

    fn encoded_word(&mut self) -> Option<Token<'v>> {
        if self.is_behind_word {
            return None;
        }
        let (word, rest) = EncodedWord::parse(self.rest)?;
        let is_apart = rest.first().is_none_or(|byte| is_space(*byte) || b"()<,;:".contains(byte));
        if !is_apart {
            return None;
        }
        let source = self.take(self.rest.len() - rest.len());
        Some(Token::Encoded(word, source))
    }

    fn atom(&mut self) -> Token<'v> {
        let has_comments = self.has_comments;
        let is_end =
            |byte: &u8| is_space(*byte) || b"<>,;:@\"[".contains(byte) || (has_comments && *byte == b'(');
        let behind_first = self.rest.get(1..).unwrap_or_default();
        let length = behind_first.iter().position(is_end).unwrap_or(behind_first.len());
        Token::Atom(self.take(length + 1))
    }
}

impl<'v> Iterator for Scanner<'v> {
    type Item = Token<'v>;

    fn next(&mut self) -> Option<Token<'v>> {
        let first = *self.rest.first()?;
        let token = match first {
            _ if is_space(first) => {
                let length = self.rest.iter().take_while(|byte| is_space(**byte)).count();
                self.take(length);
                Token::Space
            }
            b'(' if self.has_comments => match comment_length(self.rest) {
                Some(length) => Token::Comment(self.take_delimited(length)),
                None => {
                    self.has_comments = false;
                    self.atom()
                }
            },
            b'"' => {
                let length = if self.has_quotes { quoted_length(self.rest) } else { None };
                self.has_quotes = length.is_some();
                match length {
                    Some(length) => Token::Quoted(self.take_delimited(length)),
                    None => self.special(),
                }
            }
            b'[' => match literal_length(self.rest) {
                Some(length) => Token::Literal(self.take(length)),
                None => self.atom(),
            },
            b'<' | b'>' | b',' | b';' | b':' | b'@' => self.special(),
            _ => self.encoded_word().unwrap_or_else(|| self.atom()),
        };
        self.is_behind_word =
            matches!(token, Token::Atom(_) | Token::Quoted(_) | Token::Literal(_) | Token::Special(b'@'));
        Some(token)
    }
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

/// The length of the comment at the beginning, with all nested comments; `None` if it isn't closed.
fn comment_length(value: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut is_quoted = false;
    for (at, byte) in value.iter().enumerate() {
        match byte {
            _ if is_quoted => is_quoted = false,
            b'\\' => is_quoted = true,
            b'(' => depth += 1,
            b')' if depth <= 1 => return Some(at + 1),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The length of the quoted string at the beginning; `None` if it isn't closed.
fn quoted_length(value: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    for (at, byte) in value.iter().enumerate().skip(1) {
        match byte {
            _ if is_quoted => is_quoted = false,
            b'\\' => is_quoted = true,
            b'"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// The length of the domain literal at the beginning; `None` if it isn't closed before the next delimiter.
fn literal_length(value: &[u8]) -> Option<usize> {
    let behind_first = value.get(1..)?;
    let at = behind_first.iter().position(|byte| b"]<>[(\",;".contains(byte))?;
    (behind_first.get(at) == Some(&b']')).then_some(at + 2)
}

/// The octets with quoted pairs replaced by the quoted characters.
pub(super) fn without_quoted_pairs(quoted: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (before, pair) = rest.split_at(at);
        plain.extend_from_slice(before);
        plain.extend(pair.get(1));
        rest = pair.get(2..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    plain
}
