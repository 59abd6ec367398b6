use async_trait::async_trait;
use restante_core::{ErrorKind, ManualClock, Timestamp};
use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinHandle,
};

use super::*;
use crate::{
    Layout, Removing,
    disk::Mount,
    events::{server_stops, stopped},
    layout::{Holding, Source},
    verify,
};

/// What a role of a test does when it is copied.
#[derive(Clone)]
enum Does {
    Writes(&'static str),
    Waits(Arc<Notify>),
    /// Creates files until that fails, as engines with many files do.
    WritesOn,
    /// Writes into one open file, and ends when the test notifies it, as LMDB does.
    WritesOneFile(Arc<Notify>),
    Fails(ErrorKind),
    IsElsewhere,
}

struct Made {
    role: Role,
    does: Does,
    copy_bytes: u64,
}

#[async_trait]
impl Source for Made {
    async fn holding(&self, _mount: Option<Mount>) -> Result<Holding, Error> {
        Ok(Holding::new([(self.role.name(), 7)], self.copy_bytes))
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, Error> {
        match &self.does {
            Does::Writes(content) => {
                // A name that blobs have: files of other names are left out.
                fs::create_dir(folder.join("packs")).unwrap();
                fs::write(folder.join("packs/00000001.pack"), content).unwrap();
                fs::write(folder.join("packs/mine"), content).unwrap();
            }
            Does::Waits(wait) => wait.notified().await,
            Does::WritesOn => write_on(folder).await?,
            Does::WritesOneFile(wait) => {
                File::create(folder.join("one")).unwrap();
                wait.notified().await;
            }
            Does::Fails(kind) => return Err(Error::new(*kind, "as the test wanted")),
            Does::IsElsewhere => return Ok(Copied { omitted: Some("elsewhere".into()), note: None }),
        }
        Ok(Copied::default())
    }
}

/// On its own thread, as engines do: it goes on when nobody waits for it.
async fn write_on(folder: &Path) -> Result<(), Error> {
    let folder = folder.to_owned();
    blocking(move || {
        (0..u64::MAX).try_for_each(|number| {
            let file = folder.join(number.to_string());
            File::create_new(&file).map(drop).map_err(|error| Error::io("create", file.display(), error))
        })
    })
    .await
}

fn store(made: Made) -> Store {
    Store::new(made.role, ("made", "made:".into()), Vec::new(), Some(Box::new(made)))
}

fn role(role: Role, does: Does) -> Store {
    store(Made { role, does, copy_bytes: 100 })
}

fn sources(stores: Vec<Store>) -> Arc<Sources> {
    let layout = stores.into_iter().fold(Layout::new(Path::new("/nowhere")), Layout::with_store);
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_554_076_800)));
    Arc::new(Sources::new(layout, "# none\n".into(), clock, Removing::default()))
}

/// A target folder for a backup, whose guard removes it.
fn target() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("copy");
    (folder, target)
}

async fn taken(sources: Arc<Sources>, target: &Path) -> (Result<Summary, Error>, Vec<Event>) {
    let (sender, mut events) = EventSender::new();
    let listener = tokio::spawn(async move {
        let mut received = Vec::new();
        while let Some(event) = events.recv().await {
            received.push(event);
        }
        received
    });
    let summary = take(sources, target.to_owned(), sender).await;
    (summary, listener.await.unwrap())
}

fn entries(folder: &Path) -> Vec<String> {
    disk::names(folder).unwrap()
}

#[tokio::test]
async fn a_key_of_secrets_is_left_out_and_noted() {
    let guard = tempfile::tempdir().unwrap();
    let file = guard.path().join("secrets.key");
    let take_one = async |target: &Path| {
        let layout =
            Layout::new(guard.path()).with_secrets(&file).with_store(role(Role::Blobs, Does::Writes("abc")));
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_554_076_800)));
        let (_, events) =
            taken(Arc::new(Sources::new(layout, String::new(), clock, Removing::default())), target).await;
        let notes = events.into_iter().filter_map(|event| match event {
            Event::Note { text } => Some(text),
            _ => None,
        });
        (notes.collect::<Vec<_>>(), Manifest::read(target).unwrap())
    };
    let outside = tempfile::tempdir().unwrap();
    let (notes, manifest) = take_one(&outside.path().join("before")).await;
    assert!(notes.is_empty() && !manifest.secrets_left_out, "{notes:?}");
    fs::write(&file, "a key").unwrap();
    let (notes, manifest) = take_one(&outside.path().join("after")).await;
    assert!(notes.len() == 1 && notes[0].contains(&file.display().to_string()), "{notes:?}");
    assert!(manifest.secrets_left_out);
    assert!(manifest.files.iter().all(|file| !file.path.contains("secrets")), "{manifest:?}");
}

