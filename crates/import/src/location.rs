use std::{
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

use restante_archive::PostgresUrl;

use crate::Error;

/// The server that wrote an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// nwaku, or go-waku, which adopted its tables.
    Nwaku,
    /// The mailserver of status-go.
    Status,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nwaku => "nwaku",
            Self::Status => "a Status mailserver",
        })
    }
}

/// The location of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// An SQLite file.
    Sqlite(PathBuf),
    /// A folder with a LevelDB.
    LevelDb(PathBuf),
    /// A PostgreSQL database; with `schema=<name>` if its tables are not in the search path.
    Postgres(PostgresUrl),
}

/// The first bytes of every SQLite file.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

impl Location {
    /// Detects what is at a path or URL; `None` for an ordinary file. nwaku's prefix `sqlite://` before a path is accepted.
    ///
    /// # Errors
    /// When it does not exist, can't be read, or is a folder of something else.
    pub fn of(path: &Path) -> Result<Option<Self>, Error> {
        let text = path.to_str().unwrap_or_default();
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let url = PostgresUrl::from_str(text);
            return url
                .map(|url| Some(Self::Postgres(url)))
                .map_err(|error| Error::invalid(error.to_string()));
        }
        let stated = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:"));
        let path = stated.map_or(path, Path::new);
        let metadata = path.metadata().map_err(|error| Error::io("open", path.display(), error))?;
        if metadata.is_dir() {
            return of_folder(path).map(Some);
        }
        check_regular(path)?;
        match (is_sqlite(path)?, stated) {
            (true, _) => Ok(Some(Self::Sqlite(path.to_owned()))),
            (false, None) => Ok(None),
            (false, Some(_)) => Err(Error::invalid(format!("{} is not an SQLite file", path.display()))),
        }
    }
}

fn of_folder(path: &Path) -> Result<Location, Error> {
    if path.join("CURRENT").is_file() {
        return Ok(Location::LevelDb(path.to_owned()));
    }
    Err(Error::invalid(format!(
        "{} is a folder without a LevelDB: one has a file CURRENT in it",
        path.display()
    )))
}

/// Refuses an existing path that is not a file: opening a FIFO or reading a device may block forever.
pub(crate) fn check_regular(path: &Path) -> Result<(), Error> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            let advice = "to import from a pipe, leave its path out and redirect it to stdin";
            Err(Error::invalid(format!("{} is not a regular file: {advice}", path.display())))
        }
        _ => Ok(()),
    }
}

fn is_sqlite(path: &Path) -> Result<bool, Error> {
    let failed = |error| Error::io("read", path.display(), error);
    let mut magic = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
    Ok(magic == SQLITE_MAGIC)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) | Self::LevelDb(path) => write!(f, "{}", path.display()),
            Self::Postgres(url) => fmt::Display::fmt(url, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn locations_are_detected_by_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.db"), [&SQLITE_MAGIC[..], b"more"].concat()).unwrap();
        fs::write(at("b.ndjson"), "{}").unwrap();
        fs::create_dir(at("level")).unwrap();
        fs::write(at("level/CURRENT"), "MANIFEST-000000\n").unwrap();
        fs::create_dir(at("other")).unwrap();

        assert_eq!(Location::of(&at("a.db")).unwrap(), Some(Location::Sqlite(at("a.db"))));
        let url = format!("sqlite://{}", at("a.db").display());
        assert_eq!(Location::of(url.as_ref()).unwrap(), Some(Location::Sqlite(at("a.db"))));
        assert_eq!(Location::of(&at("b.ndjson")).unwrap(), None);
        assert_eq!(Location::of(&at("level")).unwrap(), Some(Location::LevelDb(at("level"))));
        let postgres = Location::of("postgres://me:secret@db/store".as_ref()).unwrap().unwrap();
        assert_eq!(postgres.to_string(), "postgres://me:***@db/store");

        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        for (path, why) in [
            (at("pipe"), "not a regular file"),
            (PathBuf::from(format!("sqlite:{}", at("pipe").display())), "not a regular file"),
            ("/dev/zero".into(), "not a regular file"),
            (at("other"), "CURRENT"),
            (at("none"), "can't open"),
            (PathBuf::from(format!("sqlite:{}", at("b.ndjson").display())), "not an SQLite file"),
        ] {
            let error = Location::of(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
