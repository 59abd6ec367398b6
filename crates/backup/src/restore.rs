//! Restoring a backup: everything is copied next to its destination and compared with the manifest, and only then renamed.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use restante_core::{Error, Timestamp};

use super::{
    Layout, Manifest, Progress, check_pages,
    disk::{self, Beneath},
    location::{Location, Part, plan},
    manifest::FileEntry,
    target::{
        ASIDE, Disks, Kind, RestoreTarget, STAGE, check_movable, check_outside, check_space, is_of_others,
        targets, with_suffix,
    },
    verify::compare,
};

/// A file in each folder that a restore copies into; the restore that runs has locked it.
const MARK: &str = "RESTORE";
const MARK_TEXT: &str =
    "A restore copies here, or was not finished. The next one to the same place removes it.\n";
/// How often locking is tried in a folder that another restore has just removed.
const LOCK_TRIES: u32 = 8;
/// The copy in that folder.
const COPY: &str = "copy";

/// The modes of restored files, regardless of their modes in the backup: somebody else's backup must not decide
/// about access rights.
const FILE_MODE: u32 = 0o640;
const KEY_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o750;

/// How a backup is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions {
    /// Existing content is moved aside instead of causing an error.
    pub is_forced: bool,
    /// The node's key is restored, too, so that the server is the same node as the one that was backed up.
    pub keep_node_key: bool,
}

/// The outcome of a restore.
#[derive(Debug)]
pub struct Restored {
    /// When the backup was begun.
    pub taken_at: String,
    /// The number of the files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The counted contents of these files: messages, records, blobs.
    pub counts: BTreeMap<String, u64>,
    /// Notes for the operator about what was not restored.
    pub notes: Vec<String>,
    /// The new paths of the former content.
    pub aside: Vec<PathBuf>,
    /// The node's key in the backup, which was not restored.
    pub key_left: Option<PathBuf>,
}

/// Restores a backup to the locations of a layout.
///
/// # Errors
/// `Invalid` when something exists already, or a location can't be restored to, with what to do; `Conflict` when a server uses
/// it; `NotFound` and `Corrupt` of the backup; `Full` when a disk has not enough space. Nothing has changed before the first
/// rename; after a failed rename [`check_not_halfway`] fails.
pub fn restore(
    layout: &Layout,
    backup: &Path,
    options: RestoreOptions,
    now: Timestamp,
    progress: Progress<'_>,
) -> Result<Restored, Error> {
    restore_on(&Disks::real(), layout, backup, options, now, progress)
}

/// The same, with simulated disks for tests.
fn restore_on(
    disks: &Disks<'_>,
    layout: &Layout,
    backup: &Path,
    options: RestoreOptions,
    now: Timestamp,
    progress: Progress<'_>,
) -> Result<Restored, Error> {
    let manifest = Manifest::read(backup)?;
    let (mut moves, mut notes) = plan(&manifest, layout)?;
    let mut key_left = None;
    if !options.keep_node_key {
        for files in moves.iter_mut().filter(|each| each.part == Part::Files) {
            let key = files.files.extract_if(.., |(_, path)| layout.is_node_key(path)).next();
            key_left = key_left.or(key.map(|(file, _)| backup.join(&file.path)));
        }
    }
    let targets = targets(layout, disks)?;
    check_outside(backup, &targets)?;
    let target_of = |part| targets.iter().find(|target| target.part == part);
    let fills =
        moves.into_iter().filter_map(|each| Some(Fill { target: target_of(each.part)?, files: each.files }));
    let source = Beneath::open(backup)?;
    let restoring = Restoring {
        disks,
        layout,
        data: layout.data(),
        backup: source,
        fills: fills.collect(),
        targets: &targets,
    };
    restoring.check_alone()?;
    let _stores = restoring.lock_stores()?;
    restoring.check_stages()?;
    let in_the_way = restoring.in_the_way()?;
    if !options.is_forced
        && let Some(first) = in_the_way.first()
    {
        let what = format!(
            "{} is there already: restore into an empty place, or have it moved aside with --force",
            first.path.display()
        );
        return Err(Error::invalid(what));
    }
    // Otherwise the files of an unfinished restore are removed first, which frees their space for this one.
    if restoring.stages().all(|(stage, _)| !stage.exists()) {
        restoring.check_space()?;
    }
    let (_stages, was_halfway) = restoring.lock_stages()?;
    let copied = restoring.copy_all(progress);
    let copied = copied.and_then(|copied| restoring.check_unchanged(&in_the_way).map(|()| copied));
    let (files, bytes) = copied.inspect_err(|_| restoring.give_up(was_halfway))?;
    // From here on the stage shows that the restore is not complete, until everything is in its place.
    let aside = restoring.move_aside(&in_the_way, now)?;
    restoring.put_in_place()?;
    restoring.stages().try_for_each(|(stage, _)| remove_stage(&stage))?;
    notes.extend(missing_secrets(&manifest, layout));
    let counts = manifest.counts();
    Ok(Restored { taken_at: manifest.taken_at, files, bytes, counts, notes, aside, key_left })
}

