use bytes::Bytes;
use restante_core::BlobId;

use crate::{Kind, Properties, RecordId, Revision};

/// The content of a record, and the blobs that it keeps alive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Encoded by the owner of the kind; the record store doesn't interpret it. At most [`crate::BODY_BYTES_MAX`].
    pub bytes: Bytes,
    /// The blobs that this record refers to, [`crate::BODY_BLOBS_MAX`] at most.
    pub blobs: Vec<BlobId>,
}

impl Body {
    /// A body that refers to no blob.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), blobs: Vec::new() }
    }
}

/// Changes in one account that are applied together, and their preconditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The required states of kinds, as JMAP's `ifInState` (RFC 8620 §5.3).
    pub expect: Vec<(Kind, Revision)>,
    /// The changes, at most [`crate::COMMIT_CHANGES_MAX`]. Each record occurs in only one of them.
    pub changes: Vec<Change>,
}

impl Commit {
    /// Changes without preconditions.
    pub fn of(changes: impl IntoIterator<Item = Change>) -> Self {
        Self { expect: Vec::new(), changes: changes.into_iter().collect() }
    }

    /// Adds a precondition: the kind must be in this state.
    #[must_use]
    pub fn if_in_state(mut self, kind: Kind, state: Revision) -> Self {
        self.expect.push((kind, state));
        self
    }
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Creates a record.
    Create {
        /// Its kind.
        kind: Kind,
        /// Its content.
        body: Body,
        /// The properties that it is found by.
        properties: Properties,
    },
    /// Changes an existing record.
    Update {
        /// Its kind.
        kind: Kind,
        /// Its id.
        id: RecordId,
        /// The new body; `None` leaves it as it is.
        body: Option<Body>,
        /// The new properties, all of them; `None` leaves them as they are.
        properties: Option<Properties>,
    },
    /// Destroys an existing record.
    Destroy {
        /// Its kind.
        kind: Kind,
        /// Its id.
        id: RecordId,
    },
}

impl Change {
    /// The kind of the record that changes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Create { kind, .. } | Self::Update { kind, .. } | Self::Destroy { kind, .. } => *kind,
        }
    }
}

/// A successful commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its revision.
    pub revision: Revision,
    /// The ids of the created records, in the order of the creates.
    pub created: Vec<RecordId>,
}
