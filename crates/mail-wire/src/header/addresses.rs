use super::{
    encoded_word::TextBuilder,
    scan::{Scanner, Token, without_quoted_pairs},
    text::{nfc, unstructured},
};

/// A mailbox: JMAP's EmailAddress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Address {
    /// The display name, else the comment after the address: decoded, unfolded, trimmed, never empty.
    pub name: Option<String>,
    /// The address, which need not be valid. A quoted local part keeps its quotes.
    pub email: String,
}

/// Addresses in a group, or those between groups: JMAP's EmailAddressGroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Group {
    /// The group's name; `None` for addresses outside of a group.
    pub name: Option<String>,
    /// The addresses, in order.
    pub addresses: Vec<Address>,
}

/// The Addresses form: all addresses in order, in groups or not.
pub fn as_addresses(value: &[u8]) -> Vec<Address> {
    as_grouped_addresses(value).into_iter().flat_map(|group| group.addresses).collect()
}

/// The GroupedAddresses form: groups in order; addresses between two groups are a group without a name.
///
/// Parses as much as possible of invalid lists: missing brackets, commas and semicolons, names in brackets.
pub fn as_grouped_addresses(value: &[u8]) -> Vec<Group> {
    let mut list = List::default();
    let mut scanner = Scanner::new(value);
    while let Some(token) = scanner.next() {
        match token {
            Token::Space => list.is_behind_space = true,
            Token::Comment(comment) => list.comment(comment),
            Token::Special(b'<') => list.angle_addresses(&mut scanner),
            Token::Special(b',') => list.end_mailbox(),
            Token::Special(b';') => list.end_group(),
            Token::Special(b':') => list.colon(),
            Token::Special(b'>' | b'"') => {}
            word => list.word(word),
        }
    }
    list.end_group();
    list.groups
}

/// A word of a phrase or an address.
#[derive(Clone, Copy, Debug)]
struct Word<'v> {
    token: Token<'v>,
    is_behind_space: bool,
}

/// The parsed part of a list of addresses.
#[derive(Debug, Default)]
struct List<'v> {
    groups: Vec<Group>,
    is_in_group: bool,
    /// Words that belong to no address yet.
    words: Vec<Word<'v>>,
    /// Whether an `@` is among them.
    has_at: bool,
    /// An address with brackets, which ends with the next delimiter.
    address: Option<Address>,
    /// The comment after the address.
    comment: Option<&'v [u8]>,
    is_behind_space: bool,
}

impl<'v> List<'v> {
    fn word(&mut self, token: Token<'v>) {
        let is_behind_space = std::mem::take(&mut self.is_behind_space);
        self.words.push(Word { token, is_behind_space });
        self.has_at |= token == Token::Special(b'@');
        if self.address.is_none() {
            self.comment = None;
        }
    }

    fn comment(&mut self, comment: &'v [u8]) {
        self.is_behind_space = true;
        let is_behind_address = self.address.is_some() || !self.words.is_empty();
        if is_behind_address && self.comment.is_none() {
            self.comment = Some(comment);
        }
    }

    fn clear_words(&mut self) {
        self.words.clear();
        self.has_at = false;
    }

    /// Parses an address in brackets, and those that follow without a delimiter.
    fn angle_addresses(&mut self, scanner: &mut Scanner<'v>) {
        loop {
            if let Some(address) = self.address.take() {
                self.push(address);
            }
            self.comment = None;
            let name = phrase(&self.words);
            self.clear_words();
            let end = self.angle_address(scanner);
            let email = addr_spec(&self.words);
            self.clear_words();
            self.address = Some(Address { name, email });
            match end {
                Some(b'<') => {}
                Some(b',') => return self.end_mailbox(),
                Some(b';') => return self.end_group(),
                _ => return,
            }
        }
    }

    /// Collects the words up to the closing bracket, or to whatever ends the address if there is none. Returns what ended it.
    fn angle_address(&mut self, scanner: &mut Scanner<'v>) -> Option<u8> {
        self.is_behind_space = false;
        let is_closed = scanner.is_in_brackets();
        for token in scanner {
            let is_route = self.words.first().is_some_and(|first| first.token == Token::Special(b'@'));
            match token {
                Token::Space | Token::Comment(_) => self.is_behind_space = true,
                Token::Special(b'>') => return Some(b'>'),
                Token::Special(b'<') if self.words.is_empty() => {}
                Token::Special(b',') if is_route => self.word(token),
                // `<Undisclosed-Recipient:;@host>`.
                Token::Special(b';') if is_closed => self.word(token),
                Token::Special(end @ (b'<' | b',' | b';')) => return Some(end),
                // RFC 5322, section 4.4: a source route is ignored.
                Token::Special(b':') if is_route => self.clear_words(),
                Token::Special(b'"') => {}
                word => self.word(word),
            }
        }
        None
    }

    /// Begins a group, whose name was parsed.
    fn colon(&mut self) {
        if self.has_at || self.address.is_some() {
            return self.word(Token::Special(b':'));
        }
        if self.words.is_empty() {
            return;
        }
        let name = Some(phrase(&self.words).unwrap_or_default());
        self.clear_words();
        self.comment = None;
        self.groups.push(Group { name, addresses: Vec::new() });
        self.is_in_group = true;
    }

    fn end_group(&mut self) {
        self.end_mailbox();
        self.is_in_group = false;
    }

