//! The durable and the pending changes at one point of a log.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Range,
};

use crate::{Error, Log, log::Record};

/// The index of a file or folder among all that ever existed.
pub(crate) type NodeId = usize;

/// A log, replayed up to a point.
pub(crate) struct State<'l> {
    log: &'l Log,
    at: usize,
    nodes: Vec<Node>,
    by_inode: HashMap<u64, NodeId>,
    /// Changes of names whose folders were not synced afterwards, in order.
    pub(crate) names: Vec<NameChange>,
    /// The running syncs: the node and the record at which each began.
    syncs: HashMap<u64, (NodeId, usize)>,
}

pub(crate) enum Node {
    File(File),
    Folder(Folder),
}

#[derive(Default)]
pub(crate) struct File {
    pub(crate) durable: Vec<u8>,
    /// Changes since the last sync, in order.
    pub(crate) pending: Vec<FileChange>,
}

pub(crate) struct FileChange {
    at: usize,
    pub(crate) what: What,
    /// Whether it is durable although earlier changes are not.
    pub(crate) is_durable: bool,
}

pub(crate) enum What {
    Write { offset: usize, data: Range<usize> },
    Truncate(usize),
    Extend(usize),
}

#[derive(Default)]
pub(crate) struct Folder {
    /// The entries that the process sees.
    current: BTreeMap<String, NodeId>,
    pub(crate) durable: BTreeMap<String, NodeId>,
}

/// Names that change atomically: a rename removes one and adds another.
pub(crate) struct NameChange {
    at: usize,
    pub(crate) names: Vec<Name>,
}

pub(crate) struct Name {
    pub(crate) folder: NodeId,
    pub(crate) name: String,
    /// The new node of the name, if any.
    pub(crate) node: Option<NodeId>,
}

/// The recorded folder: the first node.
pub(crate) const ROOT: NodeId = 0;

impl<'l> State<'l> {
    /// The state before the first record.
    pub(crate) fn new(log: &'l Log) -> Self {
        let (nodes, by_inode) = (vec![Node::Folder(Folder::default())], HashMap::new());
        Self { log, at: 0, nodes, by_inode, names: Vec::new(), syncs: HashMap::new() }
    }

    /// Replays records until `to` of them are done.
    pub(crate) fn advance(&mut self, to: usize) -> Result<(), Error> {
        while self.at < to {
            let Some(record) = self.log.records.get(self.at) else { break };
            let done = self.apply(record);
            done.map_err(|error| Error::Log(format!("record {}, {record:?}: {error}", self.at)))?;
            self.at += 1;
        }
        Ok(())
    }

