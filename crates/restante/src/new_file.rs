//! A file that gets its name when it is complete.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The suffix of its name until then.
const SUFFIX: &str = ".partial";

/// A file that is being written under a temporary name next to its own. If it is dropped before [`NewFile::finish`], it is removed, and
/// a previous file of its name stays.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: File,
    /// The final name.
    path: PathBuf,
    /// The temporary name; `None` for a pipe or a device, which is written to directly.
    partial: Option<PathBuf>,
}

impl NewFile {
    /// Creates the file; overwrites a temporary file that was left by an unfinished one.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // The target of a symbolic link is replaced, and the link stays.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let is_special = fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file());
        if is_special {
            return Ok(Self { file: File::options().write(true).open(&path)?, path, partial: None });
        }
        let mut partial = path.clone().into_os_string();
        partial.push(SUFFIX);
        Ok(Self { file: File::create(&partial)?, path, partial: Some(partial.into()) })
    }

    /// Returns when the file is on disk under its name.
    #[expect(clippy::disallowed_methods, reason = "the folder is synced after it")]
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(partial) = &self.partial else { return Ok(()) };
        self.file.sync_all()?;
        fs::rename(partial, &self.path)?;
        self.partial = None;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = fs::remove_file(partial); // if this fails, the next file for the same path overwrites it
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let read = || fs::read_to_string(&path).unwrap_or_default();
        let begin = |text: &str| {
            let mut file = NewFile::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file
        };
        drop(begin("never finished"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        begin("first").finish().unwrap();
        assert_eq!(read(), "first");
        let second = begin("second");
        assert_eq!(read(), "first");
        second.finish().unwrap();
        assert_eq!(read(), "second");
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        NewFile::create(&folder.path().join("link")).unwrap().finish().unwrap();
        assert_eq!(read(), "");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let mut device = NewFile::create(Path::new("/dev/null")).unwrap();
        device.write_all(b"x").unwrap();
        device.finish().unwrap();
    }
}
