//! What the comparison takes.

use restante_bench::CommonArgs;

/// More equal queries at once than this only wait for each other.
const CONCURRENCY_MAX: u64 = 64;

/// Puts restante's engines beside the stores that they are to beat: the same data, server, disk and questions
///
/// Fills the archive's postgres engine and the Status mailserver's own tables in one PostgreSQL server, the archive's sqlite
/// engine and nwaku's own table in files on one disk, and asks all of them for the history of a Status mailserver, in turns.
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
    /// Compare on one database only
    #[arg(long, value_name = "DATABASE")]
    pub only: Option<Database>,
    /// Ask every question also this many times at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=CONCURRENCY_MAX))]
    pub concurrency: u64,
    /// Measure the rivals alone, not restante's engines
    #[arg(long)]
    pub rivals_only: bool,
    /// Leave the schemas and files of this run where they are
    #[arg(long)]
    pub keep: bool,
}

/// The database on which stores are compared.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// One PostgreSQL server.
    Postgres,
    /// SQLite files on one disk.
    Sqlite,
}

impl Database {
    /// Its name as its makers write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        }
    }
}

impl CompareArgs {
    /// Whether this database takes part.
    pub(crate) fn wants(&self, database: Database) -> bool {
        self.only.is_none_or(|only| only == database)
    }

    /// How many equal queries run at once: first one, then as many as were asked for.
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
        assert!(args.wants(Database::Sqlite) && !args.wants(Database::Postgres));
        assert_eq!(args.levels(), [1]);
    }

    #[test]
    fn one_alone_comes_first() {
        let args = CompareArgs::parse_from(["restante-compare", "--concurrency", "8"]);
        assert_eq!(args.levels(), [1, 8]);
    }
}
