//! Putting a backup back: everything is copied beside its place and found to be what it was, and only then named.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use restante_core::{ErrorKind, Timestamp};

use super::{
    Manifest, Progress, Trouble, disk,
    place::{Move, Part, Place, absolute, plan},
    real_path,
    verify::compare,
};
use crate::config::Config;

/// The folder in a data folder in which a restore copies, until it is done.
const STAGE: &str = "restore.partial";
/// What the name of a place outside the data folder has behind it until its restore is done.
const STAGE_SUFFIX: &str = ".partial";
/// What a folder with such a name has in it when a restore has made it.
const MARK: &str = "RESTORE";
const MARK_TEXT: &str =
    "A restore copies here, and was not finished. The next one to the same place removes it.\n";
/// The copy in it.
const COPY: &str = "copy";
/// What the name of whatever was there before begins with, or has behind it.
const ASIDE: &str = "before-restore-";
/// What a disk has in its uppermost folder.
const OF_DISK: &str = "lost+found";

/// What was restored.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) taken_at: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) counts: BTreeMap<String, u64>,
    /// What a person should know of what was not restored.
    pub(crate) notes: Vec<String>,
    /// Where what was there before is now.
    pub(crate) aside: Vec<PathBuf>,
}

/// Restores a backup to where the settings want it. What is there already is in the way, or is moved aside when `is_forced`.
pub(crate) fn restore(
    config: &Config,
    backup: &Path,
    is_forced: bool,
    now: Timestamp,
    progress: Progress<'_>,
) -> Result<Restored, Trouble> {
    let manifest = Manifest::read(backup)?;
    let (moves, notes) = plan(&manifest, config)?;
    let (from, data) = (real_path(backup), real_path(&config.server.data_dir));
    if from.starts_with(&data) {
        let what = format!("{} lies in {}: move it elsewhere first", from.display(), data.display());
        return Err(Trouble::invalid(what));
    }
    let data = absolute(&config.server.data_dir);
    let restoring = Restoring { data: &data, backup, moves, places: config.places_of_parts() };
    restoring.check_unused()?;
    restoring.check_mounts()?;
    restoring.check_stages()?;
    let in_the_way = restoring.in_the_way()?;
    if !is_forced && let Some(first) = in_the_way.first() {
        let what = format!(
            "{} is there already: restore into an empty place, or have it moved aside with --force",
            first.display()
        );
        return Err(Trouble::invalid(what));
    }
    let was_halfway = restoring.stage().is_dir();
    restoring.prepare()?;
    let (files, bytes) = restoring.copy_all(progress).inspect_err(|_| restoring.give_up(was_halfway))?;
    // From here on the stage says that not everything is in its place, until everything is.
    let aside = restoring.move_aside(&in_the_way, now)?;
    restoring.put_in_place()?;
    restoring.forget_copies()?;
    disk::remove_all(&restoring.stage())?;
    disk::sync(restoring.data)?;
    let counts = manifest.counts();
    Ok(Restored { taken_at: manifest.taken_at, files, bytes, counts, notes, aside })
}

/// Fails when a restore into the data folder of the settings was not finished: what is there may be half of it.
pub(crate) fn check_not_halfway(config: &Config) -> Result<(), Trouble> {
    let stage = config.server.data_dir.join(STAGE);
    if fs::symlink_metadata(&stage).is_err() {
        return Ok(());
    }
    let mut what = format!(
        "a restore into {} was not finished: run it again with --force, or remove {} to begin with what is in its place",
        config.server.data_dir.display(),
        stage.display()
    );
    let aside: Vec<String> = moved_aside(config).iter().map(|path| path.display().to_string()).collect();
    if !aside.is_empty() {
        what.push_str(&format!("; what was there before is in {}", aside.join(", ")));
    }
    Err(Trouble::new(ErrorKind::Conflict, what))
}

/// What restores have moved aside, and nobody has removed since.
fn moved_aside(config: &Config) -> Vec<PathBuf> {
    let begin_with = |folder: &Path, begin: &str| -> Vec<PathBuf> {
        let names = disk::names(folder).unwrap_or_default().into_iter();
        names.filter(|name| name.starts_with(begin)).map(|name| folder.join(name)).collect()
    };
    let data = &config.server.data_dir;
    let mut found = begin_with(data, ASIDE);
    let outside = config.places().into_iter().filter(|place| !place.starts_with(absolute(data)));
    for place in outside {
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        found.extend(begin_with(disk::parent(&place), &format!("{name}.{ASIDE}")));
    }
    found
}

/// Its paths are absolute: so it can be told which places lie in the data folder.
struct Restoring<'a> {
    data: &'a Path,
    backup: &'a Path,
    moves: Vec<Move<'a>>,
    /// Where the settings have anything, whether it is in the backup or not: old data beside what is restored would be
    /// served with it.
    places: Vec<Place>,
}