#[tokio::test]
async fn a_backup_says_what_it_is() {
    let (guard, target) = target();
    let roles = vec![role(Role::Blobs, Does::Writes("abc")), role(Role::Archive, Does::IsElsewhere)];
    let sources = sources(roles);
    let metrics = sources.metrics.clone();
    let (summary, events) = taken(sources, &target).await;
    assert_eq!(entries(guard.path()), ["copy"]);
    assert_eq!(entries(&target), ["backup.json", "blobs", "settings.toml"]);
    let manifest = Manifest::read(&target).unwrap();
    assert_eq!(manifest.taken_at, "2019-04-01T00:00:00.000000000Z");
    let paths: Vec<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["blobs/packs/00000001.pack", "settings.toml"]);
    let (blobs, archive) = (&manifest.roles[0], &manifest.roles[1]);
    assert_eq!((blobs.role, blobs.files, blobs.bytes, &blobs.omitted), (Role::Blobs, 1, 3, &None));
    assert_eq!(
        (archive.role, archive.files, archive.omitted.as_deref()),
        (Role::Archive, 0, Some("elsewhere"))
    );
    assert_eq!(verify(&target, &manifest, &mut |_, _| {}).unwrap(), []);
    let summary = summary.unwrap();
    assert_eq!((summary.files, summary.bytes, summary.counts["blobs"]), (2, 3 + 7, 7));
    assert_eq!((metrics.counts(), metrics.last()), ([1, 0], (1_554_076_800.0, 10)), "and so do the metrics");
    assert!(matches!(events.first(), Some(Event::Begun { bytes: 200, .. })), "{events:?}");
    assert!(events.contains(&Event::Omitted { role: Role::Archive, why: "elsewhere".into() }));
}

#[tokio::test]
async fn what_could_not_be_finished_is_removed() {
    let (guard, target) = target();
    let roles =
        vec![role(Role::Records, Does::Writes("abc")), role(Role::Blobs, Does::Fails(ErrorKind::Full))];
    let sources = sources(roles);
    let metrics = sources.metrics.clone();
    let (summary, _) = taken(sources, &target).await;
    assert_eq!(summary.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(entries(guard.path()), Vec::<String>::new());
    assert_eq!((metrics.counts(), metrics.last()), ([0, 1], (0.0, 0)));
}

#[test]
fn a_server_of_another_data_folder_takes_no_backup() {
    let sources = sources(Vec::new());
    sources.check_meant(None).unwrap();
    sources.check_meant(Some(Path::new("/nowhere"))).unwrap();
    let error = sources.check_meant(Some(Path::new("/elsewhere"))).unwrap_err();
    assert_eq!(error.to_string(), "this server keeps what is in /nowhere, and not /elsewhere");
}

#[tokio::test]
async fn without_room_nothing_is_begun() {
    let (guard, target) = target();
    let large = Made { role: Role::Blobs, does: Does::Writes("abc"), copy_bytes: u64::MAX / 2 };
    let (summary, events) = taken(sources(vec![store(large)]), &target).await;
    let error = summary.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains(&format!("takes about {} bytes", u64::MAX / 2)), "{error}");
    assert_eq!((events.len(), entries(guard.path()).len()), (0, 0));
}

#[test]
fn the_server_keeps_a_reserve_on_its_own_disk() {
    let (mib, gib) = (1 << 20, 1 << 30);
    for (disk, copy, reserve_wanted) in [
        (None, 500 * gib, SPARE_BYTES),
        (Some(10 * gib), 4 * gib, gib),
        (Some(1_000 * gib), 100 * gib, 50 * gib),
        (Some(512 * mib), 100 * mib, 100 * mib),
        (Some(1_000 * gib), 0, SPARE_BYTES),
    ] {
        assert_eq!(reserve(disk, copy), reserve_wanted, "{disk:?} {copy}");
    }
    check_space(Path::new("/x"), 1, 2, 3).unwrap();
    assert_eq!(check_space(Path::new("/x"), 1, 3, 3).unwrap_err().kind(), ErrorKind::Full);
}

