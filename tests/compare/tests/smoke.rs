//! Small end-to-end runs. The run itself checks the rows and bytes of every answer; these tests check that its report is
//! complete. Trials that need a PostgreSQL server are ignored if `RESTANTE_POSTGRES_URL` names none, and fail if
//! `RESTANTE_TEST_REQUIRE` requires one.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

use clap::Parser;
use libtest_mimic::{Arguments, Failed, Trial};
use restante_compare::{CompareArgs, run};
use serde_json::Value;

/// Six cells, by list and by filter, in full and two pages.
const QUESTIONS: usize = 6 * 2 * 3;

fn main() {
    if std::env::var_os("RESTANTE_COMPARE_TASK").is_some() {
        // A child of the trial below: it starts its own program again to measure memory.
        let args = CompareArgs::parse_from(["restante-compare"]);
        tokio::runtime::Runtime::new().unwrap().block_on(run(&args)).unwrap();
        return;
    }
    let has_server = std::env::var_os("RESTANTE_POSTGRES_URL").is_some();
    let required = std::env::var("RESTANTE_TEST_REQUIRE").unwrap_or_default();
    let needs_server = required.split(',').any(|name| name == "postgres");
    let mut trials = Vec::new();
    for (database, contenders, goals) in [("postgres", 4, 6), ("sqlite", 3, 3)] {
        let is_ignored = database == "postgres" && !has_server && !needs_server;
        let all = move || compares(database, contenders, goals);
        let rivals = move || rivals_alone_are_not_judged(database, contenders - 2);
        trials.push(Trial::test(format!("{database}_compares"), all).with_ignored_flag(is_ignored));
        trials.push(
            Trial::test(format!("{database}_rivals_alone_are_not_judged"), rivals)
                .with_ignored_flag(is_ignored),
        );
    }
    trials.push(Trial::test("sessions_compare", sessions_compare));
    let mut arguments = Arguments::from_args();
    // Two runs can't share a database.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit();
}

/// The rows of a small run's report.
fn rows(database: &str, flags: &[&str]) -> Result<Vec<Value>, Failed> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("report.json");
    let data = folder.path().join("data");
    let mut line = vec!["restante-compare", "--quick", "--only", database];
    line.extend(["--json", json.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    line.extend(flags);
    let args = CompareArgs::try_parse_from(line)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run(&args)).map_err(|error| format!("{error:#}"))?;
    assert_eq!(std::fs::read_dir(&data)?.count(), 0, "files were left");
    let report: Value = serde_json::from_slice(&std::fs::read(&json)?)?;
    Ok(report["rows"].as_array().unwrap().clone())
}

fn of_table<'a>(rows: &'a [Value], table: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["table"] == table).collect()
}

fn compares(database: &str, contenders: usize, goals: usize) -> Result<(), Failed> {
    let rows = rows(database, &["--concurrency", "2"])?;
    let answers = of_table(&rows, "answer");
    assert_eq!(answers.len(), QUESTIONS * contenders * 2);
    assert!(answers.iter().all(|answer| answer["median_ms"].as_f64().unwrap() > 0.0));
    let fills = of_table(&rows, "fill");
    assert_eq!(fills.len(), contenders);
    assert!(fills.iter().all(|fill| fill["disk_bytes"].as_u64().unwrap() > 1_000_000), "{fills:?}");
    let judged = of_table(&rows, "goal");
    assert_eq!(judged.len(), goals);
    assert!(judged.iter().all(|goal| goal["met"].is_boolean()), "{judged:?}");
    Ok(())
}

fn rivals_alone_are_not_judged(database: &str, rivals: usize) -> Result<(), Failed> {
    let rows = rows(database, &["--rivals-only"])?;
    assert_eq!(of_table(&rows, "answer").len(), QUESTIONS * rivals);
    assert!(of_table(&rows, "goal").iter().all(|goal| goal["met"].is_null()));
    Ok(())
}

fn sessions_compare() -> Result<(), Failed> {
    let rows = rows("sessions", &[])?;
    let of_part = |part: &str| rows.iter().filter(|row| row["part"] == part).cloned().collect::<Vec<_>>();
    for table in ["restante", "64 shards", "naive"] {
        let operations: Vec<Value> =
            of_part("table").into_iter().filter(|row| row["table"] == table).collect();
        assert!(!operations.is_empty(), "{table} has no operations");
        assert!(operations.iter().all(|row| row["bytes_per_session"].is_number()), "{operations:?}");
        assert!(of_part("memory").iter().any(|row| row["table"] == table), "{table} has no memory");
    }
    // Times of twelve finds and two merges, and bytes at three sizes, of each of six maps.
    assert_eq!(of_part("entries").len(), 6 * (12 + 2 + 3));
    Ok(())
}
