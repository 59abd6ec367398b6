//! Taking a backup: check, copy, sync and hash, write the manifest, rename.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    future::Future,
    io::Write,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use restante_core::{Error, Timestamp};
use tokio::{
    sync::MutexGuard,
    time::{Instant, Interval, MissedTickBehavior, interval, timeout},
};
use tracing::{info, warn};

use super::{
    Event, EventSender, Manifest, Sources, Summary, blocking, disk,
    layout::{Copied, Store},
    location::{Part, is_restored},
    manifest::{self, FileEntry, Role, RoleEntry},
    metrics::Last,
    source::real_path,
};

/// The suffix of the name of a folder until its backup is finished.
const PARTIAL_SUFFIX: &str = ".partial";
/// A file in the folder that marks it as unfinished.
const MARK: &str = "UNFINISHED";
const MARK_TEXT: &str =
    "This backup is being taken, or was not finished. The next one to the same place removes it.\n";
/// The settings file.
pub(super) const SETTINGS: &str = "settings.toml";
/// How often the progress of a copy is reported. Each report walks through the folder.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait for the end of a copy that is given up, before its folder is removed once more.
const GIVEN_UP_WAIT: Duration = Duration::from_secs(1);
/// How often the removal of a folder is tried in which files are still being created.
const REMOVALS_MAX: u32 = 100;
/// The least space that is left free: for the list of files, and for copies that are longer than estimated.
const SPARE_BYTES: u64 = 16 << 20;
/// The space that is left free on a disk that the server writes to, unless the copies need less: this, or a twentieth of the
/// disk, whichever is more. A backup that fills the disk would stop the server.
const RESERVE_BYTES: u64 = 1 << 30;
const RESERVE_SHARE: u64 = 20;

/// Takes a backup into a folder, which must be empty or not exist. The client receives its events, and stops it by
/// disconnecting.
///
/// # Errors
/// `Invalid`, `NotFound` and `Conflict` when no backup can be made in the folder, with what to do; `Full` when its disk has not
/// enough space; `Unavailable` when it was stopped; those of the stores. After an error nothing of it is left.
pub async fn take(sources: Arc<Sources>, folder: PathBuf, sender: EventSender) -> Result<Summary, Error> {
    let taking = Taking::begin(sources, folder).await?;
    taking.finish(&sender).await
}

/// A backup that can be taken: its location was checked, and there is enough space.
pub(crate) struct Taking {
    sources: Arc<Sources>,
    folder: PathBuf,
    partial: PathBuf,
    copy_bytes: u64,
    /// The length of each store's copy, in their order.
    role_bytes: Vec<u64>,
    free_bytes: u64,
    reserve_bytes: u64,
    counts: BTreeMap<Role, BTreeMap<String, u64>>,
}

impl Taking {
    /// Checks whether the backup can be taken.
    pub(crate) async fn begin(sources: Arc<Sources>, folder: PathBuf) -> Result<Self, Error> {
        let (location, locations) = (folder.clone(), sources.layout.locations());
        let partial = blocking(move || check_location(&location, &locations)).await?;
        let mount = disk::mount_of(disk::parent(&folder));
        let (mut counts, mut role_bytes) = (BTreeMap::new(), Vec::new());
        for store in sources.layout.stores() {
            let holding = store.holding(mount).await?;
            counts.insert(store.role, holding.counts);
            role_bytes.push(holding.copy_bytes);
        }
        let copy_bytes = sum(&role_bytes);
        let space = disk::space(disk::parent(&folder))?;
        let is_shared = sources
            .layout
            .locations()
            .iter()
            .any(|location| disk::is_same_disk(location, disk::parent(&folder)));
        let reserve_bytes = reserve(is_shared.then_some(space.all_bytes), copy_bytes);
        check_space(&folder, copy_bytes, reserve_bytes, space.free_bytes)?;
        let free_bytes = space.free_bytes;
        Ok(Self { sources, folder, partial, copy_bytes, role_bytes, free_bytes, reserve_bytes, counts })
    }

