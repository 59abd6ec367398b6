//! Ids of objects, of blobs and of accounts, and states.
//!
//! An id is a letter and the number of its record, so no id begins with a digit, and no two ids differ only in case (RFC 8620 §1.2). A
//! blob id names the record that the bytes belong to, which determines access and lifetime.

use std::{fmt, io::Write, str::FromStr};

use restante_records::{AccountId, RecordId, Revision};

/// The most characters of an id (RFC 8620 §1.2).
pub(crate) const ID_CHARS_MAX: usize = 255;
/// The most levels of messages within messages that a blob id may lead into.
const PART_DEPTH_MAX: usize = 32;

/// An id as a client writes it: an id, or `#` and the creation id of an object that was made earlier.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id(String);

impl Id {
    /// Reads an id or `#` and a creation id; `None` when it is neither (RFC 8620 §1.2).
    pub(crate) fn read(text: String) -> Option<Self> {
        let id = text.strip_prefix('#').unwrap_or(&text);
        is_id(id).then_some(Self(text))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

/// Whether a text is an id: 1 to 255 of `A-Za-z0-9_-` (RFC 8620 §1.2).
pub(crate) fn is_id(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=ID_CHARS_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// The types whose objects have ids made of a letter and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdType {
    Account,
    Mailbox,
    Email,
    Thread,
    Identity,
    EmailSubmission,
    PushSubscription,
}

impl IdType {
    fn letter(self) -> char {
        match self {
            Self::Account => 'a',
            Self::Mailbox => 'm',
            Self::Email => 'e',
            Self::Thread => 't',
            Self::Identity => 'i',
            Self::EmailSubmission => 's',
            Self::PushSubscription => 'p',
        }
    }

    /// The id of a record.
    pub(crate) fn id(self, record: RecordId) -> String {
        format!("{}{}", self.letter(), record.0)
    }

    /// Writes the id of a record as a JSON string.
    pub(crate) fn write(self, record: RecordId, out: &mut Vec<u8>) {
        // Writing to a vector can't fail.
        let _ = write!(out, "\"{}{}\"", self.letter(), record.0);
    }

    /// The record that an id names; `None` for an id of another type or form.
    pub(crate) fn record(self, id: &str) -> Option<RecordId> {
        id.strip_prefix(self.letter()).and_then(number).map(RecordId)
    }
}

/// The id of an account.
pub(crate) fn account_id(account: AccountId) -> String {
    IdType::Account.id(RecordId(account.0.into()))
}

/// The account that an id names.
pub(crate) fn read_account_id(id: &str) -> Option<AccountId> {
    let RecordId(number) = IdType::Account.record(id)?;
    u32::try_from(number).ok().map(AccountId)
}

/// A number as ids have it: decimal, without sign or leading zeros, so that each record has exactly one id.
fn number(text: &str) -> Option<u64> {
    let is_canonical =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if is_canonical { text.parse().ok() } else { None }
}

/// The target of a blob id: `be12` is the message of email 12, `be12-3` its decoded part 3, `be12-3-2` part 2 of the message in part 3,
/// `bu7` upload 7, and `bu7-1` a part of the uploaded message. Parts are counted depth first, from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlobRef {
    pub(crate) base: BlobBase,
    /// Empty for the whole message or upload.
    pub(crate) parts: Vec<u16>,
}

/// The record that a blob belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BlobBase {
    Email(RecordId),
    Upload(RecordId),
}

impl BlobRef {
    /// The whole message of an email.
    pub(crate) fn email(id: RecordId) -> Self {
        Self { base: BlobBase::Email(id), parts: Vec::new() }
    }

    /// An upload.
    pub(crate) fn upload(id: RecordId) -> Self {
        Self { base: BlobBase::Upload(id), parts: Vec::new() }
    }

    /// A part of the message that this blob is.
    pub(crate) fn part(&self, part: u16) -> Self {
        let mut parts = self.parts.clone();
        parts.push(part);
        Self { base: self.base, parts }
    }
}

impl fmt::Display for BlobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            BlobBase::Email(id) => write!(f, "be{}", id.0)?,
            BlobBase::Upload(id) => write!(f, "bu{}", id.0)?,
        }
        self.parts.iter().try_for_each(|part| write!(f, "-{part}"))
    }
}

impl FromStr for BlobRef {
    type Err = ();

    /// Reads a blob id; fails for any text that is not a blob id of this server.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut pieces = text.split('-');
        let base = pieces.next().unwrap_or_default();
        let record = |letters| base.strip_prefix(letters).and_then(number).map(RecordId);
        let email = record("be").map(BlobBase::Email);
        let base = email.or_else(|| record("bu").map(BlobBase::Upload)).ok_or(())?;
        let mut parts = Vec::new();
        for piece in pieces {
            let part = number(piece).and_then(|part| u16::try_from(part).ok()).filter(|part| *part > 0);
            if parts.len() >= PART_DEPTH_MAX {
                return Err(());
            }
            parts.push(part.ok_or(())?);
        }
        Ok(Self { base, parts })
    }
}

