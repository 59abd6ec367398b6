//! The pages of an LMDB file, checked without mapping it.
//!
//! LMDB follows the page numbers and offsets that it finds. In a file that was truncated or overwritten it reads past the end of
//! its map, which ends the process by SIGBUS, or fails an assertion, which ends it by SIGABRT. So a file that comes from
//! elsewhere is read here first, with ordinary reads: the tree of every table, and the list of free pages. The layout is that of
//! `mdb.c`, data version 1.

use std::{cmp::Ordering, collections::HashSet, fs::File, os::unix::fs::FileExt};

use crate::Error;

/// Bytes before the content of a page.
const HEADER_BYTES: usize = 16;
/// Bytes of a meta page's content.
const META_BYTES: usize = 136;
const MAGIC: u32 = 0xbeef_c0de;
const VERSION: u32 = 1;
/// The first two pages are meta pages.
const METAS: u64 = 2;
/// Offsets in a page have 16 bits.
const PAGE_BYTES: std::ops::RangeInclusive<usize> = 512..=32_768;
/// A file that maps more than this can't be opened anyway.
const FILE_BYTES_MAX: u64 = 1 << 46;
/// No store reaches larger transaction numbers, and the largest one would overflow.
const TRANSACTION_MAX: u64 = 1 << 60;
/// LMDB's cursors have this many levels.
const DEPTH_MAX: u16 = 32;

/// The flags of pages, as stored in the file.
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;

/// The flags of nodes.
const BIG: u16 = 0x01;
const TABLE: u16 = 0x02;
/// Bytes before the key of a node.
const NODE_BYTES: usize = 8;
const KEY_BYTES_MAX: usize = 511;
/// Bytes of the row of a table.
const TREE_BYTES: usize = 48;
/// The flag of a table whose keys are numbers: only the list of free pages.
const NUMBERS: u16 = 0x08;
/// The root of an empty table.
const NO_PAGE: u64 = u64::MAX;

/// Bytes of a large value that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// Reads all pages that an LMDB file uses, and checks that LMDB can follow them: each page is in the file, is used once and is of
/// the right kind, its rows are within it and sorted. The contents of the rows are not checked.
///
/// # Errors
/// `Corrupt`, with the number of the first page that is wrong; `Unavailable` when the file can't be read.
pub fn check_pages(file: &File) -> Result<(), Error> {
    let meta = read_meta(file)?;
    let mut walk = Walk::new(file, &meta)?;
    walk.tree(&meta.free, Content::FreePages { transaction: meta.transaction })?;
    let tables = walk.tree(&meta.main, Content::Tables)?;
    for table in tables {
        walk.tree(&table, Content::Rows)?;
    }
    Ok(())
}

/// Checks what can be checked without reading the whole file: its meta pages, and that it has all pages. A file may lack free
/// pages at its end; then everything is checked.
///
/// # Errors
/// Those of [`check_pages`].
pub(crate) fn check_length(file: &File) -> Result<(), Error> {
    let meta = read_meta(file)?;
    if file_pages(file, meta.page_bytes)? > meta.last_page { Ok(()) } else { check_pages(file) }
}

/// The newest meta page.
struct Meta {
    page_bytes: usize,
    /// The transaction that wrote it.
    transaction: u64,
    last_page: u64,
    /// The list of free pages.
    free: Tree,
    /// The table of tables.
    main: Tree,
}

/// The tree of a table.
#[derive(Clone, Copy)]
struct Tree {
    /// The page size in a meta page, zero elsewhere.
    pad: u32,
    flags: u16,
    depth: u16,
    root: u64,
}

impl Tree {
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            pad: number_4(bytes, 0)?,
            flags: number_2(bytes, 4)?,
            depth: number_2(bytes, 6)?,
            root: number_8(bytes, 40)?,
        })
    }
}

/// The contents of a tree's leaves.
#[derive(Clone, Copy)]
enum Content {
    FreePages { transaction: u64 },
    Tables,
    Rows,
}

impl Content {
    fn flags(self) -> u16 {
        match self {
            Self::FreePages { .. } => NUMBERS,
            Self::Tables | Self::Rows => 0,
        }
    }