/// What to do when the key that seals secrets in the restored records is missing.
fn missing_secrets(manifest: &Manifest, layout: &Layout) -> Option<String> {
    let file = layout.secrets().filter(|file| manifest.secrets_left_out && !file.exists())?;
    Some(format!(
        "{} is missing, and backups don't have it: put your copy of it there, with mode 0600, before the first start; without it mail of \
         domains with DKIM keys is not sent",
        file.display()
    ))
}

/// Fails while a restore into the data folder runs, and when one was not finished: the data may be half of a backup.
///
/// # Errors
/// `Conflict`.
pub fn check_not_halfway(layout: &Layout) -> Result<(), Error> {
    let stage = layout.data().join(STAGE);
    if fs::symlink_metadata(&stage).is_err() {
        return Ok(());
    }
    check_not_running(&stage, layout.data())?;
    let mut what = format!(
        "a restore into {} was not finished: run it again with --force, or remove {} to begin with what is in its place",
        layout.data().display(),
        stage.display()
    );
    let aside: Vec<String> = moved_aside(layout).iter().map(|path| path.display().to_string()).collect();
    if !aside.is_empty() {
        what.push_str(&format!("; what was there before is in {}", aside.join(", ")));
    }
    Err(Error::conflict(what))
}

/// Content that restores have moved aside, and that nobody has removed since.
fn moved_aside(layout: &Layout) -> Vec<PathBuf> {
    let begin_with = |folder: &Path, begin: &str| -> Vec<PathBuf> {
        let names = disk::names(folder).unwrap_or_default().into_iter();
        names.filter(|name| name.starts_with(begin)).map(|name| folder.join(name)).collect()
    };
    let data = layout.data();
    let mut found = begin_with(data, ASIDE);
    for location in layout.locations().into_iter().filter(|location| location != data) {
        let name = location.file_name().unwrap_or_default().to_string_lossy();
        found.extend(begin_with(disk::parent(&location), &format!("{name}.{ASIDE}")));
        found.extend(begin_with(&location, ASIDE)); // a location that is a disk
    }
    found
}

/// A part of the backup, and its destination.
struct Fill<'a> {
    target: &'a RestoreTarget,
    /// Each file, and its path in the part.
    files: Vec<(&'a FileEntry, &'a str)>,
}

/// Existing content at a location that is to be restored.
#[derive(PartialEq)]
struct Obstacle {
    path: PathBuf,
    /// The folder into which it is moved aside; `None` when it stays in its folder, under another name.
    aside_in: Option<PathBuf>,
}

impl Obstacle {
    /// The path to which it is moved aside under a name: a folder for it and others, or its own new path.
    fn aside(&self, name: &str) -> PathBuf {
        match &self.aside_in {
            Some(folder) => folder.join(name),
            None => with_suffix(&self.path, &format!(".{name}")),
        }
    }
}

