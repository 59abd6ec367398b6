//! The progress file: for each store peer a line `<peer id> <nanoseconds>` with the time until which its messages are archived
//! here.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use libp2p::PeerId;
use parking_lot::Mutex;
use restante_core::Timestamp;
use tracing::warn;

/// The most bytes to read, in case another file was configured by mistake.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The file and its last saved contents.
#[derive(Debug)]
pub(super) struct ProgressFile {
    path: PathBuf,
    saved: Mutex<HashMap<PeerId, Timestamp>>,
}

impl ProgressFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, saved: Mutex::default() }
    }

    /// Reads the file. An unreadable file is treated as missing: sync looks back further.
    pub(super) fn load(&self) -> HashMap<PeerId, Timestamp> {
        match read(&self.path) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashMap::new(),
            Err(error) => {
                let path = self.path.display();
                warn!(%path, %error, "can't read the progress of store sync: it looks back as far as allowed");
                HashMap::new()
            }
        }
    }

    /// Saves the progress durably. The file is replaced atomically.
    pub(super) fn save(&self, known: HashMap<PeerId, Timestamp>) -> io::Result<()> {
        let mut saved = self.saved.lock();
        if known == *saved {
            return Ok(());
        }
        write(&self.path, &known)?;
        *saved = known;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<HashMap<PeerId, Timestamp>> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let parsed: Option<_> = text.lines().map(parse_line).collect();
    parsed
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "expected lines of a peer id and a number"))
}

fn parse_line(line: &str) -> Option<(PeerId, Timestamp)> {
    let (peer, nanos) = line.split_once(' ')?;
    Some((peer.parse().ok()?, Timestamp(nanos.parse().ok()?)))
}

#[expect(clippy::disallowed_methods, reason = "the folder is synced right after the rename")]
fn write(path: &Path, known: &HashMap<PeerId, Timestamp>) -> io::Result<()> {
    let mut lines: Vec<String> =
        known.iter().map(|(peer, until)| format!("{peer} {}\n", until.nanos())).collect();
    lines.sort(); // so that equal progress results in equal files
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let draft = PathBuf::from(name);
    let mut file = File::create(&draft)?;
    file.write_all(lines.concat().as_bytes())?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_saved_and_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/waku.online");
        let file = ProgressFile::new(path.clone());
        assert_eq!(file.load(), HashMap::new());
        for nanos in [1, 2, i64::MAX] {
            let known: HashMap<_, _> = (0..3).map(|_| (PeerId::random(), Timestamp(nanos))).collect();
            file.save(known.clone()).unwrap();
            assert_eq!(ProgressFile::new(path.clone()).load(), known);
        }
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 1, "no other file is left");
    }

    #[test]
    fn a_damaged_file_is_treated_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("waku.online");
        for text in ["x", "x 1\n", &format!("{} y\n", PeerId::random()), "\u{0}", "\n"] {
            fs::write(&path, text).unwrap();
            assert_eq!(ProgressFile::new(path.clone()).load(), HashMap::new(), "{text:?}");
        }
        fs::write(&path, [0xff; 9]).unwrap();
        let file = ProgressFile::new(path.clone());
        assert_eq!(file.load(), HashMap::new());
        let known = HashMap::from([(PeerId::random(), Timestamp(5))]);
        file.save(known.clone()).unwrap();
        assert_eq!(file.load(), known, "the next save replaces it");
    }

    #[test]
    fn a_failed_write_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let file = ProgressFile::new(folder.path().join("file/waku.online"));
        let known = HashMap::from([(PeerId::random(), Timestamp(5))]);
        assert!(file.save(known.clone()).is_err());
        assert!(file.save(known).is_err(), "a failed write is retried");
    }
}