    fn compare(self, left: &[u8], right: &[u8]) -> Ordering {
        match self {
            Self::FreePages { .. } => number_8(left, 0).cmp(&number_8(right, 0)),
            Self::Tables | Self::Rows => left.cmp(right),
        }
    }
}

/// A page to be read, and the bounds of its keys: not below `low`, and below `high`.
struct Visit {
    page: u64,
    depth: u16,
    low: Option<Box<[u8]>>,
    high: Option<Box<[u8]>>,
}

/// A row, or a branch, of a page.
struct Node<'p> {
    /// The length of a value, or the lower bits of a page number.
    number: u32,
    flags: u16,
    key: &'p [u8],
    /// What follows the key, up to the end of the page.
    rest: &'p [u8],
}

impl<'p> Node<'p> {
    fn read(page: &'p [u8], offset: usize) -> Option<Self> {
        let node = page.get(offset..)?;
        let key_bytes = usize::from(number_2(node, 6)?);
        let (key, rest) = node.get(NODE_BYTES..)?.split_at_checked(key_bytes)?;
        Some(Self { number: number_4(node, 0)?, flags: number_2(node, 4)?, key, rest })
    }

    /// The page that a branch leads to.
    fn child(&self) -> u64 {
        u64::from(self.number) | u64::from(self.flags) << 32
    }

    /// Bytes of the value in this page.
    fn value_bytes(&self) -> usize {
        if self.flags & BIG == 0 { self.number as usize } else { size_of::<u64>() }
    }
}

struct Walk<'f> {
    file: &'f File,
    page_bytes: usize,
    /// Whole pages of the file.
    file_pages: u64,
    last_page: u64,
    /// A bit for each page of the file that is used, or free.
    met: Vec<u64>,
    /// Free pages past the end of the file.
    met_behind: HashSet<u64>,
}

impl<'f> Walk<'f> {
    fn new(file: &'f File, meta: &Meta) -> Result<Self, Error> {
        let file_pages = file_pages(file, meta.page_bytes)?;
        let words = usize::try_from(file_pages.div_ceil(64)).unwrap_or_default();
        Ok(Self {
            file,
            page_bytes: meta.page_bytes,
            file_pages,
            last_page: meta.last_page,
            met: vec![0; words],
            met_behind: HashSet::new(),
        })
    }

    /// Checks a tree; returns the trees of the tables in it.
    fn tree(&mut self, tree: &Tree, content: Content) -> Result<Vec<Tree>, Error> {
        let mut tables = Vec::new();
        if tree.flags != content.flags() {
            return Err(wrong(0, "a table has flags that no table of ours has"));
        }
        if tree.root == NO_PAGE {
            let is_empty = tree.depth == 0;
            return if is_empty { Ok(tables) } else { Err(wrong(0, "a table has levels and no root")) };
        }
        if !(1..=DEPTH_MAX).contains(&tree.depth) {
            return Err(wrong(tree.root, "it is the root of too few or too many levels"));
        }
        let mut page = vec![0; self.page_bytes];
        let mut waiting = vec![Visit { page: tree.root, depth: 1, low: None, high: None }];
        while let Some(visit) = waiting.pop() {
            self.meet_used(visit.page)?;
            self.read(visit.page, &mut page)?;
            if visit.depth < tree.depth {
                self.branch(&page, &visit, content, &mut waiting)?;
            } else {
                self.leaf(&page, &visit, content, &mut tables)?;
            }
        }
        Ok(tables)
    }