/// The most restores within one second: a number distinguishes the names of what they move aside.
const ASIDE_NAMES_MAX: usize = 10_000;

/// Its paths are absolute, so that they can be compared with the data folder.
struct Restoring<'a> {
    disks: &'a Disks<'a>,
    layout: &'a Layout,
    data: &'a Path,
    backup: Beneath,
    fills: Vec<Fill<'a>>,
    /// All locations of the settings, even those without a part in the backup: old data next to what is restored would
    /// be served with it.
    targets: &'a [RestoreTarget],
}

impl Restoring<'_> {
    fn stage(&self) -> PathBuf {
        self.data.join(STAGE)
    }

    /// The folder into which a part is copied: on the disk of its location.
    fn stage_of(&self, target: &RestoreTarget) -> PathBuf {
        match target.own_stage() {
            Some(stage) => stage.join(COPY),
            None => self.stage().join(format!("{:?}", target.part).to_ascii_lowercase()),
        }
    }

    /// All folders that a restore copies into, each with the location that it is for. That of the data folder is the last.
    fn stages(&self) -> impl Iterator<Item = (PathBuf, &Path)> {
        let own = self.fills.iter().filter_map(|fill| Some((fill.target.own_stage()?, fill.target.path())));
        own.chain(std::iter::once((self.stage(), self.data)))
    }

    /// Fails when another restore into one of the locations is running.
    fn check_alone(&self) -> Result<(), Error> {
        self.stages().try_for_each(|(stage, place)| check_not_running(&stage, place))
    }

    /// Keeps other restores away until the files are closed. Also returns whether a restore into the data folder was not
    /// finished.
    fn lock_stages(&self) -> Result<(Vec<File>, bool), Error> {
        let (mut locks, mut was_halfway) = (Vec::new(), false);
        for (stage, place) in self.stages() {
            let locked = lock_stage(&stage, place);
            let (lock, was_there) = locked.inspect_err(|_| {
                // What can't be removed now is removed by the next restore.
                self.stages().take(locks.len()).for_each(|(stage, _)| drop(remove_stage(&stage)));
            })?;
            was_halfway |= was_there && place == self.data;
            locks.push(lock);
        }
        Ok((locks, was_halfway))
    }

    /// Fails when something that no restore has created has the name of such a folder, or that folder can't be used.
    fn check_stages(&self) -> Result<(), Error> {
        for (stage, place) in self.stages() {
            let Ok(metadata) = fs::symlink_metadata(&stage) else { continue };
            // A restore that is cut off before it has written its mark has written nothing else.
            let is_marked =
                place == self.data || stage.join(MARK).is_file() || disk::names(&stage)?.is_empty();
            if !metadata.is_dir() || !is_marked || self.disks.is_root(&stage) {
                let what = format!("{} is in the way: remove it, or move it elsewhere", stage.display());
                return Err(Error::invalid(what));
            }
        }
        Ok(())
    }

    /// Keeps the engines away from the existing stores until the files are closed. Fails when a process has one open.
    fn lock_stores(&self) -> Result<Vec<File>, Error> {
        let mut held = Vec::new();
        for RestoreTarget { location, .. } in self.targets {
            let locks = match location {
                Location::Folder(folder) => {
                    let names = disk::names(folder).unwrap_or_default();
                    let locks =
                        names.into_iter().filter(|name| disk::is_lock(name)).map(|name| folder.join(name));
                    locks.collect()
                }
                Location::File(file) => vec![with_suffix(file, ".lock")],
                Location::Among(_) => Vec::new(),
            };
            for lock in locks {
                let Ok(file) = File::open(&lock) else { continue };
                if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                    let what = format!("{} is in use: stop the server first", location.path().display());
                    return Err(Error::conflict(what));
                }
                held.push(file);
            }
        }
        Ok(held)
    }

    /// Existing content that is in the way: all of the data folder, and of the locations outside.
    fn in_the_way(&self) -> Result<Vec<Obstacle>, Error> {
        let mut found = Vec::new();
        for path in entries(self.data)? {
            if self.layout.secrets() == Some(&*path) {
                continue; // no backup contains it: it stays, and may have been restored by hand
            }
            if check_movable(&path, self.data, self.targets, self.disks)? {
                found.push(Obstacle { path, aside_in: Some(self.data.to_owned()) });
            }
        }
        for target in self.targets {
            match target.kind {
                Kind::Within => {}
                Kind::Beside => {
                    let beside = beside_itself(&target.location)?.into_iter();
                    found.extend(beside.map(|path| Obstacle { path, aside_in: None }));
                }
                Kind::Disk => {
                    let aside_in = Some(target.path().to_owned());
                    let entries = entries(target.path())?.into_iter();
                    found.extend(entries.map(|path| Obstacle { path, aside_in: aside_in.clone() }));
                }
            }
        }
        if let Some(Obstacle { path, .. }) = found.iter().find(|each| self.disks.is_root(&each.path)) {
            let what = format!(
                "something is mounted at {}, so that it can't be moved aside: unmount it",
                path.display()
            );
            return Err(Error::invalid(what));
        }
        Ok(found)
    }

    /// Fails when the existing content has changed since the copies were begun: then a server was started meanwhile.
    fn check_unchanged(&self, in_the_way: &[Obstacle]) -> Result<(), Error> {
        let found = self.in_the_way()?;
        let Some(new) = found.iter().find(|each| !in_the_way.contains(each)) else { return Ok(()) };
        Err(Error::conflict(format!(
            "{} has appeared while the backup was copied: stop what has made it, and restore again; nothing was restored",
            new.path.display()
        )))
    }

    /// Fails when a disk has too little space for the copies.
    fn check_space(&self) -> Result<(), Error> {
        let bytes_of = |fill: &Fill<'_>| bytes_of(fill.files.iter().map(|(file, _)| *file));
        let wanted: Vec<(&Path, u64)> =
            self.fills.iter().map(|fill| (fill.target.copied_in(self.data), bytes_of(fill))).collect();
        check_space(&wanted, self.disks)
    }

    /// Copies every file and compares it with the manifest, after the rest of an unfinished restore was removed. Returns the
    /// number of files, and their bytes.
    fn copy_all(&self, progress: Progress<'_>) -> Result<(u64, u64), Error> {
        let all = self.fills.iter().flat_map(|fill| &fill.files);
        self.stages().try_for_each(|(stage, _)| forget_copies(&stage))?;
        self.check_space()?;
        let (mut files, mut done) = (0, 0);
        let of_bytes = bytes_of(all.map(|(file, _)| *file));
        for Fill { target, files: of_part } in &self.fills {
            let stage = self.stage_of(target);
            for (file, path) in of_part {
                let (folder, name) =
                    match (&target.location, stage.file_name().and_then(|name| name.to_str())) {
                        (Location::File(_), Some(name)) => (disk::parent(&stage), name),
                        _ => (&*stage, *path),
                    };
                make_folder(disk::parent(&folder.join(name)))?;
                self.copy(file, target.part, path, (&Beneath::open(folder)?, name), |bytes| {
                    done += bytes;
                    progress(done, of_bytes);
                })?;
                files += 1;
            }
            sync_all(&stage)?;
        }
        Ok((files, done))
    }

    /// Copies a file of a part to a name in a folder, and compares it with the manifest.
    fn copy(
        &self,
        file: &FileEntry,
        part: Part,
        path: &str,
        (folder, name): (&Beneath, &str),
        mut each: impl FnMut(u64),
    ) -> Result<(), Error> {
        let damaged = |what: &str| {
            let what = format!(
                "{} is damaged: {what}: nothing was restored: `restante backup check` names all that is damaged, another backup \
                 may be whole",
                file.path
            );
            Error::corrupt(what)
        };
        let from = self.backup.file(&file.path);
        let from = from.map_err(|error| Error::io("read", self.backup.path(&file.path).display(), error))?;
        let is_key = part == Part::Files && self.layout.is_node_key(path);
        let (to, mode) = (folder.path(name), if is_key { KEY_MODE } else { FILE_MODE });
        let created = folder.create(name, mode);
        let mut created = created.map_err(|error| Error::io("create", to.display(), error))?;
        // A write error of the target disk is not a defect of the backup.
        let copied = disk::copy_into(&from, file.bytes, &mut created, &to, |bytes| {
            each(bytes);
            Ok(())
        })?;
        compare(file, Ok(copied)).map_err(|wrong| damaged(&wrong.what))?;
        let copy = folder.file(name).map_err(|error| Error::io("read", to.display(), error))?;
        check_pages(part, path, &copy).map_err(|error| damaged(&error.to_string()))
    }

    /// Moves existing content aside, and returns the new paths.
    fn move_aside(&self, in_the_way: &[Obstacle], now: Timestamp) -> Result<Vec<PathBuf>, Error> {
        let name = unused_name(in_the_way, now);
        let mut aside: Vec<PathBuf> = Vec::new();
        for obstacle in in_the_way {
            let Obstacle { path, aside_in } = obstacle;
            let to = obstacle.aside(&name);
            if aside_in.is_none() {
                disk::rename(path, &to)?;
                aside.push(to);
                continue;
            }
            let folder = to;
            make_folder(&folder)?;
            disk::rename(path, &folder.join(path.file_name().unwrap_or_default()))?;
            if !aside.contains(&folder) {
                aside.push(folder);
            }
        }
        Ok(aside)
    }

    fn put_in_place(&self) -> Result<(), Error> {
        for Fill { target, files } in &self.fills {
            let (stage, location) = (self.stage_of(target), target.path());
            make_folder(disk::parent(location))?;
            match &target.location {
                Location::Among(folder) => {
                    for (_, path) in files {
                        let to = folder.join(path);
                        make_folder(disk::parent(&to))?;
                        disk::rename(&stage.join(path), &to)?;
                    }
                }
                Location::Folder(_) if target.kind == Kind::Disk => {
                    for name in disk::names(&stage)? {
                        disk::rename(&stage.join(&name), &location.join(&name))?;
                    }
                }
                Location::Folder(_) | Location::File(_) => disk::rename(&stage, location)?,
            }
        }
        Ok(())
    }

    /// Leaves everything as it was before the copies were begun. What can't be removed now the next restore removes.
    fn give_up(&self, was_halfway: bool) {
        for (stage, place) in self.stages() {
            let is_kept = was_halfway && place == self.data;
            let _ = if is_kept { forget_copies(&stage) } else { remove_stage(&stage) };
        }
    }
}

