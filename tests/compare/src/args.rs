//! The flags of the comparison.

use anyhow::ensure;
use restante_bench::{CommonArgs, Sizes};

/// More equal queries at once would only wait for each other.
const CONCURRENCY_MAX: u64 = 64;
/// Sessions in the tables: those of MongooseIM's measurement, and those of a large server.
const SIZES: &str = "12000,1000000";
const SIZES_QUICK: [u32; 2] = [200, 500];
/// The names of users have eight digits, and a table needs a quarter more users than sessions.
const SESSIONS_MAX: u64 = 25_000_000;

/// Compares restante's engines with other stores: the same data, server, disk and questions
///
/// Fills the archive's postgres engine and the Status mailserver's own tables in one PostgreSQL server, the archive's sqlite
/// engine and nwaku's own table in files on one disk, and asks all of them in turn for the history of a Status mailserver.
/// Then measures restante's table of sessions, 64 locked tables, a naive one and, where Erlang is installed, Mnesia's.
#[derive(clap::Parser, Clone, Debug)]
#[command(
    name = "restante-compare",
    mut_args(|arg| match arg.get_id().as_str() {
        "engines" => arg.hide(true),
        "data" => arg.visible_alias("sqlite-dir"),
        _ => arg,
    })
)]
pub struct CompareArgs {
    /// Flags of every bench.
    #[command(flatten)]
    pub common: CommonArgs,
    /// PostgreSQL server: a libpq URL of a role that may create schemas in its database
    #[arg(long, value_name = "URL", env = "RESTANTE_POSTGRES_URL", hide_env_values = true)]
    pub postgres: Option<String>,
    /// Make one comparison only
    #[arg(long, value_name = "COMPARISON")]
    pub only: Option<Comparison>,
    /// Ask every question also this many times at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MAX))]
    pub concurrency: u64,
    /// Measure the rivals alone, not restante's engines
    #[arg(long)]
    pub rivals_only: bool,
    /// Sessions in the tables, separated by commas; a million take up to 2 GB of memory (the naive table, and Mnesia)
    #[arg(long, value_name = "N,N", default_value = SIZES)]
    pub sizes: Sizes,
    /// Do not remove the schemas and files of this run
    #[arg(long)]
    pub keep: bool,
}

/// One of the comparisons.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// History in one PostgreSQL server
    Postgres,
    /// History in SQLite files on one disk
    Sqlite,
    /// Tables of sessions in memory
    Sessions,
}

/// The database on which stores are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// One PostgreSQL server.
    Postgres,
    /// SQLite files on one disk.
    Sqlite,
}

impl Database {
    /// Its usual spelling.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        }
    }
}

impl CompareArgs {
    /// Whether this comparison is made.
    pub(crate) fn includes(&self, comparison: Comparison) -> bool {
        self.only.is_none_or(|only| only == comparison)
    }

    /// The sizes of the tables of sessions, ascending.
    pub(crate) fn sizes(&self) -> anyhow::Result<Vec<u32>> {
        if self.common.quick {
            return Ok(SIZES_QUICK.to_vec());
        }
        let mut sizes = Vec::new();
        for size in &self.sizes.0 {
            ensure!(
                (100..=SESSIONS_MAX).contains(size),
                "a table has 100 to {SESSIONS_MAX} sessions, not {size}"
            );
            sizes.push(u32::try_from(*size)?);
        }
        Ok(sizes)
    }

    /// How many equal queries run at once: first one, then the requested number.
    pub(crate) fn levels(&self) -> Vec<usize> {
        let mut levels = vec![1, self.concurrency as usize];
        levels.dedup();
        levels
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[test]
    fn flags_are_read() {
        CompareArgs::command().debug_assert();
        let line = ["restante-compare", "--messages", "10", "--sqlite-dir", "d", "--only", "sqlite"];
        let args = CompareArgs::parse_from(line);
        assert_eq!(args.common.messages(), 10);
        assert_eq!(args.common.data, Some("d".into()));
        assert!(args.includes(Comparison::Sqlite) && !args.includes(Comparison::Postgres));
        assert_eq!(args.sizes().unwrap(), [12_000, 1_000_000]);
        assert_eq!(args.levels(), [1]);
    }

    #[test]
    fn one_alone_comes_first() {
        let args = CompareArgs::parse_from(["restante-compare", "--concurrency", "8"]);
        assert_eq!(args.levels(), [1, 8]);
    }
}