    pub(crate) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.nodes.get(id).ok_or_else(|| Error::Log(format!("there is no node {id}")))
    }

    /// The bytes of a write.
    pub(crate) fn data(&self, data: &Range<usize>) -> &'l [u8] {
        self.log.bytes.get(data.clone()).unwrap_or_default()
    }

    fn apply(&mut self, record: &Record) -> Result<(), Error> {
        match record {
            Record::Root { inode } => {
                self.by_inode.insert(*inode, ROOT);
            }
            Record::Create { inode, path } => self.add(*inode, path, Node::File(File::default()))?,
            Record::MakeFolder { inode, path } => self.add(*inode, path, Node::Folder(Folder::default()))?,
            Record::Truncate { inode, len } => self.change(*inode, What::Truncate(*len as usize))?,
            Record::Extend { inode, len } => self.change(*inode, What::Extend(*len as usize))?,
            Record::Write { inode, offset, data } => {
                self.change(*inode, What::Write { offset: *offset as usize, data: data.clone() })?;
            }
            Record::Persist { inode } => {
                let last = self.file(*inode)?.pending.last_mut();
                last.ok_or_else(|| Error::Log("nothing was written".into()))?.is_durable = true;
            }
            Record::SyncBegins { inode, sync } => {
                let node = self.by_inode(*inode)?;
                self.syncs.insert(*sync, (node, self.at));
            }
            Record::SyncEnds { sync, .. } => {
                let begun = self.syncs.remove(sync);
                let (node, begun_at) = begun.ok_or_else(|| Error::Log("a sync that never began".into()))?;
                self.synced(node, begun_at)?;
            }
            Record::Rename { from, to } => self.rename(from, to)?,
            Record::Link { from, to } => {
                let node = self.find(from)?;
                let (folder, name) = self.split(to)?;
                self.set(vec![Name { folder, name, node: Some(node) }])?;
            }
            Record::Unlink { path } => {
                let (folder, name) = self.split(path)?;
                self.set(vec![Name { folder, name, node: None }])?;
            }
            Record::Acknowledge | Record::Map => {}
        }
        Ok(())
    }

    fn add(&mut self, inode: u64, path: &str, node: Node) -> Result<(), Error> {
        let id = self.nodes.len();
        self.nodes.push(node);
        self.by_inode.insert(inode, id); // the number of a removed file is reused
        let (folder, name) = self.split(path)?;
        self.set(vec![Name { folder, name, node: Some(id) }])
    }

    fn change(&mut self, inode: u64, what: What) -> Result<(), Error> {
        let at = self.at;
        self.file(inode)?.pending.push(FileChange { at, what, is_durable: false });
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let node = self.find(from)?;
        let (from_folder, from_name) = self.split(from)?;
        let (to_folder, to_name) = self.split(to)?;
        let gone = Name { folder: from_folder, name: from_name, node: None };
        self.set(vec![gone, Name { folder: to_folder, name: to_name, node: Some(node) }])
    }

    /// Sets names as the process sees them, pending until their folders are synced.
    fn set(&mut self, names: Vec<Name>) -> Result<(), Error> {
        for Name { folder, name, node } in &names {
            let current = &mut self.folder(*folder)?.current;
            match node {
                Some(node) => current.insert(name.clone(), *node),
                None => current.remove(name),
            };
        }
        self.names.push(NameChange { at: self.at, names });
        Ok(())
    }

    /// Completes a sync that began at a record: changes before that record are durable.
    fn synced(&mut self, node: NodeId, begun_at: usize) -> Result<(), Error> {
        let log = self.log;
        match self.nodes.get_mut(node) {
            Some(Node::File(file)) => {
                file.synced(&log.bytes, begun_at);
                Ok(())
            }
            Some(Node::Folder(_)) => self.folder_synced(node, begun_at),
            None => Err(Error::Log("a sync of nothing".into())),
        }
    }

    fn folder_synced(&mut self, folder: NodeId, begun_at: usize) -> Result<(), Error> {
        let is_synced = |change: &NameChange| {
            change.at < begun_at && change.names.iter().any(|name| name.folder == folder)
        };
        let kept = with_dependencies(&self.names, is_synced);
        let mut waiting = Vec::new();
        for (change, is_durable) in std::mem::take(&mut self.names).into_iter().zip(kept) {
            if !is_durable {
                waiting.push(change);
                continue;
            }
            for Name { folder, name, node } in change.names {
                let durable = &mut self.folder(folder)?.durable;
                match node {
                    Some(node) => durable.insert(name, node),
                    None => durable.remove(&name),
                };
            }
        }
        self.names = waiting;
        Ok(())
    }

    fn by_inode(&self, inode: u64) -> Result<NodeId, Error> {
        let found = self.by_inode.get(&inode).copied();
        found.ok_or_else(|| Error::Log(format!("inode {inode} was never created")))
    }

    fn file(&mut self, inode: u64) -> Result<&mut File, Error> {
        let node = self.by_inode(inode)?;
        match self.nodes.get_mut(node) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(Error::Log(format!("inode {inode} is no file"))),
        }
    }

    fn folder(&mut self, node: NodeId) -> Result<&mut Folder, Error> {
        match self.nodes.get_mut(node) {
            Some(Node::Folder(folder)) => Ok(folder),
            _ => Err(Error::Log("a name in a file".into())),
        }
    }

    /// The folder of a path, and the name in it.
    fn split(&self, path: &str) -> Result<(NodeId, String), Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = if parent.is_empty() { ROOT } else { self.find(parent)? };
        Ok((folder, name.to_owned()))
    }

    /// The node of a path.
    fn find(&self, path: &str) -> Result<NodeId, Error> {
        let mut node = ROOT;
        for name in path.split('/') {
            let Node::Folder(folder) = self.node(node)? else {
                return Err(Error::Log(format!("{path} leads through a file")));
            };
            let next = folder.current.get(name).copied();
            node = next.ok_or_else(|| Error::Log(format!("there is no {path}")))?;
        }
        Ok(node)
    }
}

impl File {
    fn synced(&mut self, bytes: &[u8], begun_at: usize) {
        let synced = self.pending.partition_point(|change| change.at < begun_at);
        for change in self.pending.drain(..synced) {
            match change.what {
                What::Write { offset, data } => {
                    put(&mut self.durable, offset, bytes.get(data).unwrap_or_default())
                }
                What::Truncate(len) => self.durable.resize(len, 0),
                What::Extend(len) => self.durable.resize(len.max(self.durable.len()), 0),
            }
        }
    }
}

/// Writes bytes at an offset, after zeros if the content is shorter.
pub(crate) fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    if let Some(there) = content.get_mut(offset..end) {
        there.copy_from_slice(bytes);
    }
}

/// Chooses changes of names, and with each the earlier changes of the same names, because a name changes in order.
pub(crate) fn with_dependencies(
    changes: &[NameChange],
    mut is_kept: impl FnMut(&NameChange) -> bool,
) -> Vec<bool> {
    let mut needed = BTreeSet::new();
    let mut kept = vec![false; changes.len()];
    for (change, keep) in changes.iter().zip(&mut kept).rev() {
        let is_needed = change.names.iter().any(|name| needed.contains(&(name.folder, name.name.as_str())));
        *keep = is_kept(change) || is_needed;
        if *keep {
            needed.extend(change.names.iter().map(|name| (name.folder, name.name.as_str())));
        }
    }
    kept
}
