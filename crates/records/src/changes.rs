use crate::{Kind, RecordId, Revision};

/// The largest limit of a page of changes.
pub const CHANGES_MAX: usize = 4_096;

/// Which changes to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangesSince {
    /// The kind, or `None` for all kinds.
    pub kind: Option<Kind>,
    /// The last revision that the caller has seen.
    pub since: Revision,
    /// The most entries of a page, from 1 to [`CHANGES_MAX`].
    pub limit: usize,
}

/// A record that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Changed {
    /// Its kind.
    pub kind: Kind,
    /// Its identity.
    pub id: RecordId,
}

/// A page of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// New records.
    pub created: Vec<Changed>,
    /// Records that changed.
    pub updated: Vec<Changed>,
    /// Records that are gone.
    pub destroyed: Vec<Changed>,
    /// The last revision that the caller has seen after this page.
    pub revision: Revision,
    /// Whether more changes follow.
    pub has_more: bool,
}
