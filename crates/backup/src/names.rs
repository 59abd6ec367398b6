//! The names of the files that a backup contains, and that a restore writes: no others, whatever a manifest lists.
//!
//! Somebody who can write to a folder of backups must not be able to add files of other names to those of a server.

use super::location::Part;

/// The only file of an archive in SQLite, which has another name where it is used.
pub(super) const DATABASE: &str = "archive.db";
/// The list of segments of the engine `log`.
const SEGMENTS: &str = "SEGMENTS";
/// LMDB's file.
pub(super) const LMDB: &str = "data.mdb";
/// The fewest digits of a number in a name.
const DIGITS_MIN: usize = 8;
/// The hex digits of a blob's id.
const ID_DIGITS: usize = 64;

/// Whether an engine writes files of this name, by its path in a part. The settings decide the names of the files of the
/// data folder, so none of them is known here.
pub(super) fn is_known(part: Part, path: &str) -> bool {
    match part {
        Part::Files => false,
        Part::Records => path == LMDB,
        Part::Blobs => is_of_blobs(path),
        Part::Archive | Part::Second => is_of_log(path) || path == DATABASE,
        Part::Spool | Part::SecondSpool => is_of_spool(path),
    }
}

fn is_of_blobs(path: &str) -> bool {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["OWNER"] => true,
        ["index", name] => [LMDB, "commit-0.log", "commit-1.log"].contains(&name),
        ["packs", name] => name.strip_suffix(".pack").is_some_and(is_number),
        ["blobs", first, second, id] => {
            let is_id = id.len() == ID_DIGITS && id.bytes().all(is_hex);
            is_id && first.len() == 2 && second.len() == 2 && id.starts_with(&format!("{first}{second}"))
        }
        _ => false,
    }
}

/// A file of the engine `log`: the log or the index of a segment, or the list of segments.
fn is_of_log(name: &str) -> bool {
    name == SEGMENTS || name.strip_suffix(".log").or_else(|| name.strip_suffix(".idx")).is_some_and(is_number)
}

fn is_of_spool(path: &str) -> bool {
    match path.split_once('/') {
        None => path == "GAP",
        Some((folder, name)) => {
            let is_folder =
                folder == "refused" || is_number(folder.strip_suffix(".damaged").unwrap_or(folder));
            is_folder && is_of_log(name)
        }
    }
}

fn is_number(text: &str) -> bool {
    text.len() >= DIGITS_MIN && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_from_a_closed_list() {
        let id = "0a1b".repeat(16);
        let blob = format!("blobs/0a/1b/{id}");
        let known = [
            (Part::Records, "data.mdb"),
            (Part::Blobs, "OWNER"),
            (Part::Blobs, "index/data.mdb"),
            (Part::Blobs, "index/commit-1.log"),
            (Part::Blobs, "packs/00000001.pack"),
            (Part::Blobs, "packs/123456789.pack"),
            (Part::Blobs, &blob),
            (Part::Archive, "00000001.log"),
            (Part::Archive, "00000001.idx"),
            (Part::Archive, "SEGMENTS"),
            (Part::Second, "archive.db"),
            (Part::Spool, "00000007/00000001.log"),
            (Part::Spool, "00000007.damaged/00000001.log"),
            (Part::Spool, "00000007/SEGMENTS"),
            (Part::SecondSpool, "refused/00000001.log"),
            (Part::SecondSpool, "GAP"),
        ];
        for (part, path) in known {
            assert!(is_known(part, path), "{part:?} {path}");
        }
        let (upper, other) = (blob.to_uppercase(), format!("blobs/0b/1b/{id}"));
        let unknown = [
            (Part::Records, "lock.mdb"),
            (Part::Records, "DATA.MDB"),
            (Part::Records, "data.mdb/x"),
            (Part::Blobs, "data.mdb"),
            (Part::Blobs, "SEGMENTS"),
            (Part::Blobs, "packs/1.pack"),
            (Part::Blobs, "packs/+0000001.pack"),
            (Part::Blobs, "packs/99999999999999999999999.pack"),
            (Part::Blobs, &upper),
            (Part::Blobs, &other),
            (Part::Archive, "0000000１.log"),
            (Part::Archive, "00000001.LOG"),
            (Part::Archive, "00000001.log.tmp"),
            (Part::Archive, "restante.toml"),
            (Part::Spool, "x/00000001.log"),
            (Part::Spool, "refused/00000001.log/x"),
            (Part::Files, "restante.toml"),
        ];
        for (part, path) in unknown {
            assert!(!is_known(part, path), "{part:?} {path}");
        }
    }
}