/// A state: all changes up to a revision, and of the next revision the entries in the order of (kind, id) up to an id, when one commit
/// has more than fit into a response. Written as `12`, or as `12-7`.
///
/// Between two pages of changes a client does not have all objects as of the revision: an object that has changed again since is named
/// only on a later page. Such a state may end with `@` and the revision at which the first page began: `12@9`, or `12-7@9`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    pub(crate) up_to: Option<RecordId>,
    /// Less than `revision`.
    paged_since: Option<Revision>,
}

impl State {
    /// All changes up to a revision, and a part of the next one.
    pub(crate) fn part(revision: Revision, up_to: Option<RecordId>) -> Self {
        Self { revision, up_to, paged_since: None }
    }

    /// The same between two pages of changes; the first page began at `since`.
    #[must_use]
    pub(crate) fn paged_since(self, since: Revision) -> Self {
        Self { paged_since: Some(since).filter(|since| *since < self.revision), ..self }
    }

    /// A client in this state has each object as of this revision or a later one.
    pub(crate) fn known(self) -> Revision {
        self.paged_since.unwrap_or(self.revision)
    }

    /// The revision, unless this is a state within a commit or between two pages.
    pub(crate) fn whole(self) -> Option<Revision> {
        (self == Self::from(self.revision)).then_some(self.revision)
    }
}

impl From<Revision> for State {
    fn from(revision: Revision) -> Self {
        Self::part(revision, None)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.revision.0)?;
        self.up_to.map_or(Ok(()), |id| write!(f, "-{}", id.0))?;
        self.paged_since.map_or(Ok(()), |since| write!(f, "@{}", since.0))
    }
}

impl serde::Serialize for State {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for State {
    type Err = ();

    /// Reads a state; fails for a text that is not a state of this server.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (text, paged_since) = match text.split_once('@') {
            Some((text, since)) => (text, Some(Revision(number(since).ok_or(())?))),
            None => (text, None),
        };
        let (revision, up_to) = match text.split_once('-') {
            Some((revision, id)) => (revision, Some(RecordId(number(id).ok_or(())?))),
            None => (text, None),
        };
        let revision = Revision(number(revision).ok_or(())?);
        if paged_since.is_some_and(|since| since >= revision) {
            return Err(());
        }
        Ok(Self { revision, up_to, paged_since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_an_id_has_1_to_255_safe_characters() {
        for id in ["a", "A-z_09", &"x".repeat(255), "#k", "-", "0"] {
            assert!(Id::read(id.to_owned()).is_some(), "{id}");
        }
        for id in ["", "#", "##k", "a b", "a.b", "ä", "a#", &"x".repeat(256)] {
            assert!(Id::read(id.to_owned()).is_none(), "{id}");
        }
    }

    #[test]
    fn m4_a_record_has_one_id_and_other_forms_name_nothing() {
        assert_eq!(IdType::Mailbox.id(RecordId(12)), "m12");
        assert_eq!(IdType::Mailbox.record("m12"), Some(RecordId(12)));
        for other in ["", "m", "e12", "m012", "m+12", "m12x", "M12", "m18446744073709551616"] {
            assert_eq!(IdType::Mailbox.record(other), None, "{other}");
        }
        assert_eq!(read_account_id("a1024"), Some(AccountId(1024)));
        assert_eq!(read_account_id("a4294967296"), None);
    }

    #[test]
    fn blob_ids_name_their_record_and_part() {
        for text in ["be12", "be12-3", "bu7", "be12-3-2", "bu7-1"] {
            assert_eq!(text.parse::<BlobRef>().map(|blob| blob.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(BlobRef::email(RecordId(12)).part(3).part(2).to_string(), "be12-3-2");
        let deep = format!("be1{}", "-1".repeat(33));
        for text in ["", "b", "be", "e12", "be-1", "be1-", "be1-0", "be1-65536", "be01", "be1--1", &deep] {
            assert_eq!(text.parse::<BlobRef>(), Err(()), "{text}");
        }
    }

    #[test]
    fn s6_a_state_is_a_revision_or_a_part_of_the_next() {
        let half = State::part(Revision(12), Some(RecordId(7)));
        assert_eq!((half.to_string(), "12-7".parse()), ("12-7".to_owned(), Ok(half)));
        assert_eq!("0".parse(), Ok(State::from(Revision(0))));
        for text in ["", "-", "12-", "x", "012", "1-2-3", "-1"] {
            assert_eq!(text.parse::<State>(), Err(()), "{text}");
        }
    }

    #[test]
    fn s7_a_state_between_two_pages_has_where_they_began() {
        let whole = State::from(Revision(12));
        let half = State::part(Revision(12), Some(RecordId(7)));
        for (state, text) in [(whole, "12@9"), (half, "12-7@9")] {
            let paged = state.paged_since(Revision(9));
            assert_eq!((paged.to_string(), text.parse()), (text.to_owned(), Ok(paged)));
            assert_eq!((paged.known(), paged.whole()), (Revision(9), None));
        }
        assert_eq!((whole.known(), whole.whole()), (Revision(12), Some(Revision(12))));
        assert_eq!((half.known(), half.whole()), (Revision(12), None));
        assert_eq!(half.paged_since(Revision(12)).to_string(), "12-7");
        for text in ["@", "12@", "@9", "12@12", "12@13", "12@09", "12@9@9", "12@9-7", "12-@9"] {
            assert_eq!(text.parse::<State>(), Err(()), "{text}");
        }
    }
}
