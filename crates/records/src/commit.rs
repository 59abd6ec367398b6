use bytes::Bytes;
use restante_core::BlobId;

use crate::{Kind, Properties, RecordId, Revision};

/// What a record says, and the blobs that must be kept for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// Encoded by who owns the kind; records don't look into it. [`crate::BODY_BYTES_MAX`] at most.
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

/// Changes in one account that are made together, and what must hold for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// States that kinds must be in, JMAP's `ifInState` (RFC 8620 §5.3).
    pub expect: Vec<(Kind, Revision)>,
    /// The changes, [`crate::COMMIT_CHANGES_MAX`] at most. A record stands in one of them only.
    pub changes: Vec<Change>,
}

impl Commit {
    /// Changes without preconditions.
    pub fn of(changes: impl IntoIterator<Item = Change>) -> Self {
        Self { expect: Vec::new(), changes: changes.into_iter().collect() }
    }

    /// The same, if a kind is in a state.
    #[must_use]
    pub fn if_in_state(mut self, kind: Kind, state: Revision) -> Self {
        self.expect.push((kind, state));
        self
    }
}

/// One change of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new record.
    Create {
        /// Its kind.
        kind: Kind,
        /// What it says.
        body: Body,
        /// What it is found by.
        properties: Properties,
    },
    /// A record that is there changes.
    Update {
        /// Its kind.
        kind: Kind,
        /// Its identity.
        id: RecordId,
        /// The new body; `None` leaves it as it is.
        body: Option<Body>,
        /// The new properties, all of them; `None` leaves them as they are.
        properties: Option<Properties>,
    },
    /// A record that is there goes.
    Destroy {
        /// Its kind.
        kind: Kind,
        /// Its identity.
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

/// A commit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its revision.
    pub revision: Revision,
    /// The ids of what it created, in the order of the creates.
    pub created: Vec<RecordId>,
}