    fn end_mailbox(&mut self) {
        match self.address.take() {
            Some(address) => self.push(address),
            None => self.bare_addresses(),
        }
        self.clear_words();
        self.comment = None;
        self.is_behind_space = false;
    }

    /// Adds the addresses without brackets among the words; words before one are its name. Words without an `@` are an address,
    /// as in drafts.
    fn bare_addresses(&mut self) {
        let words = std::mem::take(&mut self.words);
        let mut rest = words.as_slice();
        while let Some(at) = rest.iter().position(|word| word.token == Token::Special(b'@')) {
            let (before, behind) = rest.split_at(at);
            let local_part = joined_behind(before);
            let name = before.get(..before.len() - local_part).unwrap_or_default();
            let domain = joined_before(behind.get(1..).unwrap_or_default());
            let (address, after) = rest.split_at_checked(at + 1 + domain).unwrap_or((rest, &[]));
            let address = address.get(name.len()..).unwrap_or_default();
            let comment = if after.is_empty() { self.comment.take() } else { None };
            self.push_with(Address { name: phrase(name), email: addr_spec(address) }, comment);
            rest = after;
        }
        let is_first = rest.len() == words.len();
        if is_first && !words.is_empty() {
            self.push(Address { name: None, email: addr_spec(&words) });
        }
    }

    fn push(&mut self, address: Address) {
        let comment = self.comment.take();
        self.push_with(address, comment);
    }

    /// Adds an address, with its comment as the name if it has no other.
    fn push_with(&mut self, mut address: Address, comment: Option<&[u8]>) {
        if address.name.is_none() {
            address.name = comment.and_then(comment_text);
        }
        if address.name.is_none() && address.email.is_empty() {
            return;
        }
        match self.groups.last_mut() {
            Some(group) if self.is_in_group || group.name.is_none() => group.addresses.push(address),
            _ => self.groups.push(Group { name: None, addresses: vec![address] }),
        }
    }
}

/// How many words at the end form the local part before an `@`: those without white space between them, or with white space next to a dot.
fn joined_behind(words: &[Word<'_>]) -> usize {
    let mut length = 0;
    let mut following: Option<&Word<'_>> = None;
    for word in words.iter().rev() {
        if following.is_some_and(|following| !is_joined(word, following)) {
            break;
        }
        following = Some(word);
        length += 1;
    }
    length
}

/// How many words at the beginning form the domain after an `@`.
fn joined_before(words: &[Word<'_>]) -> usize {
    let mut length = 0;
    let mut previous: Option<&Word<'_>> = None;
    for word in words {
        if previous.is_some_and(|previous| !is_joined(previous, word)) {
            break;
        }
        previous = Some(word);
        length += 1;
    }
    length
}

fn is_joined(word: &Word<'_>, following: &Word<'_>) -> bool {
    let ends_with_dot = matches!(word.token, Token::Atom([.., b'.']));
    let begins_with_dot = matches!(following.token, Token::Atom([b'.', ..]));
    // `"name"user@host`.
    let is_apart = matches!((word.token, following.token), (Token::Quoted(_), Token::Atom(_)));
    ends_with_dot || begins_with_dot || !(following.is_behind_space || is_apart)
}

/// The display name that these words form; `None` if it is empty.
fn phrase(words: &[Word<'_>]) -> Option<String> {
    let mut builder = TextBuilder::default();
    for word in words {
        if word.is_behind_space {
            builder.push_space(b" ");
        }
        match word.token {
            Token::Encoded(encoded, source) => builder.push_encoded(encoded, source),
            Token::Quoted(quoted) => builder.push_plain(&without_quoted_pairs(quoted)),
            Token::Atom(text) | Token::Literal(text) => builder.push_plain(text),
            Token::Special(special) => builder.push_plain(&[special]),
            Token::Space | Token::Comment(_) => {}
        }
    }
    trimmed(builder.finish())
}

/// The address that these words form: without white space, except between words that nothing else separates.
fn addr_spec(words: &[Word<'_>]) -> String {
    let mut email = Vec::new();
    let mut previous: Option<&Word<'_>> = None;
    for word in words {
        let is_at = |word: &Word<'_>| word.token == Token::Special(b'@');
        let is_apart = |previous: &Word<'_>| !is_joined(previous, word) && !is_at(previous) && !is_at(word);
        if previous.is_some_and(is_apart) {
            email.push(b' ');
        }
        match word.token {
            Token::Quoted(quoted) => {
                email.push(b'"');
                email.extend_from_slice(quoted);
                email.push(b'"');
            }
            Token::Atom(text) | Token::Literal(text) | Token::Encoded(_, text) => {
                email.extend_from_slice(text)
            }
            Token::Special(special) => email.push(special),
            Token::Space | Token::Comment(_) => {}
        }
        previous = Some(word);
    }
    email.retain(|byte| !matches!(byte, b'\r' | b'\n' | 0));
    String::from_utf8_lossy(&email).into_owned()
}

/// The text of a comment, from the octets between its parentheses; `None` if it is empty.
fn comment_text(comment: &[u8]) -> Option<String> {
    trimmed(unstructured(&without_quoted_pairs(comment), b"()"))
}

fn trimmed(text: String) -> Option<String> {
    let text = nfc(text);
    let trimmed = text.trim();
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}
