use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use crate::Error;

/// Environment variables that the recorder and the recorded process read.
pub(crate) const FOLDER: &str = "POWER_CUT_FOLDER";
pub(crate) const LOG: &str = "POWER_CUT_LOG";
pub(crate) const ACKS: &str = "POWER_CUT_ACKS";

/// The folder and the acknowledgements of the recorded process.
#[derive(Debug)]
pub struct Child {
    folder: PathBuf,
    acks: File,
}

/// The recorded process, if this is one; `None` in the process that replays.
///
/// # Errors
/// When acknowledgements can't be written.
pub fn child() -> Result<Option<Child>, Error> {
    let (Some(folder), Some(acks)) = (env::var_os(FOLDER), env::var_os(ACKS)) else { return Ok(None) };
    let acks = PathBuf::from(acks);
    let file = OpenOptions::new().create(true).append(true).open(&acks);
    let acks = file.map_err(Error::io("open", acks))?;
    Ok(Some(Child { folder: folder.into(), acks }))
}

impl Child {
    /// The recorded folder, empty at the start.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Records an acknowledgement: every cut after it must contain what it acknowledges. Threads may call it concurrently.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn acknowledge(&self, text: &str) -> Result<(), Error> {
        (&self.acks).write_all(text.as_bytes()).map_err(Error::io("write", ACKS))
    }
}
