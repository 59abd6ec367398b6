//! The possible contents of a disk after a power cut.

use std::{collections::BTreeMap, fs, path::Path};

use rand::{RngExt, seq::IndexedRandom};
use rand_chacha::ChaCha8Rng;

use crate::{
    Error,
    state::{File, Name, Node, NodeId, ROOT, State, What, put, with_dependencies},
};

/// The deepest nesting of folders.
const DEPTH_MAX: u32 = 32;

/// Which of the changes that were not synced survive a cut.
#[derive(Debug)]
pub(crate) struct Manner {
    /// The unit of an atomic write: a sector or a page.
    block_bytes: usize,
    /// Of the writes.
    bytes: SurvivingBytes,
    /// Of the changes of names.
    names: SurvivingNames,
}

#[derive(Clone, Copy, Debug)]
enum SurvivingBytes {
    Nothing,
    Everything,
    Some,
}

#[derive(Clone, Copy, Debug)]
enum SurvivingNames {
    Nothing,
    Everything,
    /// The first of them, as with a journal.
    Journal,
    /// Any of them.
    Some,
}

impl Manner {
    pub(crate) fn draw(rng: &mut ChaCha8Rng) -> Self {
        use SurvivingBytes::{Everything, Nothing, Some};
        let bytes = [Nothing, Everything, Some, Some, Some, Some];
        let names = [
            SurvivingNames::Nothing,
            SurvivingNames::Everything,
            SurvivingNames::Journal,
            SurvivingNames::Some,
        ];
        Self {
            block_bytes: if rng.random_bool(0.5) { 512 } else { 4_096 },
            bytes: bytes.choose(rng).copied().unwrap_or(Nothing),
            names: names.choose(rng).copied().unwrap_or(SurvivingNames::Nothing),
        }
    }
}

/// Writes into `folder` what the disk may hold after a cut at `state`.
pub(crate) fn write(
    state: &State<'_>,
    folder: &Path,
    manner: &Manner,
    rng: &mut ChaCha8Rng,
) -> Result<(), Error> {
    let names = surviving_names(state, manner, rng);
    let mut image = Image { state, manner, rng, names, contents: BTreeMap::new() };
    image.write_folder(ROOT, folder, 0)
}

/// The names of each folder that differ from the durable ones.
type Names<'s> = BTreeMap<NodeId, BTreeMap<&'s str, Option<NodeId>>>;

fn surviving_names<'s>(state: &'s State<'_>, manner: &Manner, rng: &mut ChaCha8Rng) -> Names<'s> {
    let changes = &state.names;
    let kept = match manner.names {
        SurvivingNames::Nothing => vec![false; changes.len()],
        SurvivingNames::Everything => vec![true; changes.len()],
        SurvivingNames::Journal => {
            let first = rng.random_range(0..=changes.len());
            (0..changes.len()).map(|index| index < first).collect()
        }
        SurvivingNames::Some => with_dependencies(changes, |_| rng.random_bool(0.4)),
    };
    let mut names = Names::new();
    for (change, is_kept) in changes.iter().zip(kept) {
        if !is_kept {
            continue;
        }
        for Name { folder, name, node } in &change.names {
            names.entry(*folder).or_default().insert(name, *node);
        }
    }
    names
}

struct Image<'s, 'l> {
    state: &'s State<'l>,
    manner: &'s Manner,
    rng: &'s mut ChaCha8Rng,
    names: Names<'s>,
    /// Files already drawn: two names of a file have the same bytes.
    contents: BTreeMap<NodeId, Vec<u8>>,
}

