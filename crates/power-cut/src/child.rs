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

/// What the recorded process has to know.
#[derive(Debug)]
pub struct Child {
    folder: PathBuf,
    acks: File,
}

/// Whether this is the process that is recorded; `None` in the one that replays.
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
    /// The folder that is recorded, empty to begin with.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Notes that something was acknowledged: whatever cut comes after this must have it. Threads may call it at once.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn acknowledge(&self, text: &str) -> Result<(), Error> {
        (&self.acks).write_all(text.as_bytes()).map_err(Error::io("write", ACKS))
    }
}
