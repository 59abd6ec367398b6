//! Flags of all benches.

use std::{fmt, path::PathBuf, str::FromStr};

use restante_archive::EngineUrl;

use crate::dataset::MESSAGES_FULL;

/// The largest data set.
const MESSAGES_MAX: u64 = 1_000_000_000;
/// Messages of a quick run.
const MESSAGES_QUICK: u64 = 5_000;

/// Flags of every bench.
#[derive(clap::Args, Clone, Debug)]
pub struct CommonArgs {
    /// Messages of the data set; every topic and day has the same share as in the full 1,467,846
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MESSAGES_MAX))]
    pub messages: Option<u64>,
    /// Engine to measure, may be given several times for one report with all of them: `log:`, `sqlite:` and
    /// `postgres:` (in the database of RESTANTE_POSTGRES_URL) for a fresh archive that is removed afterwards;
    /// `log:FOLDER`, `sqlite:FILE` and `postgres://...` for one that is not removed; `memory:`
    #[arg(long = "engine", value_name = "URL", default_value = "log:")]
    pub engines: Vec<EngineChoice>,
    /// Folder for the bench's files; by default a temporary one in the current folder
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Seed of the data set
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// Write the rows and the machine to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to this file; it needs no other file and no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Only check that it works: few messages, few repetitions, figures without meaning
    #[arg(long)]
    pub quick: bool,
}

/// Flags of benches without messages: where their files and results go.
#[derive(clap::Args, Clone, Debug)]
pub struct OutputArgs {
    /// Folder for the bench's files; by default a temporary one in the current folder
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Write the rows and the machine to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots to this file; it needs no other file and no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Only check that it works: few repetitions, figures without meaning
    #[arg(long)]
    pub quick: bool,
}

impl OutputArgs {
    /// The flags as the report and the work folder need them.
    pub(crate) fn common(&self, seed: u64) -> CommonArgs {
        let Self { data, json, html, quick } = self.clone();
        CommonArgs { messages: None, engines: Vec::new(), data, seed, json, html, quick }
    }
}

impl CommonArgs {
    /// The number of messages of the data set.
    pub fn messages(&self) -> u64 {
        self.messages.unwrap_or(if self.quick { MESSAGES_QUICK } else { MESSAGES_FULL })
    }

    /// Chooses a value for a real or for a quick run.
    pub fn pick<T>(&self, real: T, quick: T) -> T {
        if self.quick { quick } else { real }
    }
}

/// Which engine to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// A fresh archive, removed afterwards.
    Fresh(FreshEngine),
    /// A named archive, not removed.
    At(EngineUrl),
}

/// An engine that can create a fresh archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreshEngine {
    /// In a folder of its own.
    Log,
    /// In a file of its own.
    Sqlite,
    /// In a schema of its own, in the database of the environment.
    Postgres,
}

impl FreshEngine {
    /// The names of all.
    const ALL: [(&str, Self); 3] =
        [("log:", Self::Log), ("sqlite:", Self::Sqlite), ("postgres:", Self::Postgres)];
}

impl FromStr for EngineChoice {
    type Err = restante_archive::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        for (name, engine) in FreshEngine::ALL {
            if text == name {
                return Ok(Self::Fresh(engine));
            }
        }
        text.parse().map(Self::At)
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fresh(FreshEngine::Log) => f.write_str("log:"),
            Self::Fresh(FreshEngine::Sqlite) => f.write_str("sqlite:"),
            Self::Fresh(FreshEngine::Postgres) => f.write_str("postgres:"),
            Self::At(url) => fmt::Display::fmt(url, f),
        }
    }
}

/// A list of sizes, separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

/// The text is not a list of sizes.
#[derive(Debug)]
pub struct ParseSizesError;

impl fmt::Display for ParseSizesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected numbers from 1 to {MESSAGES_MAX}, separated by commas, for example 150000,1500000"
        )
    }
}

impl std::error::Error for ParseSizesError {}

impl FromStr for Sizes {
    type Err = ParseSizesError;

    fn from_str(text: &str) -> Result<Self, ParseSizesError> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            let size: u64 = part.trim().parse().map_err(|_| ParseSizesError)?;
            if !(1..=MESSAGES_MAX).contains(&size) {
                return Err(ParseSizesError);
            }
            sizes.push(size);
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self(sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_parsed() {
        for (text, engine) in FreshEngine::ALL {
            assert_eq!(text.parse::<EngineChoice>().unwrap(), EngineChoice::Fresh(engine));
            assert_eq!(EngineChoice::Fresh(engine).to_string(), text);
        }
        let at: EngineChoice = "postgres://me@host/db".parse().unwrap();
        assert!(matches!(at, EngineChoice::At(EngineUrl::Postgres(_))));
        assert_eq!("memory:".parse::<EngineChoice>().unwrap(), EngineChoice::At(EngineUrl::Memory));
        assert_eq!(
            "log:a/b".parse::<EngineChoice>().unwrap(),
            EngineChoice::At(EngineUrl::Log("a/b".into()))
        );
        assert!("mongo:".parse::<EngineChoice>().is_err());
    }

    #[test]
    fn sizes_are_parsed_and_sorted() {
        assert_eq!("20, 10,20".parse::<Sizes>().unwrap(), Sizes(vec![10, 20]));
        assert!("10,".parse::<Sizes>().is_err());
        assert!("0".parse::<Sizes>().is_err());
    }
}
