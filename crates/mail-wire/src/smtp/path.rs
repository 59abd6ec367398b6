use std::fmt;

/// RFC 5321 §4.5.3.1.1 to 3: the length of a path includes its angle brackets.
const LOCAL_BYTES_MAX: usize = 64;
const DOMAIN_BYTES_MAX: usize = 255;
const PATH_BYTES_MAX: usize = 256;

/// A mailbox of the envelope, as it was written: a local part, which may be quoted, and a domain or an address literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mailbox<'l> {
    /// The local part, with its quotes.
    pub local: &'l str,
    /// The domain, or an address literal with its brackets.
    pub domain: &'l str,
}

impl fmt::Display for Mailbox<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

impl Mailbox<'_> {
    /// Whether it is ASCII; other mailboxes need SMTPUTF8 (RFC 6531).
    pub fn is_ascii(&self) -> bool {
        self.local.is_ascii() && self.domain.is_ascii()
    }
}

/// The recipient of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardPath<'l> {
    /// `<postmaster>`, in any case, without a domain.
    Postmaster,
    /// A mailbox.
    Mailbox(Mailbox<'l>),
}

/// Parses a path in angle brackets at the beginning of a text; also returns what follows it. The mailbox is `None` for `<>`.
pub(super) fn reverse_path(text: &str) -> Option<(Option<Mailbox<'_>>, &str)> {
    if let Some(rest) = text.strip_prefix("<>") {
        return Some((None, rest));
    }
    let (mailbox, rest) = mailbox_in_brackets(text)?;
    Some((Some(mailbox), rest))
}

/// Parses a forward path at the beginning of a text; also returns what follows it.
pub(super) fn forward_path(text: &str) -> Option<(ForwardPath<'_>, &str)> {
    const POSTMASTER: &str = "<postmaster>";
    if let Some((start, rest)) = text.split_at_checked(POSTMASTER.len())
        && start.eq_ignore_ascii_case(POSTMASTER)
    {
        return Some((ForwardPath::Postmaster, rest));
    }
    let (mailbox, rest) = mailbox_in_brackets(text)?;
    Some((ForwardPath::Mailbox(mailbox), rest))
}

fn mailbox_in_brackets(text: &str) -> Option<(Mailbox<'_>, &str)> {
    let inside = without_route(text.strip_prefix('<')?)?;
    let (local, rest) = local_part(inside)?;
    let (domain, rest) = rest.strip_prefix('@')?.split_once('>')?;
    let is_short = local.len() <= LOCAL_BYTES_MAX
        && domain.len() <= DOMAIN_BYTES_MAX
        && local.len() + domain.len() + "<@>".len() <= PATH_BYTES_MAX;
    (is_short && is_domain(domain)).then_some((Mailbox { local, domain }, rest))
}

/// What follows a source route, `@one,@two:`, which is ignored (RFC 5321 appendix C).
fn without_route(text: &str) -> Option<&str> {
    if !text.starts_with('@') {
        return Some(text);
    }
    let (route, rest) = text.split_once(':')?;
    let is_route = route
        .split(',')
        .all(|domain| domain.trim_start_matches(' ').strip_prefix('@').is_some_and(is_domain));
    is_route.then_some(rest)
}

/// Parses a local part at the beginning of a text, with its quotes; also returns what follows it.
///
/// Dots are accepted anywhere in it: RFC 5321 allows them only between other characters, but addresses like `a..b@example.org`
/// exist.
fn local_part(text: &str) -> Option<(&str, &str)> {
    let bytes = match text.strip_prefix('"') {
        Some(quoted) => quoted_bytes(quoted)? + 1,
        None => text.find(|c: char| !is_atom_char(c) && c != '.').unwrap_or(text.len()),
    };
    let (local, rest) = text.split_at_checked(bytes)?;
    (!local.is_empty()).then_some((local, rest))
}

/// The length of a quoted string, from after its first quote up to and including its last.
fn quoted_bytes(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Whether a text can be a domain, judged by its characters only, or an address literal.
pub(super) fn is_domain(text: &str) -> bool {
    if let Some(literal) = text.strip_prefix('[') {
        let literal = literal.strip_suffix(']').unwrap_or_default();
        return !literal.is_empty()
            && literal.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'.' | b'-'));
    }
    text.split('.').all(|label| !label.is_empty() && label.chars().all(is_label_char))
}

/// Also accepts `_`, which occurs in host names but not in mail domains.
fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_') || is_wide(c)
}

fn is_atom_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || is_wide(c)
}

/// RFC 6531 §3.3 adds all other characters of Unicode; spaces and controls among them are not accepted.
fn is_wide(c: char) -> bool {
    !c.is_ascii() && !c.is_control() && !c.is_whitespace()
}
