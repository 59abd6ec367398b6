//! Settings in a TOML file, each with its line.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml::{Value, de::DeTable, de::DeValue};

use super::{ConfigError, Origin, Setting, join};

/// The settings of the named file, or of the default one if it exists; and the file that was read.
pub(super) fn read(
    named: Option<&Path>,
    default: &Path,
) -> Result<(Option<PathBuf>, Vec<Setting>), ConfigError> {
    let path = named.unwrap_or(default);
    match fs::read_to_string(path) {
        Ok(text) => Ok((Some(path.to_owned()), parse(&text, path)?)),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok((None, Vec::new())),
        Err(error) => Err(ConfigError(format!("can't read the configuration {}: {error}", path.display()))),
    }
}

/// The settings that a file's text holds, in its order of keys.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<Setting>, ConfigError> {
    let failed = |error: toml::de::Error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        ConfigError(format!("{}:{line}: {}", path.display(), error.message()))
    };
    let values: toml::Table = text.parse().map_err(failed)?;
    let places = DeTable::parse(text).map_err(failed)?;
    let mut settings = Vec::new();
    let mut collect = |key: String, value: Value, offset: usize| {
        let origin = Origin::File { path: path.to_owned(), line: line_at(text, offset) };
        settings.push(Setting { key, value, origin });
    };
    walk("", values, places.get_ref(), &mut collect);
    Ok(settings)
}

/// Calls `collect` with every leaf of a table, its dotted key and its position in the text.
fn walk(
    prefix: &str,
    values: toml::Table,
    places: &DeTable<'_>,
    collect: &mut dyn FnMut(String, Value, usize),
) {
    for (name, value) in values {
        let Some((place, spanned)) = places.get_key_value(name.as_str()) else {
            continue; // both were parsed from the same text
        };
        let key = join(prefix, &name);
        match (value, spanned.get_ref()) {
            (Value::Table(inner), DeValue::Table(places)) => walk(&key, inner, places, collect),
            (leaf, _) => collect(key, leaf, place.span().start),
        }
    }
}

/// The line, counted from 1, of a byte of the text.
fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}
