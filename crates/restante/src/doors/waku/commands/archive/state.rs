//! The file in which a long command stores its progress, so that the same command continues from there.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use restante_archive::{Archive, Query};
use restante_core::MessageHash;
use serde::{Serialize, de::DeserializeOwned};

/// No state is longer; a file that was named by mistake may be.
const STATE_BYTES_MAX: u64 = 64 << 10;

/// A state file. It is removed when the command is done.
#[derive(Debug)]
pub(super) struct StateFile(PathBuf);

impl StateFile {
    /// The named file, or else one in the current folder whose name identifies the command and its archives.
    pub(super) fn new(named: Option<&Path>, command: &str, archives: [&str; 2]) -> Self {
        let usual = || format!("restante-{command}-{:08x}.state", short_hash(archives)).into();
        Self(named.map_or_else(usual, Path::to_path_buf))
    }

    /// The state of an earlier command, if there is one.
    pub(super) fn load<T: DeserializeOwned>(&self) -> anyhow::Result<Option<T>> {
        let failed = || format!("can't read the state file {}", self.0.display());
        let file = match File::open(&self.0) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(failed),
        };
        let mut text = Vec::new();
        file.take(STATE_BYTES_MAX).read_to_end(&mut text).with_context(failed)?;
        let state = serde_json::from_slice(&text);
        let state = state.with_context(|| format!("{}: remove it to begin anew", failed()))?;
        Ok(Some(state))
    }

    /// Writes a state and returns when it is on disk. A reader of the file sees the previous state or this one, whole.
    #[expect(clippy::disallowed_methods, reason = "the folder is synced right after the rename")]
    pub(super) fn save<T: Serialize>(&self, state: &T) -> anyhow::Result<()> {
        let failed = || format!("can't write the state file {}", self.0.display());
        let mut text = serde_json::to_vec_pretty(state)?;
        text.push(b'\n');
        let mut name = self.0.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut file = File::create(&new).with_context(failed)?;
        file.write_all(&text).and_then(|()| file.sync_all()).with_context(failed)?;
        fs::rename(&new, &self.0).with_context(failed)?;
        self.sync_folder().with_context(failed)
    }

    /// Removes the file, if there is one.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("can't remove the state file {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }

    /// Fails when a state belongs to another command.
    pub(super) fn check(&self, kept: &str, wanted: &str) -> anyhow::Result<()> {
        if kept == wanted {
            return Ok(());
        }
        bail!(
            "the state file {} is of another command: {kept}; this one is {wanted}: remove the file to begin anew, or name \
             another one with --state",
            self.0.display()
        )
    }

    /// Whether the target of the command has what the state says, checked by the last message that was stored there. False if the
    /// target was removed or recreated since, or that message was removed.
    pub(super) async fn is_of(&self, target: &dyn Archive, last: MessageHash) -> anyhow::Result<bool> {
        let query = Query { hashes: vec![last], limit: 1, bodies: false, ..Query::default() };
        let is_there = !target.query(&query).await?.is_empty();
        if !is_there {
            eprintln!(
                "the state file {} is of another archive: the target lacks message {last}; beginning anew",
                self.0.display()
            );
        }
        Ok(is_there)
    }

    fn sync_folder(&self) -> io::Result<()> {
        let folder = self.0.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
    }
}

/// A number that distinguishes the archives of one command from those of another; FNV-1a, which is the same on all platforms.
fn short_hash(texts: [&str; 2]) -> u32 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.state");
        let file = StateFile::new(Some(&path), "copy", ["a", "b"]);
        assert_eq!(file.load::<u64>().unwrap(), None);
        for state in [1_u64, 2] {
            file.save(&state).unwrap();
            assert_eq!(file.load::<u64>().unwrap(), Some(state));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load::<u64>().unwrap(), None);
    }

    /// Regression test: with the state of a target that had been removed, everything that had been in it was skipped.
    #[tokio::test]
    async fn a_state_is_of_the_archive_that_has_its_last_message() {
        let config = restante_archive::Config::new(restante_archive::EngineUrl::Memory);
        let target = restante_archive::open(config).await.unwrap().archive;
        let message = restante_archive::Message {
            message_hash: MessageHash([1; 32]),
            channel: "/waku/2/rs/1/0".into(),
            topic: "/toy/1/chat/proto".into(),
            timestamp: restante_core::Timestamp(1),
            body: "body".into(),
        };
        let file = StateFile::new(None, "copy", ["a", "b"]);
        assert!(!file.is_of(&*target, message.message_hash).await.unwrap());
        target.append(vec![message.clone()]).await.unwrap();
        assert!(file.is_of(&*target, message.message_hash).await.unwrap());
        assert!(!file.is_of(&*target, MessageHash([2; 32])).await.unwrap());
    }

    #[test]
    fn a_damaged_state_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.state");
        fs::write(&path, "{").unwrap();
        let error = StateFile::new(Some(&path), "copy", ["a", "b"]).load::<u64>().unwrap_err().to_string();
        assert!(error.contains("x.state: remove it to begin anew"), "{error}");
    }

    #[test]
    fn each_pair_of_archives_has_a_name_of_its_own() {
        let name = |archives| StateFile::new(None, "copy", archives).0;
        assert_eq!(name(["log:a", "log:b"]), name(["log:a", "log:b"]));
        assert_ne!(name(["log:a", "log:b"]), name(["log:b", "log:a"]));
        assert_ne!(name(["ab", "c"]), name(["a", "bc"]));
        assert!(name(["", ""]).to_str().unwrap().starts_with("restante-copy-"));
    }
}