#[tokio::test]
async fn links_and_what_they_lead_to_are_seen_through() {
    let (guard, target) = target();
    let location = guard.path().join("place");
    fs::create_dir_all(location.join("inside")).unwrap();
    std::os::unix::fs::symlink(&location, guard.path().join("way")).unwrap();
    std::os::unix::fs::symlink(location.join("inside"), &target).unwrap();
    for (path, locations, why) in [
        (target, vec![], "is a link"),
        (guard.path().join("way/copy"), vec![location.clone()], "is to be copied"),
        (location.join("copy"), vec![guard.path().join("way")], "is to be copied"),
    ] {
        let error = check_location(&path, &locations).unwrap_err();
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn what_an_unfinished_backup_has_left_is_removed_and_what_others_have_is_not() {
    let (guard, target) = target();
    let partial = guard.path().join("copy.partial");
    for (file, is_ours) in [(MARK, true), (manifest::FILE_NAME, false), ("mine", false)] {
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join(file), "left").unwrap();
        let (summary, _) = taken(sources(vec![role(Role::Records, Does::Writes("abc"))]), &target).await;
        assert_eq!(summary.is_ok(), is_ours, "{file}");
        if is_ours {
            fs::remove_dir_all(&target).unwrap();
        } else {
            assert_eq!(summary.unwrap_err().kind(), ErrorKind::Conflict);
            assert_eq!(entries(&partial), [file]);
            fs::remove_dir_all(&partial).unwrap();
        }
    }
}

#[tokio::test]
async fn a_disconnect_ends_it_and_no_blob_is_removed_meanwhile() {
    let (guard, target) = target();
    let wait = Arc::new(Notify::new());
    let roles =
        vec![role(Role::Records, Does::Waits(wait.clone())), role(Role::Archive, Does::Writes("abc"))];
    let sources = sources(roles);
    let (sender, mut events) = EventSender::new();
    let taking = tokio::spawn(take(sources.clone(), target.clone(), sender));
    assert!(matches!(events.recv().await, Some(Event::Begun { .. })));
    while !guard.path().join("copy.partial/records").exists() {
        tokio::task::yield_now().await;
    }
    assert!(sources.removing.try_lock().is_err(), "the records' copy may need any blob");
    drop(events);
    wait.notify_one();
    let error = taking.await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("the backup was stopped"), "{error}");
    assert!(sources.removing.try_lock().is_ok());
    assert_eq!(entries(guard.path()), Vec::<String>::new());
}

/// Takes a backup whose only copy is in progress, and passes it to a test that ends it.
async fn under_way(
    does: Does,
    file: &str,
) -> (tempfile::TempDir, watch::Sender<bool>, JoinHandle<Result<Summary, Error>>, mpsc::Receiver<Event>) {
    let (guard, target) = target();
    let (stop_sender, stop) = watch::channel(false);
    let (sender, events) = EventSender::until(stop, server_stops);
    let taking = tokio::spawn(take(sources(vec![role(Role::Records, does)]), target, sender));
    let file = guard.path().join("copy.partial/records").join(file);
    while !file.exists() {
        tokio::task::yield_now().await;
    }
    (guard, stop_sender, taking, events)
}

#[tokio::test]
async fn the_end_of_the_process_ends_a_copy_that_is_under_way() {
    let never = Arc::new(Notify::new());
    for (does, file) in [(Does::WritesOn, "5"), (Does::WritesOneFile(never), "one")] {
        let (guard, stop_sender, taking, _events) = under_way(does, file).await;
        stop_sender.send(true).unwrap();
        let error = taking.await.unwrap().unwrap_err();
        assert!(error.to_string().starts_with("the server is stopping"), "{error}");
        assert_eq!(entries(guard.path()), Vec::<String>::new());
    }
}

/// A server that continues takes the next backup to the same location only when nothing of this one can appear in it.
#[tokio::test(start_paused = true)]
async fn a_stopped_copy_is_waited_for() {
    let (guard, _stop_sender, taking, events) = under_way(Does::WritesOn, "5").await;
    drop(events);
    assert!(taking.await.unwrap().is_err());
    assert_eq!(entries(guard.path()), Vec::<String>::new());

    let wait = Arc::new(Notify::new());
    let (guard, _stop_sender, taking, events) = under_way(Does::WritesOneFile(wait.clone()), "one").await;
    drop(events);
    let partial = guard.path().join("copy.partial");
    while partial.exists() {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(GIVEN_UP_WAIT * 5).await;
    assert!(!taking.is_finished(), "the copy is not over");
    fs::create_dir(&partial).unwrap(); // a file that it still creates
    wait.notify_one();
    let error = taking.await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), stopped().to_string());
    assert_eq!(entries(guard.path()), Vec::<String>::new());
}

#[tokio::test]
async fn places_that_can_not_be_used_are_named() {
    let (guard, target) = target();
    let try_at = async |path: PathBuf| {
        let taken = Taking::begin(sources(vec![role(Role::Records, Does::Writes("abc"))]), path).await;
        taken.err().map(|error| (error.kind(), error.to_string()))
    };
    assert_eq!(try_at(target.clone()).await, None);
    fs::create_dir(&target).unwrap();
    assert_eq!(try_at(target.clone()).await, None, "an empty folder will do");
    for (path, kind, why) in [
        ("copy".into(), ErrorKind::Invalid, "no absolute path"),
        ("/".into(), ErrorKind::Invalid, "no absolute path"),
        (guard.path().join("missing/copy"), ErrorKind::NotFound, "there is no folder"),
        (guard.path().to_owned(), ErrorKind::Conflict, "is not empty"),
        ("/nowhere/inside".into(), ErrorKind::Invalid, "is to be copied"),
        ("/proc".into(), ErrorKind::Conflict, "is not empty"),
    ] {
        let (found, text) = try_at(path.clone()).await.unwrap();
        assert!(found == kind && text.contains(why), "{}: {text}", path.display());
    }
}
