//! How each location of the settings is filled when a backup is restored: where the copy is made, which must be on the
//! location's own disk, since in the end it is only renamed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use restante_core::Error;

use super::{
    Layout,
    disk::{self, DiskSpace, Mount},
    location::{Location, Part, absolute},
    metrics::NOTE,
    real_path,
};

/// The folder in a data folder, or in a location that is a disk of its own, that a restore copies into until it is done.
pub(super) const STAGE: &str = "restore.partial";
/// The suffix of the name of a location outside the data folder until its restore is done.
const STAGE_SUFFIX: &str = ".partial";
/// The prefix of the name of content that was moved aside, or what follows the location's name in it.
pub(super) const ASIDE: &str = "before-restore-";
/// A folder that file systems create in their root.
pub const OF_DISK: &str = "lost+found";

/// Queries to the system. Tests answer them themselves: they have no disks to mount.
pub(super) struct Disks<'a> {
    pub(super) mount_of: &'a dyn Fn(&Path) -> Option<Mount>,
    pub(super) space: &'a dyn Fn(&Path) -> Result<DiskSpace, Error>,
}

impl Disks<'static> {
    pub(super) fn real() -> Self {
        Self { mount_of: &disk::mount_of, space: &disk::space }
    }
}

impl Disks<'_> {
    /// The mount of a path, or of its nearest existing parent.
    pub(super) fn mount_of(&self, path: &Path) -> Option<Mount> {
        (self.mount_of)(nearest(path))
    }

    /// Whether a path is a mount point. A link is not, wherever it leads.
    pub(super) fn is_root(&self, path: &Path) -> bool {
        let is_there = fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_symlink());
        is_there && self.mount_of(path) != self.mount_of(disk::parent(path))
    }
}

/// How a location is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is in the data folder, and copied into the stage of that.
    Within,
    /// It is elsewhere, and copied next to itself.
    Beside,
    /// It is the root of a disk, which can't be renamed: the copy is made inside it, and its files are moved.
    Disk,
}

/// A location of the settings.
#[derive(Clone, Debug)]
pub(super) struct RestoreTarget {
    pub(super) part: Part,
    pub(super) location: Location,
    pub(super) kind: Kind,
}

impl RestoreTarget {
    fn new(part: Part, location: Location, data: &Path, disks: &Disks<'_>) -> Result<Self, Error> {
        let path = location.path();
        let kind = match location {
            Location::Among(_) => Kind::Within,
            Location::File(_) if disks.is_root(path) => {
                let what = format!("{} is mounted by itself: name a file in a folder", path.display());
                return Err(Error::invalid(what));
            }
            Location::Folder(_) if disks.is_root(path) => Kind::Disk,
            _ => {
                let beside = disks.mount_of(disk::parent(path));
                let is_within = path.starts_with(data) && beside == disks.mount_of(data);
                if is_within { Kind::Within } else { Kind::Beside }
            }
        };
        Ok(Self { part, location, kind })
    }

    pub(super) fn path(&self) -> &Path {
        self.location.path()
    }

    /// The folder that a restore creates for this location alone, if there is one.
    pub(super) fn own_stage(&self) -> Option<PathBuf> {
        match self.kind {
            Kind::Within => None,
            Kind::Beside => Some(with_suffix(self.path(), STAGE_SUFFIX)),
            Kind::Disk => Some(self.path().join(STAGE)),
        }
    }

    /// The folder on whose disk it is copied.
    pub(super) fn copied_in<'a>(&'a self, data: &'a Path) -> &'a Path {
        match self.kind {
            Kind::Within => data,
            Kind::Beside => disk::parent(self.path()),
            Kind::Disk => self.path(),
        }
    }

    /// The owner of the location, for messages, and the setting that names it.
    fn named(&self) -> (&'static str, &'static str) {
        match self.part {
            Part::Files => ("data folder", "server.data_dir"),
            Part::Records => ("records", "records.url"),
            Part::Blobs => ("blobs", "blobs.url"),
            Part::Archive => ("archive", "archive.url"),
            Part::Spool => ("archive's spool", "archive.spool.dir"),
            Part::Second => ("second archive", "archive.tandem"),
            Part::SecondSpool => ("second archive's spool", "archive.spool.dir"),
        }
    }
}

/// All locations of the settings. Fails when they conflict with each other.
pub(super) fn targets(layout: &Layout, disks: &Disks<'_>) -> Result<Vec<RestoreTarget>, Error> {
    let data = layout.data();
    let mut targets = Vec::new();
    for (part, location) in layout.locations_of_parts() {
        targets.push(RestoreTarget::new(part, location, data, disks)?);
    }
    check_apart(&targets)?;
    check_names(&targets, data)?;
    check_links(&targets, data)?;
    Ok(targets)
}

/// Fails when a location is inside another one: neither could be moved aside, or be renamed, without the other. All may be
/// in the data folder, which must not be inside any.
fn check_apart(targets: &[RestoreTarget]) -> Result<(), Error> {
    for (number, inner) in targets.iter().enumerate() {
        for (other, outer) in targets.iter().enumerate() {
            let is_data = outer.part == Part::Files;
            let (inside, around) = (real_location(inner.path()), real_location(outer.path()));
            if number == other || !inside.starts_with(&around) || (is_data && inside != around) {
                continue;
            }
            let ((name, key), (around_name, around_key)) = (inner.named(), outer.named());
            let relation = if inside == around { "is also that" } else { "lies in that" };
            let what = format!(
                "the place of the {name}, {}, {relation} of the {around_name}, {}: give each a folder of its own ({key}, \
                 {around_key})",
                inner.path().display(),
                outer.path().display()
            );
            return Err(Error::invalid(what));
        }
    }
    Ok(())
}