fn bytes_of<'f>(files: impl Iterator<Item = &'f FileEntry>) -> u64 {
    files.fold(0, |sum, file| sum.saturating_add(file.bytes))
}

/// The entries of a folder that a restore may fill.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let names = disk::names(folder)?.into_iter().filter(|name| !is_of_others(name));
    Ok(names.map(|name| folder.join(name)).collect())
}

/// The files at a location, with those that belong to them.
fn beside_itself(location: &Location) -> Result<Vec<PathBuf>, Error> {
    let is_there = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    match location {
        Location::File(file) => {
            let all = ["", "-wal", "-shm", "-journal"].map(|suffix| with_suffix(file, suffix));
            Ok(all.into_iter().filter(is_there).collect())
        }
        Location::Folder(folder) | Location::Among(folder) => {
            let Ok(metadata) = fs::symlink_metadata(folder) else { return Ok(Vec::new()) };
            // A folder can't replace a file or a link.
            let is_used = !metadata.is_dir() || !disk::names(folder)?.is_empty();
            Ok(if is_used { vec![folder.clone()] } else { Vec::new() })
        }
    }
}

/// Removes the copies in a folder, but not its mark.
fn forget_copies(stage: &Path) -> Result<(), Error> {
    let mut names = disk::names(stage)?.into_iter().filter(|name| name != MARK);
    names.try_for_each(|name| disk::remove_all(&stage.join(name)))
}

