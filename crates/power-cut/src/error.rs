use std::path::PathBuf;

/// A failure to record or to replay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or program could not be used.
    #[error("can't {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The recorder could not be compiled.
    #[error("can't compile the recorder with cc: {0}")]
    Compile(String),
    /// The recorded process failed.
    #[error("the recorded process failed: {0}")]
    Child(String),
    /// The log has a record that this crate does not support.
    #[error("the log can't be replayed: {0}")]
    Log(String),
}

impl Error {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}
