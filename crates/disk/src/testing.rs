//! A disk that fails when a test requests it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{Disk, DiskFile, Folder};

mod required;
pub mod small_disk;

pub use required::run_or_ignore;

/// The unit of space of a disk of limited size.
pub const BLOCK_BYTES: u64 = 4_096;

/// How a step fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFailure {
    /// Nothing is done.
    Fails,
    /// Half of a write is done; other steps fail as with `Fails`.
    FailsHalfway,
    /// Nothing is done, and the error is that of a full disk.
    Full,
}

impl InjectedFailure {
    fn error(self) -> io::Error {
        match self {
            Self::Full => io::ErrorKind::StorageFull.into(),
            Self::Fails | Self::FailsHalfway => io::Error::other("the test made the disk fail"),
        }
    }
}

type Plan = Arc<dyn Fn(u64, &'static str) -> Option<InjectedFailure> + Send + Sync>;

/// Decides which steps of a [`FailingDisk`] fail, and how much space the disk has. Several disks may share it, for example
/// those of a store that is opened twice.
pub struct FailurePlan {
    state: Mutex<State>,
}

struct State {
    plan: Plan,
    steps: u64,
    failed: BTreeSet<&'static str>,
    space: Option<Space>,
}

impl FailurePlan {
    /// No step fails and space is not limited.
    pub fn none() -> Arc<Self> {
        let state = State { plan: Arc::new(|_, _| None), steps: 0, failed: BTreeSet::new(), space: None };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Step number `step` fails, counted from 1.
    pub fn at_step(step: u64, fault: InjectedFailure) -> Arc<Self> {
        let faults = Self::none();
        faults.fail_at(step, fault);
        faults
    }

    /// From now on `plan` decides, from the number of a step and its name, whether and how it fails. Counting restarts at 1.
    /// Names are `create`, `open`, `create folder`, `rename`, `remove`, `sync folder`, `write`, `reserve`, `allocate`, `cut`,
    /// `sync`, and those that are announced by [`Disk::before`].
    pub fn plan(&self, plan: impl Fn(u64, &'static str) -> Option<InjectedFailure> + Send + Sync + 'static) {
        let mut state = self.state();
        (state.plan, state.steps) = (Arc::new(plan), 0);
        state.failed.clear();
    }

    /// The `step`th step from now fails, and no other.
    pub fn fail_at(&self, step: u64, fault: InjectedFailure) {
        self.plan(move |number, _| (number == step).then_some(fault));
    }

    /// From now on no step fails.
    pub fn clear(&self) {
        self.plan(|_, _| None);
    }

    /// The number of steps since the plan was made.
    pub fn steps(&self) -> u64 {
        self.state().steps
    }

    /// The names of steps that have failed since the plan was made, not counting those that found no space.
    pub fn failed(&self) -> BTreeSet<&'static str> {
        self.state().failed.clone()
    }

    /// From now on the disk has `bytes` free besides its files, in whole blocks of [`BLOCK_BYTES`]. Each new file or folder
    /// takes a block, and written or reserved ranges take the blocks that they touch.
    pub fn limit(&self, bytes: u64) {
        let free_blocks = bytes / BLOCK_BYTES;
        self.state().space.get_or_insert_default().free_blocks = free_blocks;
    }

    /// The free bytes of a disk of limited size.
    pub fn free_bytes(&self) -> Option<u64> {
        self.state().space.as_ref().map(|space| space.free_blocks * BLOCK_BYTES)
    }

    fn step(&self, name: &'static str) -> Result<(), InjectedFailure> {
        let (plan, number) = {
            let mut state = self.state();
            state.steps += 1;
            (state.plan.clone(), state.steps)
        };
        match plan(number, name) {
            None => Ok(()),
            Some(fault) => {
                self.state().failed.insert(name);
                Err(fault)
            }
        }
    }

    fn run(&self, name: &'static str) -> io::Result<()> {
        self.step(name).map_err(InjectedFailure::error)
    }

    /// What `change` returns for the space of a disk of limited size.
    fn space<T: Default>(&self, change: impl FnOnce(&mut Space) -> T) -> T {
        self.state().space.as_mut().map(change).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The space of a disk.
#[derive(Default)]
struct Space {
    free_blocks: u64,
    /// The blocks of each file that was touched since the size was limited.
    files: BTreeMap<String, BTreeSet<u64>>,
}

impl Space {
    /// The blocks of a file of `len` bytes; a file seen for the first time is assumed to have them all.
    fn blocks(&mut self, name: &str, len: u64) -> &mut BTreeSet<u64> {
        self.files.entry(name.to_owned()).or_insert_with(|| (0..len.div_ceil(BLOCK_BYTES)).collect())
    }

    /// The block of a new file or folder.
    fn add_entry(&mut self) -> io::Result<()> {
        self.free_blocks = self.free_blocks.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(())
    }

    /// Allocates the blocks of `range` in order, as many as are free. Returns where the allocated part ends.
    fn allocate(&mut self, name: &str, len: u64, range: Range<u64>) -> u64 {
        let mut free = self.free_blocks;
        let blocks = self.blocks(name, len);
        let mut end = range.end;
        for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
            if blocks.contains(&block) {
                continue;
            }
            if free == 0 {
                end = (block * BLOCK_BYTES).max(range.start);
                break;
            }
            blocks.insert(block);
            free -= 1;
        }
        self.free_blocks = free;
        end
    }

    fn missing(&mut self, name: &str, len: u64, range: Range<u64>) -> u64 {
        let blocks = self.blocks(name, len);
        let touched = range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES);
        touched.filter(|block| !blocks.contains(block)).count() as u64
    }

    fn cut(&mut self, name: &str, len: u64, to: u64) {
        let cut = self.blocks(name, len).split_off(&to.div_ceil(BLOCK_BYTES));
        self.free_blocks += cut.len() as u64;
    }

    /// Frees the blocks of a file of `len` bytes.
    fn remove(&mut self, name: &str, len: u64) {
        self.cut(name, len, 0);
        self.files.remove(name);
        self.free_blocks += 1;
    }
}

/// A folder whose steps fail as [`FailurePlan`] specifies.
pub struct FailingDisk {
    folder: Folder,
    faults: Arc<FailurePlan>,
}

impl FailingDisk {
    /// The folder at `path`.
    pub fn new(path: &Path, faults: Arc<FailurePlan>) -> Self {
        Self { folder: Folder::new(path), faults }
    }

    fn file(&self, name: &str, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(FailingFile { name: name.to_owned(), file, faults: self.faults.clone() })
    }

    /// The length of a file, if there is one.
    fn len(&self, name: &str) -> Option<u64> {
        std::fs::metadata(self.folder.path(name)).ok().map(|file| file.len())
    }
}

impl Disk for FailingDisk {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.faults.run("create")?;
        let mut space_left = Ok(());
        if self.len(name).is_none() {
            space_left = self.faults.space(|space| Some(space.add_entry())).unwrap_or(Ok(()));
        }
        space_left?;
        Ok(self.file(name, self.folder.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.faults.run("open")?;
        Ok(self.file(name, self.folder.open(name)?))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        self.faults.run("create folder")?;
        if self.len(name).is_none() {
            self.faults.space(|space| Some(space.add_entry())).unwrap_or(Ok(()))?;
        }
        self.folder.create_folder(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.faults.run("rename")?;
        let (len, replaced) = (self.len(from).unwrap_or(0), self.len(to));
        self.folder.rename(from, to)?;
        self.faults.space(|space| {
            if let Some(len) = replaced {
                space.remove(to, len);
            }
            let blocks = std::mem::take(space.blocks(from, len));
            space.files.remove(from);
            space.files.insert(to.to_owned(), blocks);
        });
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.faults.run("remove")?;
        let len = self.len(name);
        self.folder.remove(name)?;
        if let Some(len) = len {
            self.faults.space(|space| space.remove(name, len));
        }
        Ok(())
    }

    fn sync_folder(&self, name: &str) -> io::Result<()> {
        self.faults.run("sync folder")?;
        self.folder.sync_folder(name)
    }

    fn before(&self, step: &'static str) -> io::Result<()> {
        self.faults.run(step)
    }
}

struct FailingFile {
    name: String,
    file: Box<dyn DiskFile>,
    faults: Arc<FailurePlan>,
}

impl FailingFile {
    /// Takes the blocks of a range from the space of the disk, or none of them.
    fn allocate_all(&self, offset: u64, len: u64) -> io::Result<()> {
        let size = self.file.size()?;
        let range = offset..offset + len;
        let fits = self.faults.space(|space| {
            let is_short = space.missing(&self.name, size, range.clone()) > space.free_blocks;
            if !is_short {
                space.allocate(&self.name, size, range);
            }
            Some(!is_short)
        });
        if fits == Some(false) { Err(InjectedFailure::Full.error()) } else { Ok(()) }
    }
}

impl DiskFile for FailingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(fault) = self.faults.step("write") {
            if fault == InjectedFailure::FailsHalfway {
                let (half, _) = bytes.split_at(bytes.len() / 2);
                self.file.write_at(half, offset)?;
            }
            return Err(fault.error());
        }
        let len = self.file.size()?;
        let end = offset + bytes.len() as u64;
        let fits_to =
            self.faults.space(|space| Some(space.allocate(&self.name, len, offset..end))).unwrap_or(end);
        let (fitting, rest) = bytes.split_at((fits_to - offset) as usize);
        self.file.write_at(fitting, offset)?;
        if rest.is_empty() { Ok(()) } else { Err(InjectedFailure::Full.error()) }
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.faults.run("reserve")?;
        self.allocate_all(offset, len)?;
        self.file.reserve(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.faults.run("allocate")?;
        self.allocate_all(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.faults.run("cut")?;
        let size = self.file.size()?;
        self.file.set_len(len)?;
        self.faults.space(|space| space.cut(&self.name, size, len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.run("sync")?;
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_full(result: io::Result<()>) -> bool {
        result.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull)
    }

    #[test]
    fn the_planned_step_fails_as_planned() {
        let place = tempfile::tempdir().unwrap();
        let faults = FailurePlan::at_step(3, InjectedFailure::FailsHalfway);
        let disk = FailingDisk::new(place.path(), faults.clone());
        let file = disk.create("a").unwrap();
        file.write_at(b"first", 0).unwrap();
        assert!(file.write_at(b"second", 0).is_err());
        assert_eq!(disk.read("a").unwrap(), b"secst");
        assert_eq!((faults.steps(), faults.failed()), (3, BTreeSet::from(["write"])));
        faults.plan(|_, step| (step == "mapping").then_some(InjectedFailure::Full));
        file.write_at(b"third", 0).unwrap();
        assert!(is_full(disk.before("mapping")));
        faults.clear();
        disk.before("mapping").unwrap();
        assert!(faults.failed().is_empty());
    }

    #[test]
    fn a_disk_of_limited_size_gives_away_no_more_than_it_has_and_takes_it_back() {
        let place = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let disk = FailingDisk::new(place.path(), faults.clone());
        let before = disk.create("before").unwrap();
        before.write_at(&[1; 5_000], 0).unwrap();
        faults.limit(5 * BLOCK_BYTES + 100);
        assert_eq!(faults.free_bytes(), Some(5 * BLOCK_BYTES));

        before.write_at(&[2; 8_192], 0).unwrap(); // both of its blocks are allocated
        let file = disk.create("a").unwrap();
        file.write_at(&[3; 100], 6_000).unwrap();
        assert_eq!(
            faults.free_bytes(),
            Some(3 * BLOCK_BYTES),
            "a block for the name, a block that was touched"
        );
        assert!(is_full(file.reserve(8_192, 4 * BLOCK_BYTES)));
        assert_eq!((file.size().unwrap(), faults.free_bytes()), (6_100, Some(3 * BLOCK_BYTES)));
        file.reserve(8_192, 2 * BLOCK_BYTES).unwrap();
        assert!(is_full(file.write_at(&[4; 3 * 4_096], 4 * 4_096)), "two blocks more than there are");
        assert_eq!(file.size().unwrap(), 5 * 4_096, "what fits was written");
        assert_eq!(faults.free_bytes(), Some(0));
        file.write_at(&[5; 8_192], 8_192).unwrap(); // reserved
        assert!(is_full(disk.create("b").map(drop)) && is_full(disk.create_folder("c")));

        file.set_len(4_096).unwrap();
        assert_eq!(faults.free_bytes(), Some(4 * BLOCK_BYTES));
        file.set_len(1 << 20).unwrap();
        assert_eq!(faults.free_bytes(), Some(4 * BLOCK_BYTES), "a hole takes no space");
        disk.rename("a", "before").unwrap();
        assert_eq!(faults.free_bytes(), Some(7 * BLOCK_BYTES), "name and content of what was replaced");
        disk.remove("before").unwrap();
        assert_eq!(faults.free_bytes(), Some(8 * BLOCK_BYTES));
        faults.limit(0);
        assert!(is_full(disk.create("b").map(drop)));
        faults.limit(BLOCK_BYTES);
        disk.create("b").unwrap();
    }
}