/// Removes a folder that copies were made in, the mark last: without it, it would be unknown whose folder it is.
fn remove_stage(stage: &Path) -> Result<(), Error> {
    forget_copies(stage)?;
    disk::remove_all(stage)?;
    disk::sync(disk::parent(stage))
}

/// Creates the folder that a restore copies a location's content into, and locks its mark. Also returns whether it existed.
fn lock_stage(stage: &Path, place: &Path) -> Result<(File, bool), Error> {
    let mark = stage.join(MARK);
    let failed = |error| Error::io("write", mark.display(), error);
    for _ in 0..LOCK_TRIES {
        let was_there = stage.is_dir();
        make_folder(stage)?;
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&mark);
        let mut file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // the folder was removed meanwhile
            opened => opened.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(is_running(place)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The restore that had locked it may have removed it since, with its folder.
        if is_at(&file, &mark) {
            file.write_all(MARK_TEXT.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            disk::sync(stage)?;
            return Ok((file, was_there));
        }
    }
    Err(is_running(place))
}

/// Whether a path leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: io::Result<fs::Metadata>| metadata.map(|file| (file.dev(), file.ino())).ok();
    let own = identity(file.metadata());
    own.is_some() && own == identity(fs::symlink_metadata(path))
}

/// Fails when a restore has locked the folder that it copies a location's content into.
fn check_not_running(stage: &Path, place: &Path) -> Result<(), Error> {
    let Ok(mark) = File::open(stage.join(MARK)) else { return Ok(()) };
    match mark.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(is_running(place)),
        _ => Ok(()),
    }
}