    fn branch(
        &self,
        page: &[u8],
        visit: &Visit,
        content: Content,
        waiting: &mut Vec<Visit>,
    ) -> Result<(), Error> {
        let nodes = self.nodes(page, visit, BRANCH)?;
        // While LMDB empties its list of free pages, a branch of it may be left with one page.
        let nodes_min = if matches!(content, Content::FreePages { .. }) { 1 } else { 2 };
        if nodes.len() < nodes_min {
            return Err(wrong(visit.page, "it is a branch with too few pages"));
        }
        // The first key covers everything smaller than the second one, and may be empty.
        check_keys(nodes.get(1..).unwrap_or_default(), visit, content)?;
        for (number, node) in nodes.iter().enumerate() {
            let low = if number == 0 { visit.low.clone() } else { Some(node.key.into()) };
            let next = nodes.get(number + 1).map(|next| next.key.into());
            let high = next.or_else(|| visit.high.clone());
            waiting.push(Visit { page: node.child(), depth: visit.depth + 1, low, high });
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        page: &[u8],
        visit: &Visit,
        content: Content,
        tables: &mut Vec<Tree>,
    ) -> Result<(), Error> {
        let nodes = self.nodes(page, visit, LEAF)?;
        check_keys(&nodes, visit, content)?;
        for node in &nodes {
            let value = node.rest.get(..node.value_bytes()).unwrap_or_default();
            match (content, node.flags) {
                (Content::Tables, TABLE) => {
                    let table = Tree::read(value).filter(|_| value.len() == TREE_BYTES);
                    tables.push(table.ok_or_else(|| wrong(visit.page, "it has a damaged table"))?);
                }
                (Content::Rows, 0) => {}
                (Content::Rows, BIG) => {
                    self.large_value(node, visit.page)?;
                }
                (Content::FreePages { .. }, 0) => {
                    let mut list = FreeList::new(value.len() as u64);
                    list.read(value, visit.page, self)?;
                    list.end(visit.page)?;
                }
                (Content::FreePages { .. }, BIG) => {
                    let first = self.large_value(node, visit.page)?;
                    self.large_free_list(first, u64::from(node.number))?;
                }
                _ => return Err(wrong(visit.page, "it has a row of an unknown kind")),
            }
            if let Content::FreePages { transaction } = content {
                check_freed_by(node.key, transaction, visit.page)?;
            }
        }
        Ok(())
    }

    /// The nodes of a page, which fill it from the end of its free space on without overlapping.
    fn nodes<'p>(&self, page: &'p [u8], visit: &Visit, kind: u16) -> Result<Vec<Node<'p>>, Error> {
        let damaged = |what: &str| wrong(visit.page, what);
        let header = (number_8(page, 0), number_2(page, 10), number_2(page, 12), number_2(page, 14));
        let (Some(number), Some(flags), Some(lower), Some(upper)) = header else {
            return Err(damaged("it has no header"));
        };
        let (lower, upper) = (usize::from(lower), usize::from(upper));
        if number != visit.page || flags != kind {
            return Err(damaged("it is another page than the one that is looked for"));
        }
        let is_sound = HEADER_BYTES < lower && lower % 2 == 0 && lower <= upper && upper <= page.len();
        if !is_sound {
            return Err(damaged("its bounds are damaged"));
        }
        let mut nodes = Vec::new();
        let mut extents = Vec::new();
        for at in (HEADER_BYTES..lower).step_by(2) {
            let offset = number_2(page, at).map(usize::from).filter(|offset| *offset >= upper);
            let node = offset.and_then(|offset| Some((offset, Node::read(page, offset)?)));
            let (offset, node) = node.ok_or_else(|| damaged("it has a row outside of itself"))?;
            let value_bytes = if kind == BRANCH { 0 } else { node.value_bytes() };
            let bytes = NODE_BYTES + node.key.len() + value_bytes;
            if node.key.len() > KEY_BYTES_MAX || bytes > self.node_bytes_max() {
                return Err(damaged("it has a row that is too long"));
            }
            extents.push((offset, bytes.next_multiple_of(2)));
            nodes.push(node);
        }
        extents.sort_unstable();
        let mut end = upper;
        for (offset, bytes) in extents {
            if offset != end {
                return Err(damaged("its rows overlap, or have gaps between them"));
            }
            end += bytes;
        }
        if end != page.len() {
            return Err(damaged("its rows do not end where it ends"));
        }
        Ok(nodes)
    }

    /// A longer row has its value in separate pages: at least two rows fit into each page.
    fn node_bytes_max(&self) -> usize {
        (((self.page_bytes - HEADER_BYTES) / 2) & !1) - 2
    }

    /// Checks the pages of a value that has separate pages; returns the first of them.
    fn large_value(&mut self, node: &Node<'_>, page: u64) -> Result<u64, Error> {
        let first = number_8(node.rest, 0).ok_or_else(|| wrong(page, "it has a damaged value"))?;
        self.check_within(first)?;
        let mut header = [0; HEADER_BYTES];
        self.read(first, &mut header)?;
        let wanted = (HEADER_BYTES as u64 - 1 + u64::from(node.number)) / self.page_bytes as u64 + 1;
        let pages = u64::from(number_4(&header, 12).unwrap_or_default());
        let is_sound =
            number_8(&header, 0) == Some(first) && number_2(&header, 10) == Some(OVERFLOW) && pages >= wanted;
        if !is_sound {
            return Err(wrong(first, "it is not the begin of the value that is looked for"));
        }
        for page in first..first.saturating_add(pages) {
            self.meet_used(page)?;
        }
        Ok(first)
    }

    /// Checks a list of free pages that has separate pages.
    fn large_free_list(&mut self, first: u64, bytes: u64) -> Result<(), Error> {
        let begin = first * self.page_bytes as u64 + HEADER_BYTES as u64;
        let mut list = FreeList::new(bytes);
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < bytes {
            let left = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(PIECE_BYTES);
            let piece = piece.get_mut(..left).unwrap_or_default();
            self.file.read_exact_at(piece, begin + done).map_err(|error| unreadable(first, error))?;
            list.read(piece, first, self)?;
            done += left as u64;
        }
        list.end(first)
    }

    fn read(&self, page: u64, into: &mut [u8]) -> Result<(), Error> {
        let at = page.saturating_mul(self.page_bytes as u64);
        self.file.read_exact_at(into, at).map_err(|error| unreadable(page, error))
    }

    fn check_within(&self, page: u64) -> Result<(), Error> {
        let is_within = page >= METAS && page <= self.last_page && page < self.file_pages;
        if is_within { Ok(()) } else { Err(wrong(page, "it is used and not in the file, which was cut")) }
    }

    fn meet_used(&mut self, page: u64) -> Result<(), Error> {
        self.check_within(page)?;
        self.meet(page)
    }

    fn meet_free(&mut self, page: u64, list: u64) -> Result<(), Error> {
        if page < METAS || page > self.last_page {
            return Err(wrong(list, "it has a free page that there is not"));
        }
        self.meet(page)
    }

    fn meet(&mut self, page: u64) -> Result<(), Error> {
        let is_new = if page < self.file_pages {
            let bit = 1 << (page % 64);
            let word = usize::try_from(page / 64).ok().and_then(|word| self.met.get_mut(word));
            word.is_some_and(|word| {
                let is_new = *word & bit == 0;
                *word |= bit;
                is_new
            })
        } else {
            self.met_behind.insert(page)
        };
        if is_new { Ok(()) } else { Err(wrong(page, "it is used twice, or used and free")) }
    }
}

