//! Which indexes a store has, according to the row of its schema: shared by all engines on disk.
//!
//! Before any entry is touched, all indexes that will change are marked as incomplete; when everything is done, those of the new
//! schema are marked as complete. If that was interrupted, the next opening removes the incomplete indexes and builds them again.

use restante_lmdb::key::{Pack, take_byte, take_bytes, take_number};

use crate::{Index, IndexOrder, Kind, Schema};

/// An index of a store, as the row of its schema describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) kind: Kind,
    pub(crate) index: Index,
    pub(crate) order: IndexOrder,
    pub(crate) parts: Vec<u8>,
    pub(crate) is_whole: bool,
}

/// The indexes of a schema, all of them complete.
pub(crate) fn wanted(schema: &Schema) -> Vec<Known> {
    let mut wanted = Vec::new();
    for kind in schema.kinds() {
        for index in &kind.indexes {
            let parts = index.parts.iter().map(|part| part.0).collect();
            wanted.push(Known {
                kind: kind.kind,
                index: index.index,
                order: index.order,
                parts,
                is_whole: true,
            });
        }
    }
    sorted(wanted)
}

fn sorted(mut indexes: Vec<Known>) -> Vec<Known> {
    indexes.sort_unstable_by_key(|known| (known.kind, known.index));
    indexes
}

/// What the row of the schema says while the `touched` indexes change.
pub(crate) fn in_between(kept: &[Known], touched: &[Known]) -> Vec<Known> {
    let mut indexes = kept.to_vec();
    for index in touched {
        let is_there = indexes.iter().any(|known| (known.kind, known.index) == (index.kind, index.index));
        if !is_there {
            indexes.push(Known { is_whole: false, ..index.clone() });
        }
    }
    sorted(indexes)
}

/// The row: for each index its kind, its number, its order, whether it is complete, and its parts, preceded by their packed count.
pub(crate) fn encode(indexes: &[Known]) -> Vec<u8> {
    let mut row = Vec::new();
    for known in indexes {
        row.put_bytes(&[known.kind.0, known.index.0, order_byte(known.order), u8::from(known.is_whole)]);
        row.put_number(known.parts.len() as u64);
        row.put_bytes(&known.parts);
    }
    row
}

fn order_byte(order: IndexOrder) -> u8 {
    match order {
        IndexOrder::Ordered => 0,
        IndexOrder::Scattered => 1,
    }
}

pub(crate) fn decode(mut row: &[u8]) -> Option<Vec<Known>> {
    let mut indexes = Vec::new();
    while !row.is_empty() {
        let kind = Kind(take_byte(&mut row)?);
        let index = Index(take_byte(&mut row)?);
        let order = match take_byte(&mut row)? {
            0 => IndexOrder::Ordered,
            1 => IndexOrder::Scattered,
            _ => return None,
        };
        let is_whole = match take_byte(&mut row)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let count = usize::try_from(take_number(&mut row)?).ok()?;
        let parts = take_bytes(&mut row, count)?.to_vec();
        indexes.push(Known { kind, index, order, parts, is_whole });
    }
    Some(indexes)
}
