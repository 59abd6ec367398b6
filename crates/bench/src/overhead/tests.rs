use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{
    engines::load::{Done, closed_loop},
    report::assert_explained,
};

const SUBJECT: Subject<'_> = Subject { what: "commit", beside: RAW };

fn args() -> OverheadArgs {
    let output = OutputArgs { data: Some(std::env::temp_dir()), json: None, html: None, quick: true };
    OverheadArgs { only: Vec::new(), pairs: 5, seconds: 5, records: 100_000, messages: 100_000, output }
}

fn loaded(per_second: f64, p50_ms: f64) -> Load {
    Load { per_second, p50_ms }
}

/// A side that returns these figures, one after the other, after that of its warm-up.
fn side(figures: &[(f64, f64)]) -> impl AsyncFnMut(Duration) -> anyhow::Result<Load> {
    let mut figures = [&[(1e9, 1e-9)], figures].concat().into_iter();
    async move |_| figures.next().map(|(rate, ms)| loaded(rate, ms)).ok_or_else(|| anyhow::anyhow!("no more"))
}

const PLAN: Plan = Plan { pairs: 3, span: Duration::from_secs(3) };

async fn example() -> pairs::Pairs {
    let base = side(&[(100.0, 1.0), (200.0, 2.0), (100.0, 4.0)]);
    let ours = side(&[(90.0, 1.1), (100.0, 3.0), (120.0, 4.0)]);
    alternate(PLAN, base, ours).await.unwrap()
}

#[tokio::test]
async fn sides_alternate_and_their_warm_up_is_shorter() {
    let order = std::cell::RefCell::new(Vec::new());
    let noted = async |name, span: Duration| {
        order.borrow_mut().push((name, span.as_secs()));
        Ok(loaded(1.0, 1.0))
    };
    let plan = Plan { pairs: 2, ..PLAN };
    alternate(plan, async |span| noted("raw", span).await, async |span| noted("ours", span).await)
        .await
        .unwrap();
    let expected = [("raw", 1), ("ours", 1), ("raw", 3), ("ours", 3), ("raw", 3), ("ours", 3)];
    assert_eq!(*order.borrow(), expected);
}

#[tokio::test]
async fn a_row_has_the_median_ratio_and_not_the_ratio_of_medians() {
    let row = example().await.row("cassandra", SUBJECT, Bound::Rate(0.9)).unwrap();
    assert_eq!((row.base, row.restante), (100.0, 100.0));
    assert_eq!((row.ratio, row.ratio_min, row.ratio_max), (0.9, 0.5, 1.2));
    assert!(row.is_met && row.unit == "1/s" && row.pairs == 3, "{row:?}");
    let row = example().await.row("cassandra", SUBJECT, Bound::Time(1.05)).unwrap();
    assert_eq!((row.ratio, row.ratio_min, row.ratio_max), (1.1, 1.0, 1.5));
    assert!(!row.is_met && row.unit == "ms", "{row:?}");
}

#[tokio::test]
async fn milliseconds_count_beside_the_ratio() {
    let pairs = example().await;
    // Above 1 x there are 0.1, 1 and 0 ms.
    for (bound, is_met) in [(Bound::TimeAndMs(1.0, 0.11), true), (Bound::TimeAndMs(1.0, 0.05), false)] {
        let row = pairs.row("opensearch", SUBJECT, bound).unwrap();
        assert_eq!((row.is_met, row.goal().is_met), (is_met, Some(is_met)), "{row:?}");
    }
}

#[tokio::test]
async fn a_side_that_fails_is_named_and_gives_no_row() {
    let failing = async |_| Err(anyhow::anyhow!("connection refused"));
    let error = alternate(PLAN, side(&[(1.0, 1.0)]), failing).await.unwrap_err();
    assert_eq!(format!("{error:#}"), "restante: connection refused");
    let pairs = alternate(PLAN, side(&[(0.0, 1.0); 3]), side(&[(1.0, 1.0); 3])).await.unwrap();
    assert!(pairs.row("s3", SUBJECT, Bound::Rate(0.9)).is_err(), "nothing was done beside it");
}

