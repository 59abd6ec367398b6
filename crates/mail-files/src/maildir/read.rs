use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use super::names;
use crate::{Each, FileMessage, FilesError, Folder, Found, export, mbox::walk::manifest};

/// Deeper folders are not searched.
const DEPTH_MAX: usize = 32;
/// The folders of a Maildir that have messages.
const WITH_MESSAGES: [&str; 2] = ["cur", "new"];

/// A Maildir and its mailbox.
#[derive(Debug)]
struct Maildir {
    path: PathBuf,
    folder: Folder,
}

/// The files of messages below a Maildir.
///
/// # Errors
/// It does not exist, can't be read, or is not a Maildir.
pub fn total_messages(path: &Path) -> Result<u64, FilesError> {
    let mut messages = 0;
    for maildir in maildirs(path)? {
        for name in WITH_MESSAGES {
            let Ok(entries) = fs::read_dir(maildir.path.join(name)) else { continue };
            messages +=
                entries.flatten().filter(|entry| is_message(&entry.file_name().to_string_lossy())).count()
                    as u64;
        }
    }
    Ok(messages)
}

/// Reads a Maildir and its folders: those of Maildir++ (`.Work.Old`), and Maildirs in folders. In each mailbox, messages are in
/// the order in which they were stored. A message that is longer than `bytes_max` or can't be read is refused. Progress is in
/// messages.
///
/// # Errors
/// Those of [`total_messages`].
pub fn read(path: &Path, bytes_max: u64, each: &mut Each<'_>) -> Result<(), FilesError> {
    let mut done = 0;
    for maildir in maildirs(path)? {
        if each(Found::Folder(maildir.folder.clone()), done).is_break() {
            return Ok(());
        }
        let file = fs::read_to_string(maildir.path.join("dovecot-keywords")).unwrap_or_default();
        let letters = names::letters(&file);
        let (files, refused) = files(&maildir.path);
        for what in refused {
            if each(Found::Refused(what), done).is_break() {
                return Ok(());
            }
        }
        for (_, name, sub) in files {
            done += 1;
            let file = maildir.path.join(sub).join(&*name);
            let found = match read_file(&file, bytes_max) {
                Ok((raw, modified)) => message(raw, modified, &name, &letters, &maildir.folder),
                Err(error) => Found::Refused(format!("{}: {error}", file.display())),
            };
            if each(found, done).is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn message(raw: Vec<u8>, modified: Option<i64>, name: &str, letters: &[String], folder: &Folder) -> Found {
    let name = names::parse(name, letters);
    // The file's time is that of IMAP's INTERNALDATE; copying may have lost it, and then it is later than the one in the name.
    let received = match (modified, name.stored) {
        (Some(modified), Some(stored)) => Some(modified.min(stored)),
        (modified, stored) => modified.or(stored),
    };
    let key = export::key(&raw, name.id);
    Found::Message(FileMessage {
        folders: vec![folder.clone()],
        keywords: name.keywords,
        received,
        stored: None,
        is_exact: name.is_exact,
        key,
        exported_id: name.id,
        raw,
    })
}

/// The Maildirs below a path, the top one first.
fn maildirs(path: &Path) -> Result<Vec<Maildir>, FilesError> {
    let mut found = Vec::new();
    if is_maildir(path) {
        found.push(Maildir { path: path.to_owned(), folder: Folder::of_role("Inbox", "inbox") });
    }
    walk(path, &[], &mut found)?;
    for entry in manifest(path) {
        let file = path.join(&entry.file);
        if let Some(maildir) = found.iter_mut().find(|maildir| maildir.path == file)
            && let Some(folder) = entry.folder.folder()
        {
            maildir.folder = folder;
        }
    }
    match found.is_empty() {
        true => Err(FilesError::Not {
            path: path.to_owned(),
            why: "has no Maildir: name a folder that has 'cur' and 'new'",
        }),
        false => Ok(found),
    }
}

fn walk(path: &Path, above: &[String], found: &mut Vec<Maildir>) -> Result<(), FilesError> {
    let failed = || FilesError::io("read", path);
    let mut folders = Vec::new();
    for entry in fs::read_dir(path).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        // Links are not followed: they may form a loop, or lead out of the folder that the user means.
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_folder && !["cur", "new", "tmp"].contains(&&*name) {
            folders.push((name, entry.path()));
        }
    }
    folders.sort_unstable();
    for (name, path) in folders {
        let names = names::folder(above, &name);
        if names.is_empty() || names.len() > DEPTH_MAX {
            continue;
        }
        if is_maildir(&path) {
            found.push(Maildir { path: path.clone(), folder: Folder::named(names.clone()) });
        }
        walk(&path, &names, found)?;
    }
    Ok(())
}

fn is_maildir(path: &Path) -> bool {
    path.join("cur").is_dir() || path.join("new").is_dir()
}

/// Files that begin with a dot are not messages.
fn is_message(name: &str) -> bool {
    !name.starts_with('.')
}

/// When a file was stored, its name, and the folder of the Maildir that it is in.
type NamedFile = (i64, Box<str>, &'static str);

/// The files of a Maildir's messages, in the order in which they were stored, and what can't be read.
fn files(maildir: &Path) -> (Vec<NamedFile>, Vec<String>) {
    let (mut files, mut refused) = (Vec::new(), Vec::new());
    for sub in WITH_MESSAGES {
        let path = maildir.join(sub);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                refused.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        for entry in entries {
            let name = entry.map(|entry| entry.file_name().into_string());
            match name {
                Ok(Ok(name)) if !is_message(&name) => {}
                Ok(Ok(name)) => {
                    let time = name.split('.').next().and_then(|time| time.parse().ok()).unwrap_or(i64::MAX);
                    files.push((time, name.into_boxed_str(), sub));
                }
                Ok(Err(name)) => {
                    refused.push(format!("{}: its name is no UTF-8", path.join(name).display()));
                }
                Err(error) => refused.push(format!("{}: {error}", path.display())),
            }
        }
    }
    files.sort_unstable();
    (files, refused)
}

/// The bytes of a regular file, and when it was modified.
fn read_file(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, Option<i64>)> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let too_long =
        |bytes: u64| io::Error::other(format!("it has {bytes} bytes, and at most {bytes_max} are taken"));
    if metadata.len() > bytes_max {
        return Err(too_long(metadata.len()));
    }
    let mut raw = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut raw)?;
    if raw.len() as u64 > bytes_max {
        return Err(too_long(raw.len() as u64));
    }
    if raw.is_empty() {
        return Err(io::Error::other("it is empty"));
    }
    let modified = metadata.modified().ok().map(|time| match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(_) => 0,
    });
    Ok((raw, modified))
}
