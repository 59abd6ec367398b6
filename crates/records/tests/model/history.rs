//! What happened to each record, kept beside the engine and the model, and what pages of changes must contain.

use std::collections::{BTreeMap, BTreeSet};

use restante_records::{AccountId, Changed, Changes, Kind, Record, RecordId, Revision};

/// A destroyed record.
#[derive(Clone, Copy, Debug)]
struct Gone {
    created: Revision,
    seconds: i64,
}

/// The destroyed records that are not forgotten, in the order in which they are forgotten.
#[derive(Default)]
pub(crate) struct History {
    gone: BTreeMap<(AccountId, Kind, Revision, RecordId), Gone>,
}

/// Which changes a page must have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) account: AccountId,
    pub(crate) kind: Option<Kind>,
    pub(crate) since: Revision,
    pub(crate) limit: usize,
    /// Whether a record that was created after `since` and destroyed is returned.
    pub(crate) with_unknown: bool,
}

/// What happened to one record, at a revision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Created,
    Updated,
    Destroyed,
}

impl History {
    pub(crate) fn destroyed(&mut self, account: AccountId, record: &Record, at: Revision, seconds: i64) {
        let gone = Gone { created: record.created, seconds };
        self.gone.insert((account, record.kind, at, record.id), gone);
    }

    /// Forgets the first of those that were destroyed before this second.
    pub(crate) fn forget(&mut self, before_seconds: i64, count: usize) {
        let old = self.gone.iter().filter(|(_, gone)| gone.seconds < before_seconds);
        let old: Vec<_> = old.map(|(place, _)| *place).take(count).collect();
        assert_eq!(old.len(), count, "no more is forgotten than was there");
        for place in old {
            self.gone.remove(&place);
        }
    }

    /// Removes the first tombstones of an account, which is erased.
    pub(crate) fn erased(&mut self, account: AccountId, count: usize) {
        let own = self.gone.keys().filter(|(of, ..)| *of == account);
        let own: Vec<_> = own.copied().take(count).collect();
        assert_eq!(own.len(), count, "no more is erased than was there");
        for place in own {
            self.gone.remove(&place);
        }
    }

    /// The changes to return, by revision.
    fn expected(
        &self,
        asked: &Asked,
        records: &BTreeMap<(Kind, RecordId), Record>,
    ) -> BTreeMap<(Revision, Changed), What> {
        let mut expected = BTreeMap::new();
        for ((kind, id), record) in records {
            let changed = Changed { kind: *kind, id: *id };
            if record.created > asked.since {
                expected.insert((record.created, changed), What::Created);
            } else if record.revision > asked.since {
                expected.insert((record.revision, changed), What::Updated);
            }
        }
        for ((account, kind, revision, id), gone) in &self.gone {
            let is_known = gone.created <= asked.since || asked.with_unknown;
            if *account == asked.account && is_known && *revision > asked.since {
                expected.insert((*revision, Changed { kind: *kind, id: *id }), What::Destroyed);
            }
        }
        expected.retain(|(_, changed), _| asked.kind.is_none_or(|kind| kind == changed.kind));
        expected
    }

    /// A page covers whole revisions completely; how many is the engine's choice within the limit.
    pub(crate) fn assert_right(
        &self,
        page: &Changes,
        asked: &Asked,
        records: &BTreeMap<(Kind, RecordId), Record>,
        revision: Revision,
    ) {
        let expected = self.expected(asked, records);
        let covered = || expected.iter().filter(|((at, _), _)| *at <= page.revision);
        let of = |what: What| -> Vec<Changed> {
            covered().filter(|(_, expected)| **expected == what).map(|((_, changed), _)| *changed).collect()
        };
        assert_eq!(page.created, of(What::Created), "{asked:?}: {page:?}");
        assert_eq!(page.updated, of(What::Updated), "{asked:?}: {page:?}");
        assert_eq!(page.destroyed, of(What::Destroyed), "{asked:?}: {page:?}");
        let revisions = covered().map(|((at, _), _)| *at).collect::<BTreeSet<_>>();
        assert!(covered().count() <= asked.limit || revisions.len() == 1, "{asked:?}: too long: {page:?}");
        if page.has_more {
            assert!(page.revision > asked.since && page.revision < revision, "{asked:?}: {page:?}");
        } else {
            assert_eq!(page.revision, revision, "{asked:?}: {page:?}");
        }
    }
}