#[tokio::test]
async fn one_operation_that_fails_fails_its_side() {
    let operation = async |_, number| {
        anyhow::ensure!(number != 3, "operation {number}");
        Ok(Done::new("operation", 0))
    };
    let bar = indicatif::ProgressBar::hidden();
    let measured = closed_loop(1, 10, Duration::from_secs(60), &bar, operation).await.unwrap();
    let error = Load::of(&measured).unwrap_err().to_string();
    assert_eq!(error, "1 of the operations failed, the first with: operation 3");
}

async fn rows() -> Vec<Row> {
    let pairs = example().await;
    let bounds = [Bound::Rate(0.9), Bound::Time(1.05), Bound::TimeAndMs(1.0, 0.11)];
    bounds.map(|bound| pairs.row("cassandra", SUBJECT, bound).unwrap()).into()
}

#[tokio::test]
async fn the_report_has_a_table_of_each_server_and_a_goal_of_each_row() {
    let mut rows = rows().await;
    if let Some(last) = rows.last_mut() {
        last.server = "opensearch";
    }
    let mut report = Report::new("overhead", "Overhead.", Machine::look(Path::new(".")));
    present::present(&rows, &mut report).unwrap();
    assert_explained(&report.tables);
    let shown: Vec<_> = report.tables.iter().map(|table| (table.title.as_str(), table.rows.len())).collect();
    assert_eq!(shown, [("cassandra", 2), ("opensearch", 1)]);
    let met: Vec<_> = report.goals.iter().map(|goal| goal.is_met).collect();
    assert_eq!(met, [Some(true), Some(false), Some(true)]);
    let row = &report.rows[1];
    assert_eq!((row["ratio"].as_f64(), row["is_met"].as_bool()), (Some(1.1), Some(false)));
    assert_eq!((row["bound"].as_str(), row["beside"].as_str()), (Some("<= 1.05 x"), Some(RAW)));
    assert!(row.get("judged").is_none(), "{row}");
}

#[tokio::test]
async fn a_quick_run_judges_nothing() {
    let report = report(&args(), &rows().await, &["s3: connection refused".to_owned()]).unwrap();
    assert!(report.goals.is_empty() && report.rows.len() == 3);
    assert!(report.notes.iter().any(|note| note.contains("s3: connection refused")), "{:?}", report.notes);
}

/// A server that fails after its first row.
#[derive(Default)]
struct Failing {
    at_clean_up: bool,
    is_cleaned: AtomicBool,
}

#[async_trait(?Send)]
impl Server for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn created(&self) -> String {
        "drop keyspace restante_bench_1".to_owned()
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let same = async |_| Ok(loaded(10.0, 1.0));
        bench.compare(SUBJECT, &[Bound::Rate(0.9), Bound::Time(1.2)], same, same).await?;
        bail!("the server died")
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        self.is_cleaned.store(true, Ordering::Relaxed);
        if self.at_clean_up {
            bail!("connection refused");
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_server_that_dies_keeps_its_rows_and_is_cleaned() {
    let (server, mut failures) = (Failing::default(), Vec::new());
    let rows = run_server(&server, &args(), &mut failures).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert!(server.is_cleaned.load(Ordering::Relaxed));
    assert_eq!(failures, ["failing: the server died"]);
}

#[tokio::test]
async fn what_can_not_be_removed_is_named_with_the_command_that_removes_it() {
    let (server, mut failures) = (Failing { at_clean_up: true, ..Failing::default() }, Vec::new());
    run_server(&server, &args(), &mut failures).await.unwrap();
    let [_, left] = failures.as_slice() else { panic!("{failures:?}") };
    assert!(left.contains("drop keyspace") && left.contains("connection refused"), "{left}");
}

#[test]
fn names_of_servers_are_those_that_can_be_chosen() {
    for (name, _) in SERVERS {
        assert!(SERVER_NAMES.contains(name), "{name}");
    }
}

/// Against real servers, if dev/services has started them: each has its rows, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_the_environment_are_compared() {
    let _alone = crate::engines::tests::SERVERS.lock().await;
    for (name, connect) in SERVERS {
        let Some(server) = connect(&args()).await.unwrap() else {
            let is_required = std::env::var("RESTANTE_TEST_REQUIRE").is_ok_and(|names| names.contains(name));
            assert!(!is_required, "{name} is required and not there");
            continue;
        };
        let mut failures = Vec::new();
        let rows = run_server(&*server, &args(), &mut failures).await.unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        assert!(!rows.is_empty() && rows.iter().all(|row| row.ratio > 0.0), "{rows:?}");
    }
}
