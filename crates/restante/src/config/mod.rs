//! Where settings come from: the defaults, then `restante.toml`, then the environment, then the command line.
//!
//! Every source becomes a list of [`Setting`]s: a dotted key, a value and its origin. They are applied to the defaults one after the
//! other, and each is checked when it is applied, so that an error names the wrong place.

#[cfg(feature = "waku")]
mod address;
#[cfg(feature = "waku")]
mod archive;
#[cfg(feature = "mail")]
mod blobs;
mod env;
mod file;
mod flags;
#[cfg(feature = "mail")]
mod mail_flags;
mod nearest;
#[cfg(feature = "waku")]
mod node_key;
mod plain;
#[cfg(feature = "mail")]
mod queue;
#[cfg(feature = "mail")]
mod records;
#[cfg(feature = "waku")]
mod rest;
mod schema;
#[cfg(feature = "mail")]
mod search;
mod sessions;
mod tls;
#[cfg(feature = "waku")]
mod waku;
#[cfg(feature = "waku")]
mod waku_flags;
mod words;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use toml::Value;

use crate::doors::{self, DOORS};

#[cfg(feature = "waku")]
pub(crate) use archive::Archive as ArchiveSection;
pub(crate) use flags::{DataFlags, ServeFlags};
#[cfg(feature = "mail")]
pub(crate) use mail_flags::RecordsFlags;
pub(crate) use plain::argument as plain_argument;
pub(crate) use schema::{Config, LogFormat};
#[cfg(feature = "waku")]
pub(crate) use waku_flags::ArchiveFlags;
pub(crate) use words::LogFilter;

/// The file that is read if it exists and no other is named.
const DEFAULT_FILE: &str = "restante.toml";

/// A value that was set explicitly.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// The error for a configuration that can't be used, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConfigError(String);

/// The effective settings, and where each comes from.
#[derive(Clone, Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    /// The settings file that was read.
    pub(crate) file: Option<PathBuf>,
    values: BTreeMap<String, (Value, Origin)>,
}

/// Reads all sources and applies them in order of priority: flag > environment > file > default.
pub(crate) fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    flags: Vec<Setting>,
) -> Result<Effective, ConfigError> {
    let mut effective = Effective::defaults();
    let (file, settings) = file::read(file, Path::new(DEFAULT_FILE))?;
    effective.file = file;
    for setting in settings {
        effective.set(setting)?;
    }
    for setting in env::read(environment, &effective)? {
        effective.set(setting)?;
    }
    for setting in flags {
        effective.set(setting)?;
    }
    effective.check_together()?;
    Ok(effective)
}

/// The process's environment, without names and values that are not UTF-8: none of those is a setting.
pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

impl Effective {
    pub(crate) fn defaults() -> Self {
        let config = Config::default();
        let tree = Value::try_from(&config).expect("the defaults are plain values");
        let mut values = BTreeMap::new();
        flatten("", tree, &mut values);
        Self { config, file: None, values }
    }

    /// All keys with their values and origins, by key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value, &Origin)> {
        self.values.iter().map(|(key, (value, origin))| (key.as_str(), value, origin))
    }

    /// The same for display: without the passwords that URLs may have, and without the node's key. The output is never read back.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&str, Value, &Origin)> {
        let config = &self.config;
        self.iter().map(|(key, value, origin)| {
            let of_sessions = (key == "sessions.url").then(|| config.sessions.url.to_string());
            let of_door = || DOORS.iter().find_map(|door| door.without_secret(config, key));
            let without_secret = of_sessions.or_else(of_door);
            (key, without_secret.map_or_else(|| value.clone(), Value::String), origin)
        })
    }

    /// Where the value of a key comes from.
    pub(crate) fn origin(&self, key: &str) -> &Origin {
        self.values.get(key).map_or(&Origin::Default, |(_, origin)| origin)
    }

    /// Whether a key was set. A default value in a file does not count: the shipped file lists all defaults, and a server without the
    /// file must behave the same.
    pub(crate) fn is_set(&self, key: &str) -> bool {
        match self.origin(key) {
            Origin::Default => false,
            Origin::File { .. } => self.value(key) != Self::defaults().value(key),
            Origin::Environment(_) | Origin::Flag(_) => true,
        }
    }

    /// The effective value of a known key.
    fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).map(|(value, _)| value)
    }

    fn is_section(&self, key: &str) -> bool {
        self.values.keys().any(|known| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The feature that has the section of a key, if this binary was built without that feature.
    fn feature_without(&self, key: &str) -> Option<&'static str> {
        let section = key.split('.').next().unwrap_or_default();
        if self.is_section(section) { None } else { doors::feature_of_section(section) }
    }

    /// Applies one setting over the current value.
    fn set(&mut self, setting: Setting) -> Result<(), ConfigError> {
        let Setting { key, value, origin } = setting;
        if self.is_section(&key) {
            return Err(ConfigError(format!("{origin}: '{key}' is a section and takes no value")));
        }
        let Some(place) = self.values.get_mut(&key) else {
            if let Some(feature) = self.feature_without(&key) {
                return Err(ConfigError(format!("{origin}: '{key}': {}", doors::built_without(feature))));
            }
            let hint = nearest::hint(&key, self.values.keys().map(String::as_str));
            return Err(ConfigError(format!("{origin}: there is no setting '{key}'{hint}")));
        };
        *place = (value, origin.clone());
        self.config = Config::deserialize(nest(&self.values)).map_err(|error| {
            // The error ends with the key, on a line of its own; the message names it already.
            ConfigError(format!("{origin}: {key}: {}", plain::setting(error.message())))
        })?;
        Ok(())
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        match self.config.contradiction() {
            None => Ok(()),
            Some((key, what)) => {
                let origin = self.origin(key);
                Err(ConfigError(format!("{origin}: {key}: {what}")))
            }
        }
    }
}

/// Flattens a tree into leaves with dotted keys.
fn flatten(prefix: &str, tree: Value, out: &mut BTreeMap<String, (Value, Origin)>) {
    match tree {
        Value::Table(table) => {
            for (name, value) in table {
                flatten(&join(prefix, &name), value, out);
            }
        }
        leaf => {
            out.insert(prefix.to_owned(), (leaf, Origin::Default));
        }
    }
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// The tree of the leaves with dotted keys.
fn nest(values: &BTreeMap<String, (Value, Origin)>) -> Value {
    let mut root = toml::Table::new();
    for (key, (value, _)) in values {
        let mut table = &mut root;
        let mut names: Vec<&str> = key.split('.').collect();
        let last = names.pop().unwrap_or_default();
        for name in names {
            let inner = table.entry(name).or_insert_with(|| Value::Table(toml::Table::new()));
            let Value::Table(inner) = inner else { unreachable!("no key is both a value and a section") };
            table = inner;
        }
        table.insert(last.to_owned(), value.clone());
    }
    Value::Table(root)
}

#[cfg(test)]
mod tests;