/// A list of free pages while it is read: how many there are, and then each of them, the last first.
struct FreeList {
    /// The capacity of the list.
    capacity: u64,
    /// Pages that are not read yet.
    left: Option<u64>,
    last: u64,
}

impl FreeList {
    fn new(bytes: u64) -> Self {
        Self { capacity: bytes / 8, left: None, last: u64::MAX }
    }

    fn read(&mut self, bytes: &[u8], list: u64, walk: &mut Walk<'_>) -> Result<(), Error> {
        for number in bytes.chunks_exact(8) {
            let number = number_8(number, 0).unwrap_or_default();
            match self.left {
                None if number >= self.capacity => return Err(wrong(list, "its list of free pages is cut")),
                None => self.left = Some(number),
                Some(0) => return Ok(()), // a list may be longer than its content
                Some(left) => {
                    if number >= self.last {
                        return Err(wrong(list, "its list of free pages is out of order"));
                    }
                    walk.meet_free(number, list)?;
                    (self.left, self.last) = (Some(left - 1), number);
                }
            }
        }
        Ok(())
    }

    fn end(&self, list: u64) -> Result<(), Error> {
        if self.left == Some(0) { Ok(()) } else { Err(wrong(list, "its list of free pages is cut")) }
    }
}

/// Reads both meta pages and returns the newer one.
fn read_meta(file: &File) -> Result<Meta, Error> {
    let (first, first_address) = read_meta_at(file, 0, 0)?;
    let (second, second_address) = read_meta_at(file, 1, first.page_bytes as u64)?;
    if first.page_bytes != second.page_bytes || first_address != 0 || second_address != 0 {
        return Err(wrong(0, "the meta pages do not belong together"));
    }
    let (meta, number) = if second.transaction > first.transaction { (second, 1) } else { (first, 0) };
    // LMDB selects the page of a transaction by whether its number is odd.
    if meta.transaction % 2 != number || meta.transaction > TRANSACTION_MAX {
        return Err(wrong(number, "it is a meta page of another transaction"));
    }
    let is_sane = meta.last_page.checked_add(1).and_then(|pages| pages.checked_mul(meta.page_bytes as u64));
    if meta.last_page < METAS - 1 || is_sane.is_none_or(|bytes| bytes > FILE_BYTES_MAX) {
        return Err(wrong(number, "it is a meta page with a damaged number of pages"));
    }
    Ok(meta)
}