/// Fails when a location has a name that a restore gives to its own folders.
fn check_names(targets: &[RestoreTarget], data: &Path) -> Result<(), Error> {
    for target in targets {
        let below = target.path().strip_prefix(data).ok().and_then(|path| path.iter().next());
        let is_ours = below.is_some_and(|name| is_of_others(&name.to_string_lossy()));
        let is_in_stage =
            |other: &RestoreTarget| other.own_stage().is_some_and(|stage| target.path().starts_with(stage));
        if is_ours || targets.iter().any(is_in_stage) {
            let (name, key) = target.named();
            let what = format!(
                "the place of the {name}, {}, has a name that a restore needs for itself: set {key} to another one",
                target.path().display()
            );
            return Err(Error::invalid(what));
        }
    }
    Ok(())
}

/// Fails when a location is a link, or is reached through one in the data folder: the link would be moved aside, and the restored
/// files would not be stored at its target. The data folder itself may be a link to a folder.
fn check_links(targets: &[RestoreTarget], data: &Path) -> Result<(), Error> {
    if data.is_symlink() && !data.is_dir() {
        let what = format!(
            "the data folder {} is a link that leads to no folder: make one, or set server.data_dir",
            data.display()
        );
        return Err(Error::invalid(what));
    }
    for target in targets.iter().filter(|target| target.part != Part::Files) {
        let is_below = |path: &&Path| *path != data && path.starts_with(data);
        let above = target.path().ancestors().skip(1).take_while(is_below);
        let Some(link) = std::iter::once(target.path()).chain(above).find(|path| path.is_symlink()) else {
            continue;
        };
        let (name, key) = target.named();
        let what = format!(
            "the place of the {name}, {}, is a link or below a link, {}: set {key} to the folder that it leads to",
            target.path().display(),
            link.display()
        );
        return Err(Error::invalid(what));
    }
    Ok(())
}

/// Fails when the backup would be moved aside, or overwritten.
pub(super) fn check_outside(backup: &Path, targets: &[RestoreTarget]) -> Result<(), Error> {
    let from = real_path(backup);
    for target in targets {
        let to = real_location(target.path());
        let (inner, outer) = match () {
            () if from.starts_with(&to) => (&from, &to),
            () if to.starts_with(&from) => (&to, &from),
            () => continue,
        };
        let what = format!(
            "{} lies in {}: a backup must lie apart from where it is restored",
            inner.display(),
            outer.display()
        );
        return Err(Error::invalid(what));
    }
    Ok(())
}

/// Fails when a disk has less space than its copies need.
pub(super) fn check_space(wanted: &[(&Path, u64)], disks: &Disks<'_>) -> Result<(), Error> {
    let mut by_disk: Vec<(Option<Mount>, &Path, u64)> = Vec::new();
    for (folder, bytes) in wanted {
        let mount = disks.mount_of(folder);
        let is_same = |known: &Option<Mount>| match (known, &mount) {
            (Some(known), Some(mount)) => known.is_same_disk(mount),
            _ => false,
        };
        match by_disk.iter_mut().find(|(known, ..)| is_same(known)) {
            Some((_, _, sum)) => *sum = sum.saturating_add(*bytes),
            None => by_disk.push((mount, folder, *bytes)),
        }
    }
    for (_, folder, bytes) in by_disk {
        let free = (disks.space)(nearest(folder))?.free_bytes;
        if bytes > free {
            let what = format!(
                "what is restored takes {bytes} bytes on the disk of {}, and {free} are free: make room there, or name places on \
                 another disk",
                folder.display()
            );
            return Err(Error::full(what));
        }
    }
    Ok(())
}

/// Fails when an entry of the data folder can't be moved aside: a disk is mounted at it, or inside it.
pub(super) fn check_movable(
    entry: &Path,
    data: &Path,
    targets: &[RestoreTarget],
    disks: &Disks<'_>,
) -> Result<bool, Error> {
    let is_mount = disks.is_root(entry);
    let is_other = |target: &&RestoreTarget| target.kind != Kind::Within && target.path().starts_with(entry);
    let other = targets.iter().find(is_other);
    match (is_mount, other) {
        (false, None) => Ok(true),
        // Its content is handled with the location.
        (true, Some(_)) => Ok(false),
        (true, None) => {
            let what = format!(
                "{} is another disk than {}, and no place of the settings is on it: unmount it, or restore into another folder",
                entry.display(),
                data.display()
            );
            Err(Error::invalid(what))
        }
        (false, Some(target)) => {
            let what = format!(
                "{} is on another disk than {}, in which it lies, so that this can't be moved aside: name a place elsewhere, or \
                 mount the disk there",
                target.path().display(),
                entry.display()
            );
            Err(Error::invalid(what))
        }
    }
}

/// Whether an entry of a data folder, or of a location that is a disk, is left where it is.
pub(super) fn is_of_others(name: &str) -> bool {
    name == STAGE || name == OF_DISK || name == NOTE || name.starts_with(ASIDE)
}

/// The path itself, or its nearest existing parent.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(path)
}

/// The canonical path of a location, even if it does not exist yet.
fn real_location(path: &Path) -> PathBuf {
    let path = absolute(path);
    let there = nearest(&path);
    match path.strip_prefix(there) {
        Ok(rest) if !rest.as_os_str().is_empty() => real_path(there).join(rest),
        _ => real_path(&path),
    }
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

#[cfg(test)]
mod tests;
