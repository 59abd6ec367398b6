use std::{
    fmt,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    str::FromStr,
};

use restante_archive::PostgresUrl;

use crate::Error;

/// Whose archive it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// nwaku, or go-waku, which took over its tables.
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

/// Where an archive lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A database of SQLite.
    Sqlite(PathBuf),
    /// A folder with a LevelDB in it.
    LevelDb(PathBuf),
    /// A database of PostgreSQL; with `schema=<name>` where its tables are not in the search path.
    Postgres(PostgresUrl),
}

/// What every file of SQLite begins with.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

impl Place {
    /// What lies at a path or URL, by looking; `None` when it is an ordinary file. nwaku's `sqlite://` before a path is
    /// understood.
    ///
    /// # Errors
    /// When there is nothing, it can't be read, or it is a folder of something else.
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
        let metadata = path.metadata().map_err(|error| Error::io("open", path, error))?;
        if metadata.is_dir() {
            return of_folder(path).map(Some);
        }
        check_regular(path)?;
        match (is_sqlite(path)?, stated) {
            (true, _) => Ok(Some(Self::Sqlite(path.to_owned()))),
            (false, None) => Ok(None),
            (false, Some(_)) => Err(Error::invalid(format!("{} is no SQLite file", path.display()))),
        }
    }
}

fn of_folder(path: &Path) -> Result<Place, Error> {
    if path.join("CURRENT").is_file() {
        return Ok(Place::LevelDb(path.to_owned()));
    }
    Err(Error::invalid(format!(
        "{} is a folder without a LevelDB: one has a file CURRENT in it",
        path.display()
    )))
}

/// Refuses a path that is there and is no file: to open a FIFO may take for ever, and so may reading a device.
pub(crate) fn check_regular(path: &Path) -> Result<(), Error> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => {
            let advice = "to import what a pipe gives, leave its path out and redirect it to stdin";
            Err(Error::invalid(format!("{} is no regular file: {advice}", path.display())))
        }
        _ => Ok(()),
    }
}

fn is_sqlite(path: &Path) -> Result<bool, Error> {
    let failed = |error| Error::io("read", path, error);
    let mut magic = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut magic).map_err(failed)?;
    Ok(magic == SQLITE_MAGIC)
}

impl fmt::Display for Place {
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
    fn places_are_told_by_what_lies_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a.db"), [&SQLITE_MAGIC[..], b"more"].concat()).unwrap();
        fs::write(at("b.ndjson"), "{}").unwrap();
        fs::create_dir(at("level")).unwrap();
        fs::write(at("level/CURRENT"), "MANIFEST-000000\n").unwrap();
        fs::create_dir(at("other")).unwrap();

        assert_eq!(Place::of(&at("a.db")).unwrap(), Some(Place::Sqlite(at("a.db"))));
        let url = format!("sqlite://{}", at("a.db").display());
        assert_eq!(Place::of(url.as_ref()).unwrap(), Some(Place::Sqlite(at("a.db"))));
        assert_eq!(Place::of(&at("b.ndjson")).unwrap(), None);
        assert_eq!(Place::of(&at("level")).unwrap(), Some(Place::LevelDb(at("level"))));
        let postgres = Place::of("postgres://me:secret@db/store".as_ref()).unwrap().unwrap();
        assert_eq!(postgres.to_string(), "postgres://me:***@db/store");

        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        for (path, why) in [
            (at("pipe"), "no regular file"),
            (PathBuf::from(format!("sqlite:{}", at("pipe").display())), "no regular file"),
            ("/dev/zero".into(), "no regular file"),
            (at("other"), "CURRENT"),
            (at("none"), "can't open"),
            (PathBuf::from(format!("sqlite:{}", at("b.ndjson").display())), "no SQLite file"),
        ] {
            let error = Place::of(&path).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