fn is_running(place: &Path) -> Error {
    Error::conflict(format!("a restore into {} is running: wait until it is done", place.display()))
}

/// Creates a folder and its parents, durably.
fn make_folder(folder: &Path) -> Result<(), Error> {
    let mut missing = Vec::new();
    let mut next = folder;
    while !next.is_dir() {
        missing.push(next);
        next = disk::parent(next);
    }
    for folder in missing.into_iter().rev() {
        let created = DirBuilder::new().mode(FOLDER_MODE).create(folder);
        created.map_err(|error| Error::io("create", folder.display(), error))?;
        disk::sync(disk::parent(folder))?;
    }
    Ok(())
}

/// Makes the names of all copied files durable.
fn sync_all(stage: &Path) -> Result<(), Error> {
    if !stage.is_dir() {
        return disk::sync(disk::parent(stage));
    }
    for folder in disk::walk(stage)?.folders.iter().rev() {
        disk::sync(folder)?;
    }
    disk::sync(stage)
}

/// The name under which everything is moved aside: it is unused at every location, so that content that an earlier restore has
/// moved aside is not replaced.
fn unused_name(in_the_way: &[Obstacle], now: Timestamp) -> String {
    let first = format!("{ASIDE}{}", stamp(now));
    let is_unused =
        |name: &String| in_the_way.iter().all(|obstacle| obstacle.aside(name).symlink_metadata().is_err());
    let further = (2..ASIDE_NAMES_MAX).map(|number| format!("{first}-{number}"));
    std::iter::once(first.clone()).chain(further).find(is_unused).unwrap_or(first)
}

/// A moment as a part of a name: `20260131T120000Z`.
fn stamp(now: Timestamp) -> String {
    let mut stamp: String = now.to_string().chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    stamp.push('Z');
    stamp
}

#[cfg(test)]
mod tests;
