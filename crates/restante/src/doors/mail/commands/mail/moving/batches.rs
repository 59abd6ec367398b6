//! Reads files in a separate thread, and returns their messages in batches.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use anyhow::Context;
use bytes::Bytes;
use restante_mail_files::{FileMessage, FilesError, Folder, Found, maildir, mbox};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::mover::{BATCH_BYTES, BATCH_MESSAGES, ExportedEmail, Item, bytes_to_store};

/// A batch of a source.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Folders, including those without messages.
    pub(super) folders: Vec<Folder>,
    pub(super) items: Vec<Item>,
    /// The bytes of the items.
    pub(super) messages: Vec<Bytes>,
    /// Messages that the source's own program has marked as deleted.
    pub(super) deleted: u64,
    /// Messages that are already imported, as far as the source can tell.
    pub(super) known: u64,
    pub(super) refused: Vec<String>,
    /// How much of the source was read up to the end of this batch, in the unit of its total.
    pub(super) done: u64,
}

/// The format of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Mbox,
    Maildir,
}

/// The size of a source: bytes of mboxes, messages of Maildirs.
pub(super) fn total(kind: FileKind, path: &Path) -> Result<u64, FilesError> {
    match kind {
        FileKind::Mbox => mbox::total_bytes(path),
        FileKind::Maildir => maildir::total_messages(path),
    }
}

/// The batches of a source.
pub(super) struct FileSource {
    batches: mpsc::Receiver<Result<Batch, FilesError>>,
}

impl FileSource {
    /// Starts to read. One batch is read ahead.
    pub(super) fn open(kind: FileKind, path: PathBuf, message_bytes_max: u64) -> Self {
        let (sender, batches) = mpsc::channel(1);
        drop(tokio::task::spawn_blocking(move || read(kind, &path, message_bytes_max, &sender)));
        Self { batches }
    }

    /// The next batch; `None` after the last.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        self.batches.recv().await.transpose().context("can't read the source")
    }
}

fn read(kind: FileKind, path: &Path, bytes_max: u64, sender: &mpsc::Sender<Result<Batch, FilesError>>) {
    let (mut batch, mut bytes) = (Batch::default(), 0);
    let mut each = |found: Found, done: u64| {
        batch.done = done;
        match found {
            Found::Folder(folder) => batch.folders.push(folder),
            Found::Deleted => batch.deleted += 1,
            Found::Refused(what) => batch.refused.push(what),
            Found::Message(message) => {
                bytes += message.raw.len() as u64;
                add(&mut batch, message);
            }
        }
        let others = batch.folders.len() + batch.refused.len();
        if batch.items.len() + others < BATCH_MESSAGES && bytes < BATCH_BYTES {
            return ControlFlow::Continue(());
        }
        bytes = 0;
        // Fails when the import was stopped.
        let sent = sender.blocking_send(Ok(std::mem::take(&mut batch)));
        if sent.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let ended = match kind {
        FileKind::Mbox => mbox::read(path, bytes_max, &mut each),
        FileKind::Maildir => maildir::read(path, bytes_max, &mut each),
    };
    let _ = sender.blocking_send(Ok(batch)); // as above
    if let Err(error) = ended {
        let _ = sender.blocking_send(Err(error));
    }
}

fn add(batch: &mut Batch, message: FileMessage) {
    let FileMessage { folders, keywords, received, stored, is_exact, key, exported_id, raw } = message;
    let exported = exported_id
        .map(|id| ExportedEmail { id, blob: Sha256::digest(bytes_to_store(&raw, is_exact)).into() });
    batch.items.push(Item {
        key,
        places: folders.into_iter().map(with_number).collect(),
        keywords,
        received,
        stored,
        is_exact,
        exported,
        bytes: raw.len() as u64,
    });
    batch.messages.push(raw.into());
}

fn with_number(folder: Folder) -> (Folder, u64) {
    let number = folder.number();
    (folder, number)
}