/// Reads a meta page, and the address at which the file asks to be mapped: zero in a file of this program.
fn read_meta_at(file: &File, number: u64, at: u64) -> Result<(Meta, u64), Error> {
    let mut bytes = [0; HEADER_BYTES + META_BYTES];
    file.read_exact_at(&mut bytes, at).map_err(|error| unreadable(number, error))?;
    let damaged = || wrong(number, "it is no meta page: this is no LMDB file, or its begin is damaged");
    let (header, content) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
    let is_meta = number_2(header, 10) == Some(META)
        && number_4(content, 0) == Some(MAGIC)
        && number_4(content, 4) == Some(VERSION);
    let tree = |begin: usize| content.get(begin..begin + TREE_BYTES).and_then(Tree::read);
    let fields = (number_8(content, 8), tree(24), tree(72), number_8(content, 120), number_8(content, 128));
    let (true, (Some(address), Some(free), Some(main), Some(last_page), Some(transaction))) =
        (is_meta, fields)
    else {
        return Err(damaged());
    };
    let page_bytes = free.pad as usize;
    if !page_bytes.is_power_of_two() || !PAGE_BYTES.contains(&page_bytes) {
        return Err(wrong(number, "it is a meta page with a damaged page size"));
    }
    Ok((Meta { page_bytes, transaction, last_page, free, main }, address))
}

fn file_pages(file: &File, page_bytes: usize) -> Result<u64, Error> {
    let len = file.metadata().map_err(|error| Error::io("look at", "an LMDB file", error))?.len();
    Ok(len / page_bytes as u64)
}

/// Fails unless the keys are sorted, and within the bounds of their page.
fn check_keys(nodes: &[Node<'_>], visit: &Visit, content: Content) -> Result<(), Error> {
    let mut last: Option<&[u8]> = None;
    for node in nodes {
        let length = match content {
            Content::FreePages { .. } => node.key.len() == size_of::<u64>(),
            Content::Tables | Content::Rows => !node.key.is_empty(),
        };
        let is_after = last.is_none_or(|last| content.compare(last, node.key).is_lt());
        let low = visit.low.as_deref();
        let is_high_enough = low.is_none_or(|low| content.compare(low, node.key).is_le());
        let high = visit.high.as_deref();
        let is_low_enough = high.is_none_or(|high| content.compare(node.key, high).is_lt());
        if !(length && is_after && is_high_enough && is_low_enough) {
            return Err(wrong(visit.page, "its keys are damaged, or out of order"));
        }
        last = Some(node.key);
    }
    Ok(())
}

/// Fails when pages are marked as freed by a transaction that has not happened yet.
fn check_freed_by(key: &[u8], transaction: u64, page: u64) -> Result<(), Error> {
    let freed_by = number_8(key, 0).unwrap_or(u64::MAX);
    if freed_by <= transaction {
        Ok(())
    } else {
        Err(wrong(page, "it has pages that a later transaction freed"))
    }
}

fn wrong(page: u64, what: &str) -> Error {
    let what = format!("page {page} of an LMDB file is damaged: {what}: restore a backup that is whole");
    Error::corrupt(what)
}

fn unreadable(page: u64, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return wrong(page, "the file ends before it");
    }
    Error::io("read a page of", "an LMDB file", error)
}

/// Numbers have the byte order of the machine that wrote the file; LMDB opens no others.
fn number_2(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn number_4(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn number_8(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}