    /// Takes the backup. After an error the copies are removed.
    pub(crate) async fn finish(self, sender: &EventSender) -> Result<Summary, Error> {
        let (taken_at, begun) = (self.sources.clock.now(), Instant::now());
        let (bytes, free_bytes) = (self.copy_bytes, self.free_bytes);
        sender.say(Event::Begun { folder: self.folder.clone(), bytes, free_bytes }).await;
        let finished = self.copy_and_name(taken_at, sender).await;
        match &finished {
            Ok(summary) => {
                info!(folder = %self.folder.display(), files = summary.files, bytes = summary.bytes, "backup taken");
                let last = Last::new(taken_at, begun.elapsed(), summary.bytes);
                let (metrics, data) = (self.sources.metrics.clone(), self.sources.data.clone());
                let noted = move || {
                    metrics.done(&last, &data); // which logs its own errors
                    Ok(())
                };
                let _ = blocking(noted).await;
            }
            Err(error) => {
                warn!(%error, folder = %self.folder.display(), "no backup was taken");
                self.sources.metrics.failed();
                if let Err(error) = self.remove().await {
                    warn!(%error, "what was copied is left: the next backup to the same place removes it");
                }
            }
        }
        finished
    }

    /// Removes the copies, though a copy that was given up may still be creating files.
    async fn remove(&self) -> Result<(), Error> {
        let partial = self.partial.clone();
        blocking(move || {
            let mut removed = disk::remove_all(&partial);
            for _ in 1..REMOVALS_MAX {
                if removed.is_ok() {
                    break;
                }
                removed = disk::remove_all(&partial);
            }
            removed
        })
        .await
    }

    async fn copy_and_name(&self, taken_at: Timestamp, sender: &EventSender) -> Result<Summary, Error> {
        let (sources, partial) = (self.sources.clone(), self.partial.clone());
        blocking(move || begin_folder(&sources, &partial)).await?;
        let mut omitted = BTreeMap::new();
        // No blob goes away after a record that refers to it was copied.
        let removing = self.hold_removing(sender).await?;
        for (done, store) in self.sources.layout.stores().iter().enumerate() {
            sender.check_heard()?;
            self.check_remaining_space(done)?;
            let copied = self.copy(store, sender).await?;
            if let Some(why) = copied.omitted {
                sender.say(Event::Omitted { role: store.role, why: why.clone() }).await;
                omitted.insert(store.role, why);
            }
            if let Some(text) = copied.note {
                sender.say(Event::Note { text }).await;
            }
        }
        drop(removing);
        let secrets_left_out = self.note_secrets(sender).await;
        sender.check_heard()?;
        let files = self.sum_up(sender.clone()).await?;
        let roles = self.roles(&files, &omitted);
        let manifest = Manifest { secrets_left_out, ..Manifest::new(taken_at.to_string(), roles, files) };
        let summary = Summary {
            folder: self.folder.clone(),
            files: manifest.files.len() as u64,
            bytes: manifest.bytes(),
            counts: manifest.counts(),
        };
        let (partial, folder) = (self.partial.clone(), self.folder.clone());
        blocking(move || put_in_place(&manifest, &partial, &folder)).await?;
        Ok(summary)
    }

    /// Reports that the key of sealed secrets is left out, if there is one: a backup alone must not be enough to read them.
    async fn note_secrets(&self, sender: &EventSender) -> bool {
        let Some(file) = self.sources.layout.secrets().filter(|file| file.exists()) else { return false };
        let text = format!(
            "not in the backup: {}, without which private keys of DKIM in the records can't be used: keep a copy of it in another place",
            file.display()
        );
        sender.say(Event::Note { text }).await;
        true
    }