impl<'s> Image<'s, '_> {
    fn write_folder(&mut self, id: NodeId, path: &Path, depth: u32) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(Error::Log(format!("{} is nested too deep", path.display())));
        }
        for (name, node) in self.entries(id)? {
            let path = path.join(name);
            match self.state.node(node)? {
                Node::Folder(_) => {
                    fs::create_dir(&path).map_err(Error::io("create", &path))?;
                    self.write_folder(node, &path, depth + 1)?;
                }
                Node::File(file) => {
                    let content = match self.contents.remove(&node) {
                        Some(drawn) => drawn,
                        None => self.content(file),
                    };
                    fs::write(&path, &content).map_err(Error::io("write", &path))?;
                    self.contents.insert(node, content);
                }
            }
        }
        Ok(())
    }

    fn entries(&self, id: NodeId) -> Result<BTreeMap<&'s str, NodeId>, Error> {
        let Node::Folder(folder) = self.state.node(id)? else {
            return Err(Error::Log("a file with entries".into()));
        };
        let mut entries: BTreeMap<&str, NodeId> =
            folder.durable.iter().map(|(name, node)| (name.as_str(), *node)).collect();
        for (name, node) in self.names.get(&id).into_iter().flatten() {
            match node {
                Some(node) => entries.insert(name, *node),
                None => entries.remove(name),
            };
        }
        Ok(entries)
    }

    fn content(&mut self, file: &File) -> Vec<u8> {
        let changes = &file.pending;
        let blocks = self.surviving_blocks(file);
        let durable_changes = changes.iter().rposition(|change| change.is_durable).map_or(0, |last| last + 1);
        let kept = self.draw(durable_changes, changes.len());
        let mut content = file.durable.clone();
        let mut len = content.len();
        for (index, change) in changes.iter().enumerate() {
            let is_length_kept = index < kept;
            match &change.what {
                What::Write { offset, data } => {
                    let bytes = self.state.data(data);
                    self.write_blocks(&mut content, *offset, bytes, |block| {
                        blocks.get(&block).is_some_and(|first| index < *first)
                    });
                    if is_length_kept {
                        len = len.max(offset + bytes.len());
                    }
                }
                What::Truncate(to) if is_length_kept => {
                    content.truncate(*to);
                    len = *to;
                }
                What::Extend(to) if is_length_kept => len = len.max(*to),
                What::Truncate(_) | What::Extend(_) => {}
            }
        }
        content.resize(len, 0);
        content
    }

    /// For each block written since the last sync, the number of the file's changes that are applied to it.
    fn surviving_blocks(&mut self, file: &File) -> BTreeMap<usize, usize> {
        let mut writes: BTreeMap<usize, (usize, Vec<usize>)> = BTreeMap::new();
        for (index, change) in file.pending.iter().enumerate() {
            let What::Write { offset, data } = &change.what else { continue };
            for block in blocks(*offset, data.len(), self.manner.block_bytes) {
                let (durable, indexes) = writes.entry(block).or_default();
                indexes.push(index);
                if change.is_durable {
                    *durable = indexes.len();
                }
            }
        }
        let mut kept = BTreeMap::new();
        for (block, (durable, indexes)) in writes {
            let count = self.draw(durable, indexes.len());
            let seen = count.checked_sub(1).and_then(|last| indexes.get(last)).map_or(0, |index| index + 1);
            kept.insert(block, seen);
        }
        kept
    }

    /// A number within bounds, drawn as the cut treats bytes.
    fn draw(&mut self, from: usize, to: usize) -> usize {
        match self.manner.bytes {
            SurvivingBytes::Nothing => from,
            SurvivingBytes::Everything => to,
            SurvivingBytes::Some => self.rng.random_range(from..=to),
        }
    }

    fn write_blocks(
        &self,
        content: &mut Vec<u8>,
        offset: usize,
        bytes: &[u8],
        is_kept: impl Fn(usize) -> bool,
    ) {
        let size = self.manner.block_bytes;
        for block in blocks(offset, bytes.len(), size) {
            if !is_kept(block) {
                continue;
            }
            let from = (block * size).max(offset);
            let to = ((block + 1) * size).min(offset + bytes.len());
            put(content, from, bytes.get(from - offset..to - offset).unwrap_or_default());
        }
    }
}

/// The numbers of the blocks that the bytes overlap.
fn blocks(offset: usize, len: usize, size: usize) -> std::ops::Range<usize> {
    offset / size..(offset + len).div_ceil(size)
}