impl Restoring<'_> {
    fn stage(&self) -> PathBuf {
        self.data.join(STAGE)
    }

    /// Where a part is copied: on the disk of its place.
    fn stage_of(&self, part: Part, place: &Place) -> PathBuf {
        if self.is_inside(place) {
            return self.stage().join(format!("{part:?}").to_ascii_lowercase());
        }
        outside_stage(place).join(COPY)
    }

    fn is_inside(&self, place: &Place) -> bool {
        place.path().starts_with(self.data)
    }

    /// The folders beside places outside the data folder in which a restore copies.
    fn outside_stages(&self) -> impl Iterator<Item = PathBuf> {
        let outside = self.moves.iter().filter(|each| !self.is_inside(&each.place));
        outside.map(|each| outside_stage(&each.place))
    }

    /// Fails when something has the name of such a folder that no restore has made.
    fn check_stages(&self) -> Result<(), Trouble> {
        for stage in self.outside_stages() {
            let Ok(metadata) = fs::symlink_metadata(&stage) else { continue };
            // A restore that is cut off before it has written its mark has written nothing else.
            let is_ours =
                metadata.is_dir() && (stage.join(MARK).is_file() || disk::names(&stage)?.is_empty());
            if !is_ours {
                let what = format!("{} is in the way: remove it, or move it elsewhere", stage.display());
                return Err(Trouble::invalid(what));
            }
        }
        Ok(())
    }

    /// Fails when a place is a disk of its own, or another one than that on which its copy is made: neither can it be moved
    /// aside, nor can a copy get its name. The data folder itself may be one.
    fn check_mounts(&self) -> Result<(), Trouble> {
        let inside = disk::names(self.data)?.into_iter().filter(|name| !is_of_others(name));
        let mut looked_at: Vec<PathBuf> = inside.map(|name| self.data.join(name)).collect();
        looked_at.extend(self.places.iter().map(|place| place.path().to_owned()));
        for path in looked_at.iter().filter(|path| *path != self.data) {
            let beside = if path.starts_with(self.data) { self.data } else { disk::parent(path) };
            // A link gets another name wherever it leads to.
            let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
            if !is_link && disk::mount_of(nearest(path)) != disk::mount_of(nearest(beside)) {
                let what = format!(
                    "{} is on another disk than {}, and can't be named at once: restore into a folder of that disk, and set \
                     its place to that",
                    path.display(),
                    beside.display()
                );
                return Err(Trouble::invalid(what));
            }
        }
        Ok(())
    }

    /// Fails when a process has something open where something is to be put.
    fn check_unused(&self) -> Result<(), Trouble> {
        for place in &self.places {
            let locks = match place {
                Place::Folder(folder) => {
                    let names = disk::names(folder).unwrap_or_default();
                    let locks =
                        names.into_iter().filter(|name| disk::is_lock(name)).map(|name| folder.join(name));
                    locks.collect()
                }
                Place::File(file) => vec![with_suffix(file, ".lock")],
                Place::Among(_) => Vec::new(),
            };
            for lock in locks {
                let Ok(file) = File::open(&lock) else { continue };
                if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                    let what = format!("{} is in use: stop the server first", place.path().display());
                    return Err(Trouble::new(ErrorKind::Conflict, what));
                }
            }
        }
        Ok(())
    }

    /// What is there where something is to be put: all of the data folder, and of the places outside.
    fn in_the_way(&self) -> Result<Vec<PathBuf>, Trouble> {
        let names = disk::names(self.data)?.into_iter().filter(|name| !is_of_others(name));
        let mut found: Vec<PathBuf> = names.map(|name| self.data.join(name)).collect();
        for place in self.places.iter().filter(|place| !self.is_inside(place)) {
            match place {
                Place::File(file) => {
                    let beside = ["", "-wal", "-shm", "-journal"].map(|suffix| with_suffix(file, suffix));
                    found.extend(beside.into_iter().filter(|path| fs::symlink_metadata(path).is_ok()));
                }
                Place::Folder(folder) | Place::Among(folder) => {
                    let Ok(metadata) = fs::symlink_metadata(folder) else { continue };
                    // Neither a file nor a link can be written over with a folder.
                    let is_used = !metadata.is_dir() || !disk::names(folder)?.is_empty();
                    found.extend(is_used.then(|| folder.clone()));
                }
            }
        }
        Ok(found)
    }

    /// Makes room for the copies, and removes what a restore has left that was not finished.
    fn prepare(&self) -> Result<(), Trouble> {
        make_folder(self.data)?;
        self.forget_copies()?;
        let bytes: u64 = self.moves.iter().flat_map(|each| &each.files).map(|(file, _)| file.bytes).sum();
        let free = disk::free_bytes(self.data)?;
        let is_all_below = self.moves.iter().all(|each| each.place.path().starts_with(self.data));
        if is_all_below && bytes > free {
            let what = format!(
                "the backup takes {bytes} bytes, and {free} are free on the disk of {}",
                self.data.display()
            );
            return Err(Trouble::new(ErrorKind::Full, what));
        }
        for stage in self.outside_stages() {
            make_folder(&stage)?;
            write_mark(&stage.join(MARK))?;
        }
        make_folder(&self.stage())
    }

    /// Copies every file and compares it with the manifest. Gives how many they were, and their bytes.
    fn copy_all(&self, progress: Progress<'_>) -> Result<(u64, u64), Trouble> {
        let all = self.moves.iter().flat_map(|each| &each.files);
        let (mut files, mut done) = (0, 0);
        let of_bytes = all.map(|(file, _)| file.bytes).sum();
        for each in &self.moves {
            let stage = self.stage_of(each.part, &each.place);
            for (file, path) in &each.files {
                let to = match each.place {
                    Place::File(_) => stage.clone(),
                    Place::Folder(_) | Place::Among(_) => stage.join(path),
                };
                make_folder(disk::parent(&to))?;
                let copied = disk::copy(&self.backup.join(&file.path), &to, |bytes| {
                    done += bytes;
                    progress(done, of_bytes);
                });
                // An error of the disk that is written to says nothing about the backup.
                let copied = compare(file, Ok(copied?));
                copied.map_err(|wrong| {
                    let what = format!("{} is damaged: {}: nothing was restored", wrong.path, wrong.what);
                    Trouble::new(ErrorKind::Corrupt, what)
                })?;
                files += 1;
            }
            sync_all(&stage)?;
        }
        Ok((files, done))
    }

    /// Moves what is in the way, and gives where to.
    fn move_aside(&self, in_the_way: &[PathBuf], now: Timestamp) -> Result<Vec<PathBuf>, Trouble> {
        if in_the_way.is_empty() {
            return Ok(Vec::new());
        }
        let name = format!("{ASIDE}{}", stamp(now));
        let (folder, mut aside) = (self.data.join(&name), Vec::new());
        for path in in_the_way {
            if path.starts_with(self.data) {
                make_folder(&folder)?;
                disk::rename(path, &folder.join(path.file_name().unwrap_or_default()))?;
            } else {
                let to = with_suffix(path, &format!(".{name}"));
                disk::rename(path, &to)?;
                aside.push(to);
            }
        }
        if folder.is_dir() {
            aside.insert(0, folder);
        }
        Ok(aside)
    }

    fn put_in_place(&self) -> Result<(), Trouble> {
        for each in &self.moves {
            let stage = self.stage_of(each.part, &each.place);
            make_folder(disk::parent(each.place.path()))?;
            match &each.place {
                Place::Folder(place) | Place::File(place) => disk::rename(&stage, place)?,
                Place::Among(folder) => {
                    for (_, path) in &each.files {
                        let to = folder.join(path);
                        make_folder(disk::parent(&to))?;
                        disk::rename(&stage.join(path), &to)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes copies that a restore has left which was not finished, and leaves the stage itself.
    fn forget_copies(&self) -> Result<(), Trouble> {
        for name in disk::names(&self.stage())? {
            disk::remove_all(&self.stage().join(name))?;
        }
        for stage in self.outside_stages().filter(|stage| stage.is_dir()) {
            // The mark goes last.
            disk::remove_all(&stage.join(COPY))?;
            disk::remove_all(&stage)?;
            disk::sync(disk::parent(&stage))?;
        }
        Ok(())
    }

    /// Leaves everything as it was before the copies were begun. What can't be removed now the next restore removes.
    fn give_up(&self, was_halfway: bool) {
        let _ = self.forget_copies();
        if !was_halfway {
            let _ = fs::remove_dir(self.stage());
        }
    }
}

/// Whether something in a data folder is left where it is.
fn is_of_others(name: &str) -> bool {
    name == STAGE || name == OF_DISK || name.starts_with(ASIDE)
}

fn outside_stage(place: &Place) -> PathBuf {
    with_suffix(place.path(), STAGE_SUFFIX)
}

fn write_mark(file: &Path) -> Result<(), Trouble> {
    let written = fs::write(file, MARK_TEXT).and_then(|()| File::open(file)?.sync_all());
    written.map_err(|error| Trouble::io("write", file, error))?;
    disk::sync(disk::parent(file))
}

/// The path itself, or what is there of those above it.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

/// Creates a folder and those above it, durably.
fn make_folder(folder: &Path) -> Result<(), Trouble> {
    let mut missing = Vec::new();
    let mut next = folder;
    while !next.is_dir() {
        missing.push(next);
        next = disk::parent(next);
    }
    for folder in missing.into_iter().rev() {
        fs::create_dir(folder).map_err(|error| Trouble::io("create", folder, error))?;
        disk::sync(disk::parent(folder))?;
    }
    Ok(())
}

/// Makes the names of everything that was copied durable.
fn sync_all(stage: &Path) -> Result<(), Trouble> {
    if !stage.is_dir() {
        return disk::sync(disk::parent(stage));
    }
    for folder in disk::walk(stage)?.folders.iter().rev() {
        disk::sync(folder)?;
    }
    disk::sync(stage)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// A moment as a part of a name: `20260131T120000Z`.
fn stamp(now: Timestamp) -> String {
    let mut stamp: String = now.to_string().chars().take(19).filter(|c| !matches!(c, '-' | ':')).collect();
    stamp.push('Z');
    stamp
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_can_stand_in_a_name() {
        assert_eq!(stamp(Timestamp::from_seconds(1_554_076_800)), "20190401T000000Z");
    }
}