    /// Waits until no blobs are being removed, without a limit.
    async fn hold_removing(&self, sender: &EventSender) -> Result<MutexGuard<'_, ()>, Error> {
        let mut ticks = ticks();
        let mut holding = std::pin::pin!(self.sources.removing.lock());
        loop {
            tokio::select! {
                held = &mut holding => return Ok(held),
                why = sender.unheard() => return Err(why),
                _ = ticks.tick() => self.look(Role::Files, sender).await,
            }
        }
    }

    /// Fails if the rest of the copies no longer fits: others write meanwhile. Half of the reserve may be used by then, so that
    /// an estimate that was a little too low does not end the backup.
    fn check_remaining_space(&self, roles_done: usize) -> Result<(), Error> {
        let bytes_left = sum(self.role_bytes.get(roles_done..).unwrap_or_default());
        let free_bytes = disk::free_bytes(&self.partial)?;
        check_space(&self.folder, bytes_left, self.reserve_bytes / 2, free_bytes)
    }

    /// Copies a store, and reports its progress. When the client disconnects, the copy is given up.
    async fn copy(&self, store: &Store, sender: &EventSender) -> Result<Copied, Error> {
        let (role, folder) = (store.role, self.partial.join(store.role.name()));
        disk::create_private(&folder)?;
        let mut ticks = ticks();
        let mut copying = std::pin::pin!(store.copy(&folder));
        let copied = loop {
            tokio::select! {
                copied = &mut copying => break copied?,
                why = sender.unheard() => {
                    self.give_up(copying, sender).await;
                    return Err(why);
                }
                _ = ticks.tick() => self.look(role, sender).await,
            }
        };
        let is_empty = disk::names(&folder)?.is_empty();
        if copied.omitted.is_some() && is_empty {
            fs::remove_dir(&folder).map_err(|error| Error::io("remove", folder.display(), error))?;
        }
        Ok(copied)
    }

    /// Ends a copy by removing its folder: its next file fails. What an engine writes in one call (LMDB its file) goes on to its
    /// end, in a file without a name. A process that ends does not wait for that; a server that continues does, so that nothing of
    /// this copy appears in the next one at the same location.
    async fn give_up(&self, mut copying: Pin<&mut impl Future>, sender: &EventSender) {
        loop {
            let _ = self.remove().await; // removed again, with errors logged, when the copy has ended
            if timeout(GIVEN_UP_WAIT, &mut copying).await.is_ok() || sender.is_stopped() {
                return;
            }
        }
    }

    /// Reports how many bytes are copied.
    async fn look(&self, role: Role, sender: &EventSender) {
        let partial = self.partial.clone();
        if let Ok(bytes) = blocking(move || Ok(disk::size_of(&partial))).await {
            sender.progress(Event::Copying { role, bytes, of_bytes: self.copy_bytes.max(bytes) });
        }
    }

    /// Syncs every file and reads it to compute its hash: the manifest describes what was given to the disk.
    async fn sum_up(&self, sender: EventSender) -> Result<Vec<FileEntry>, Error> {
        let partial = self.partial.clone();
        blocking(move || {
            let tree = disk::walk(&partial)?;
            let (of_bytes, done) = (tree.bytes(), AtomicU64::new(0));
            let mut files = Vec::with_capacity(tree.files.len());
            for (path, _) in tree.files {
                if path == MARK {
                    continue;
                }
                sender.check_heard()?;
                let file = partial.join(&path);
                if disk::is_lock(&path) {
                    disk::remove_all(&file)?; // locks are not needed: the copy is closed
                    continue;
                }
                if Part::of(&path).is_some_and(|(part, path)| !is_restored(part, path)) {
                    warn!(path, "left out of the backup: no engine writes a file of this name");
                    disk::remove_all(&file)?;
                    continue;
                }
                disk::sync_file(&file)?;
                let (bytes, sha256) = disk::digest(&file, |read| {
                    let bytes = done.fetch_add(read, Ordering::Relaxed) + read;
                    sender.progress(Event::Summing { bytes, of_bytes });
                    sender.check_heard()
                })?;
                files.push(FileEntry { path, bytes, sha256 });
            }
            // Inner folders first: a folder exists durably once its parent is synced.
            for folder in tree.folders.iter().rev() {
                disk::sync(folder)?;
            }
            Ok(files)
        })
        .await
    }

    fn roles(&self, files: &[FileEntry], omitted: &BTreeMap<Role, String>) -> Vec<RoleEntry> {
        let entry = |store: &Store| {
            let (role, prefix) = (store.role, format!("{}/", store.role.name()));
            let own = files.iter().filter(|file| file.path.starts_with(&prefix));
            let (count, bytes) = own.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes));
            RoleEntry {
                role,
                engine: store.engine.to_owned(),
                url: store.url.clone(),
                counts: self.counts.get(&role).cloned().unwrap_or_default(),
                files: count,
                bytes,
                omitted: omitted.get(&role).cloned(),
            }
        };
        self.sources.layout.stores().iter().map(entry).collect()
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn sum(bytes: &[u64]) -> u64 {
    bytes.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

/// How many bytes must stay free after copies of `copy_bytes`, on a disk of `shared_disk_bytes` if the server writes to it, too.
/// It need not be more than the copies take: so a small store on a small disk can be backed up, and so can a store that is mostly
/// hard-linked, on a disk that is nearly full.
fn reserve(shared_disk_bytes: Option<u64>, copy_bytes: u64) -> u64 {
    let wanted = shared_disk_bytes.map_or(0, |bytes| RESERVE_BYTES.max(bytes / RESERVE_SHARE));
    wanted.min(copy_bytes).max(SPARE_BYTES)
}

fn check_space(folder: &Path, copy_bytes: u64, reserve_bytes: u64, free_bytes: u64) -> Result<(), Error> {
    if copy_bytes.saturating_add(reserve_bytes) <= free_bytes {
        return Ok(());
    }
    let what = format!(
        "the backup takes about {copy_bytes} bytes, {reserve_bytes} have to stay free, and {free_bytes} are free on the disk of {}: \
         name a folder on another one",
        folder.display()
    );
    Err(Error::full(what))
}

/// Creates the unfinished folder, with the files that belong to no store: these are copied first. So the progress that they
/// record is never ahead of the archive's copy.
fn begin_folder(sources: &Sources, partial: &Path) -> Result<(), Error> {
    disk::create_private(partial)?;
    let write = |name: &str, text: &str| {
        let file = partial.join(name);
        fs::write(&file, text).map_err(|error| Error::io("write", file.display(), error))
    };
    // The mark identifies the folder as ours, so it must exist before anything else does.
    let mark = partial.join(MARK);
    let marked = File::create(&mark).and_then(|mut file| {
        file.write_all(MARK_TEXT.as_bytes())?;
        file.sync_all()
    });
    marked.map_err(|error| Error::io("write", mark.display(), error))?;
    disk::sync(partial)?;
    disk::sync(disk::parent(partial))?;
    write(SETTINGS, &sources.settings)?;
    let folder = partial.join(Role::Files.name());
    for path in sources.layout.small_files() {
        let from = sources.layout.data().join(path);
        if !from.is_file() {
            continue; // does not exist yet
        }
        let to = folder.join(path);
        let above = disk::parent(&to);
        fs::create_dir_all(above).map_err(|error| Error::io("create", above.display(), error))?;
        disk::copy(&from, &to, |_| Ok(()))?;
    }
    Ok(())
}

/// Checks whether a backup may be made in the folder, and returns the folder in which it is made. The rest of an unfinished
/// backup there is removed; a finished one that only has such a name is not.
fn check_location(folder: &Path, locations: &[PathBuf]) -> Result<PathBuf, Error> {
    let shown = folder.display();
    let Some(name) = folder.file_name().filter(|_| folder.is_absolute()) else {
        return Err(Error::invalid(format!("'{shown}' is no absolute path of a folder")));
    };
    let real = real_path(disk::parent(folder)).join(name);
    let holds = |location: &&PathBuf| real.starts_with(real_path(location)) || folder.starts_with(location);
    if let Some(location) = locations.iter().find(holds) {
        let what =
            format!("{shown} lies in {}, which is to be copied: name another folder", location.display());
        return Err(Error::invalid(what));
    }
    let parent = disk::parent(folder);
    if !parent.is_dir() {
        let what = format!("there is no folder {}: make it, or name another one", parent.display());
        return Err(Error::not_found(what));
    }
    check_free(folder, parent)?;
    let mut partial_name = name.to_owned();
    partial_name.push(PARTIAL_SUFFIX);
    let partial = folder.with_file_name(partial_name);
    if fs::symlink_metadata(&partial).is_err() {
        return Ok(partial);
    }
    let is_marked = fs::symlink_metadata(partial.join(MARK)).is_ok();
    if !is_marked && !disk::names(&partial)?.is_empty() {
        let is_whole = manifest::is_of_backup(&partial, MARK);
        let what = if is_whole { "is a finished backup: rename it" } else { "is in the way: remove it" };
        let what = format!("{} {what}, or name another folder", partial.display());
        return Err(Error::conflict(what));
    }
    disk::remove_all(&partial)?;
    Ok(partial)
}

/// A folder that is not empty is refused, and so is a link or a mount point, which could not be replaced by a rename at the end.
fn check_free(folder: &Path, parent: &Path) -> Result<(), Error> {
    let shown = folder.display();
    if folder.is_symlink() {
        return Err(Error::invalid(format!("{shown} is a link: name the folder itself")));
    }
    if !disk::names(folder)?.is_empty() {
        let what = format!("{shown} is not empty: a backup needs a folder of its own: name another one");
        return Err(Error::conflict(what));
    }
    let is_disk = folder.is_dir() && disk::mount_of(folder) != disk::mount_of(parent);
    if is_disk {
        return Err(Error::invalid(format!("{shown} is a disk of its own: name a folder in it")));
    }
    Ok(())
}

/// The manifest is written when everything else is durable, and the folder is renamed when the manifest is durable.
fn put_in_place(manifest: &Manifest, partial: &Path, folder: &Path) -> Result<(), Error> {
    disk::sync(partial)?;
    manifest.write(partial)?;
    // Whatever a power cut leaves has the mark or the manifest, which identify it.
    disk::sync(partial)?;
    let mark = partial.join(MARK);
    fs::remove_file(&mark).map_err(|error| Error::io("remove", mark.display(), error))?;
    disk::sync(partial)?;
    disk::rename(partial, folder)
}

#[cfg(test)]
mod tests;
