//! The cost of a page at several sizes of the archive: it should depend on the answer, not on the archive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::ensure;
use restante_archive::{Archive, Direction, EngineUrl, Query, Topics};
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use serde::Serialize;

use crate::{
    args::{CommonArgs, EngineChoice, Sizes},
    dataset::{DAYS, Dataset, START, SetName, Span, content_topic, day_start},
    machine::Machine,
    measure::{Latencies, ratio, rounded, touch_all},
    progress,
    random::Random,
    report::{Bars, Curves, Goal, Plot, Report, Table, number, optional},
    store::{Store, work_folder},
};

const PAGE_ROWS: usize = 100;
/// Pages of each kind and position.
const REPETITIONS: usize = 300;
const REPETITIONS_QUICK: usize = 3;
/// A slow engine gets fewer repetitions: as many as fit into this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// Messages whose hashes are looked up.
const KNOWN_HASHES: usize = 2_000;
const KNOWN_HASHES_QUICK: usize = 150;
/// The default sizes: the largest, a tenth and a hundredth of it.
const LARGEST: u64 = 15_000_000;
const LARGEST_QUICK: u64 = 10_000;

/// Flags of `bench pages`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  restante bench pages --sizes 150000,1500000 --html pages.html     (a minute, 1.3 GB)
  restante bench pages --data /var/lib/restante                     (three minutes, 13 GB)")]
pub struct PagesArgs {
    /// Flags of every bench; `--messages` is the largest size when no sizes are given
    #[command(flatten)]
    pub common: CommonArgs,
    /// Sizes of the archive in messages [default: 150000,1500000,15000000]
    #[arg(long, value_name = "N,N,...")]
    pub sizes: Option<Sizes>,
}

impl PagesArgs {
    fn sizes(&self) -> Vec<u64> {
        if let Some(Sizes(sizes)) = &self.sizes {
            return sizes.clone();
        }
        let largest = self.common.messages.unwrap_or(self.common.pick(LARGEST, LARGEST_QUICK));
        vec![(largest / 100).max(1), (largest / 10).max(1), largest]
    }
}

/// The condition of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Any,
    Hot,
    Rare,
    Few,
    Absent,
    Bloom,
    Hashes,
}

impl Kind {
    const ALL: [Self; 7] =
        [Self::Any, Self::Hot, Self::Rare, Self::Few, Self::Absent, Self::Bloom, Self::Hashes];

    fn name(self) -> &'static str {
        match self {
            Self::Any => "any topic",
            Self::Hot => "hot topic",
            Self::Rare => "3 rare topics",
            Self::Few => "topic of few messages",
            Self::Absent => "absent topic",
            Self::Bloom => "bloom of 256 topics",
            Self::Hashes => "100 hashes",
        }
    }

    /// The positions of pages. Answers of a single page have only the first.
    fn positions(self) -> &'static [Position] {
        match self {
            Self::Any | Self::Hot | Self::Rare | Self::Bloom => &Position::ALL,
            Self::Few | Self::Absent | Self::Hashes => &[Position::First],
        }
    }
}

/// The position of a page, as a share of the whole time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Without a cursor.
    First,
    /// Near the middle.
    Middle,
    /// Near the far end, in the direction of paging.
    Deep,
}

impl Position {
    const ALL: [Self; 3] = [Self::First, Self::Middle, Self::Deep];

    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Middle => "middle",
            Self::Deep => "deep",
        }
    }

    /// A cursor near the position; a different one each time, so that no page is read twice in a row.
    ///
    /// Cursors are positions in the order; there need not be a message at a cursor.
    fn cursor(self, direction: Direction, random: &mut Random) -> Option<Cursor> {
        let centre = match (self, direction) {
            (Self::First, _) => return None,
            (Self::Middle, _) => 0.5,
            (Self::Deep, Direction::Forward) => 0.97,
            (Self::Deep, Direction::Backward) => 0.03,
        };
        let share = centre + 0.02 * (random.unit() - 0.5);
        let nanos = (day_start(DAYS).nanos() - START.nanos()) as f64 * share;
        let timestamp = Timestamp(START.nanos() + nanos as i64);
        Some(Cursor::At(Key { timestamp, message_hash: MessageHash::MIN }))
    }
}

/// A row of JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PageRow {
    engine: &'static str,
    /// Messages in the archive.
    messages: u64,
    query: &'static str,
    direction: &'static str,
    position: &'static str,
    /// Rows of a page, on average.
    rows: f64,
    median_ms: f64,
    p99_ms: f64,
    /// `median_ms` divided by that of the smallest archive.
    ratio_to_smallest: Option<f64>,
    repetitions: u64,
}

struct Measured {
    row: PageRow,
    times: Latencies,
}

/// Runs the bench and delivers its report.
pub(crate) async fn run(args: &PagesArgs) -> anyhow::Result<()> {
    measure(args).await?.deliver(&args.common)
}

/// Runs the bench.
pub(crate) async fn measure(args: &PagesArgs) -> anyhow::Result<Report> {
    let common = &args.common;
    let folder = work_folder(common)?;
    let title = "Pages of 100, reading every byte of their bodies, in archives of several sizes.";
    let mut report = Report::new("pages", title, Machine::look(folder.path()));
    let sizes = args.sizes();
    let mut measured: Vec<Measured> = Vec::new();
    for choice in &common.engines {
        ensure!(
            !matches!(choice, EngineChoice::At(EngineUrl::Log(_) | EngineUrl::Sqlite(_))),
            "bench pages fills an archive of each size: name the disk with --data instead of an engine's folder or file"
        );
        let before = measured.len();
        for messages in &sizes {
            let store = Store::open_fresh(choice, folder.path(), *messages).await?;
            let dataset = Arc::new(Dataset::new(common.seed, *messages));
            store.fill(&dataset).await?;
            measured.extend(measure_size(&store, &dataset, common).await?);
            store.opened.upkeep.close().await?;
        }
        compare(measured.get_mut(before..).unwrap_or_default());
    }
    for cell in &measured {
        report.add_rows(&[&cell.row])?;
    }
    present(&measured, &mut report);
    Ok(report)
}

/// Sets the ratios to the smallest size.
fn compare(measured: &mut [Measured]) {
    let rows: Vec<PageRow> = measured.iter().map(|cell| cell.row.clone()).collect();
    for cell in measured {
        let smallest = rows.iter().find(|row| is_same_question(row, &cell.row));
        cell.row.ratio_to_smallest =
            smallest.and_then(|smallest| ratio(cell.row.median_ms, smallest.median_ms));
    }
}

fn is_same_question(one: &PageRow, other: &PageRow) -> bool {
    (one.query, one.direction, one.position) == (other.query, other.direction, other.position)
}

async fn measure_size(
    store: &Store,
    dataset: &Dataset,
    common: &CommonArgs,
) -> anyhow::Result<Vec<Measured>> {
    let archive = &**store.archive();
    let known = known_hashes(archive, common.pick(KNOWN_HASHES, KNOWN_HASHES_QUICK)).await?;
    let bar = progress::bar(&format!("pages of {} messages", dataset.len()), Kind::ALL.len() as u64);
    let mut measured = Vec::new();
    for kind in Kind::ALL {
        for direction in [Direction::Forward, Direction::Backward] {
            for position in kind.positions() {
                let asked = Asked {
                    kind,
                    direction,
                    position: *position,
                    topics: topics(kind, dataset),
                    known: &known,
                };
                let (times, rows) = asked.measure(archive, common).await?;
                check_rows(kind, rows, dataset)?;
                measured.push(Measured { row: asked.row(store.engine(), dataset, &times, rows), times });
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// A wrong number of rows would make a page fast for the wrong reason.
fn check_rows(kind: Kind, rows: f64, dataset: &Dataset) -> anyhow::Result<()> {
    let full = PAGE_ROWS as f64;
    let is_right = match kind {
        Kind::Any | Kind::Hot => rows == full || dataset.len() < 100_000,
        Kind::Hashes => rows == full || dataset.len() < 100_000,
        Kind::Absent => rows == 0.0,
        Kind::Rare | Kind::Few | Kind::Bloom => true,
    };
    ensure!(is_right, "a page of {} has {rows} rows on average", kind.name());
    Ok(())
}

fn topics(kind: Kind, dataset: &Dataset) -> Topics {
    match kind {
        Kind::Any | Kind::Hashes => Topics::Any,
        Kind::Hot => Topics::List(vec![dataset.topic(1).to_string()]),
        Kind::Rare => Topics::List((5..8).map(|rank| dataset.topic(rank).to_string()).collect()),
        Kind::Few => Topics::List(vec![topic_of_few(dataset)]),
        // No topic of the data set has this name, which `check_rows` verifies.
        Kind::Absent => Topics::List(vec![absent_topic(dataset)]),
        Kind::Bloom => Topics::Bloom(Box::new(dataset.query_set(SetName::Large).bloom)),
    }
}

/// A topic with about ten messages, or the least frequent one if all have more.
fn topic_of_few(dataset: &Dataset) -> String {
    let rank = dataset.rank_with(10);
    dataset.topic(rank).to_string()
}

fn absent_topic(dataset: &Dataset) -> String {
    for number in 0..u32::MAX {
        let topic = content_topic(number);
        let is_absent = dataset.count(Span::Month, |other| other == topic) == 0;
        if is_absent {
            return topic;
        }
    }
    String::new()
}

/// Hashes of messages from the whole time range.
async fn known_hashes(archive: &dyn Archive, count: usize) -> anyhow::Result<Vec<MessageHash>> {
    let mut random = Random::new(0, 7);
    let mut hashes = std::collections::BTreeSet::new();
    let span = (day_start(DAYS).nanos() - START.nanos()) as u64;
    for _ in 0..count {
        let start = Timestamp(START.nanos() + random.below(span) as i64);
        let query = Query { start: Some(start), limit: 1, bodies: false, ..Query::default() };
        let page = archive.query(&query).await?;
        hashes.extend(page.rows().map(|row| row.message_hash));
    }
    Ok(hashes.into_iter().collect())
}

/// A kind of page at a position.
struct Asked<'a> {
    kind: Kind,
    direction: Direction,
    position: Position,
    topics: Topics,
    known: &'a [MessageHash],
}

impl Asked<'_> {
    /// Reads the pages; returns their times and the average number of rows.
    async fn measure(&self, archive: &dyn Archive, common: &CommonArgs) -> anyhow::Result<(Latencies, f64)> {
        let mut random = Random::new(common.seed, 8);
        let repetitions = common.pick(REPETITIONS, REPETITIONS_QUICK);
        let warm_up = repetitions / 10 + 1;
        let mut times = Latencies::default();
        let mut rows = 0;
        let begun = Instant::now();
        for repetition in 0..warm_up + repetitions {
            let query = self.query(&mut random);
            let asked = Instant::now();
            let page = archive.query(&query).await?;
            touch_all(page.bodies());
            let time = asked.elapsed();
            if repetition >= warm_up {
                times.record(time);
                rows += page.len();
            }
            if begun.elapsed() > PATIENCE && times.len() > 0 {
                break;
            }
        }
        let mean = rows as f64 / times.len() as f64;
        Ok((times, mean))
    }

    fn query(&self, random: &mut Random) -> Query {
        let hashes = if self.kind == Kind::Hashes { self.some_hashes(random) } else { Vec::new() };
        Query {
            topics: self.topics.clone(),
            hashes,
            cursor: self.position.cursor(self.direction, random),
            direction: self.direction,
            limit: PAGE_ROWS,
            ..Query::default()
        }
    }

    /// A hundred different hashes: a random range of the known ones, in order of hash.
    fn some_hashes(&self, random: &mut Random) -> Vec<MessageHash> {
        let spare = self.known.len().saturating_sub(PAGE_ROWS) as u64;
        let first = random.below(spare + 1) as usize;
        self.known.iter().skip(first).take(PAGE_ROWS).copied().collect()
    }

    fn row(&self, engine: &'static str, dataset: &Dataset, times: &Latencies, rows: f64) -> PageRow {
        PageRow {
            engine,
            messages: dataset.len(),
            query: self.kind.name(),
            direction: match self.direction {
                Direction::Forward => "forward",
                Direction::Backward => "backward",
            },
            position: self.position.name(),
            rows: rounded(rows),
            median_ms: rounded(times.median_ms()),
            p99_ms: rounded(times.p99_ms()),
            ratio_to_smallest: None,
            repetitions: times.len(),
        }
    }
}

const NOTES: [&str; 3] = [
    "Each page begins at another random position near the start, the middle or the end of the time range, and its bodies are read.",
    "The rare topics have 0.3 % of all messages; the bloom filter matches about half of all topics and a quarter of the \
 messages; hashes are a hundred out of 2,000 from the whole time range.",
    "Pages with fewer rows than 100 are cheaper at small sizes for that reason alone: compare the rows.",
];

fn present(measured: &[Measured], report: &mut Report) {
    let columns =
        ["engine", "messages", "query", "direction", "position", "rows", "ms", "p99 ms", "by smallest"];
    let mut table = Table::new("Pages of 100", &columns).explain(&[
        ("position", "the part of the time range in which the pages begin"),
        ("ms", "median time of a page"),
        ("by smallest", "ms divided by that of the smallest archive in this run"),
    ]);
    for PageRow {
        engine,
        messages,
        query,
        direction,
        position,
        rows,
        median_ms,
        p99_ms,
        ratio_to_smallest,
        ..
    } in measured.iter().map(|cell| &cell.row)
    {
        table.add([
            (*engine).to_owned(),
            number(*messages as f64),
            (*query).to_owned(),
            (*direction).to_owned(),
            (*position).to_owned(),
            number(*rows),
            number(*median_ms),
            number(*p99_ms),
            optional(*ratio_to_smallest),
        ]);
    }
    report.tables.push(table);
    let mut engines: Vec<&'static str> = measured.iter().map(|cell| cell.row.engine).collect();
    engines.dedup();
    for engine in engines {
        let of_engine: Vec<&Measured> = measured.iter().filter(|cell| cell.row.engine == engine).collect();
        report.plots.push(bars(engine, &of_engine));
        report.plots.push(curves(engine, &of_engine));
        if engine == "log" {
            report.goals.extend(goals(engine, &of_engine)); // set for the embedded engine
        }
    }
    report.notes.extend(NOTES.map(str::to_owned));
    report.note_debug_build();
}

fn sizes_of(measured: &[&Measured]) -> Vec<u64> {
    let mut sizes: Vec<u64> = measured.iter().map(|cell| cell.row.messages).collect();
    sizes.dedup();
    sizes
}

fn bars(engine: &str, measured: &[&Measured]) -> Plot {
    let mut groups: Vec<String> = Vec::new();
    let mut series: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for size in sizes_of(measured) {
        let of_size: Vec<&PageRow> =
            measured.iter().map(|cell| &cell.row).filter(|row| row.messages == size).collect();
        groups =
            of_size.iter().map(|row| format!("{}, {}, {}", row.query, row.direction, row.position)).collect();
        let medians = of_size.iter().map(|row| Some(row.median_ms)).collect();
        series.push((format!("{} messages", number(size as f64)), medians));
    }
    Plot::Bars(Bars { title: format!("A page of 100, median ({engine})"), unit: "ms", groups, series })
}

fn curves(engine: &str, measured: &[&Measured]) -> Plot {
    let mut lines = Vec::new();
    for size in sizes_of(measured) {
        let mut all = Latencies::default();
        for cell in measured.iter().filter(|cell| cell.row.messages == size) {
            all.add(&cell.times);
        }
        lines.push((format!("{} messages", number(size as f64)), all.curve()));
    }
    Plot::Curves(Curves {
        title: format!("All pages: share of pages within a time ({engine})"),
        unit: "ms",
        lines,
    })
}

fn goals(engine: &str, measured: &[&Measured]) -> Vec<Goal> {
    // Hashes are a hundred look-ups at once; they have rows of their own and no goal.
    let by_topic = || measured.iter().filter(|cell| cell.row.query != Kind::Hashes.name());
    let slowest = by_topic().map(|cell| cell.row.median_ms).max_by(f64::total_cmp);
    let sizes = sizes_of(measured);
    let mut worst: Option<f64> = None;
    for cell in by_topic().filter(|cell| sizes.first() != Some(&cell.row.messages)) {
        // The ratio counts where the answers have the same number of rows, within a tenth.
        let smallest = measured.iter().find(|other| is_same_question(&other.row, &cell.row));
        let is_alike = smallest.is_some_and(|other| other.row.rows >= 0.9 * cell.row.rows);
        if is_alike {
            worst = [worst, cell.row.ratio_to_smallest].into_iter().flatten().max_by(f64::total_cmp);
        }
    }
    let largest = number(sizes.last().copied().unwrap_or(0) as f64);
    vec![
        Goal::at_most(
            format!(
                "{engine}: a page of 100 of any topics anywhere, slowest median, up to {largest} messages"
            ),
            0.2,
            "ms",
            slowest,
        ),
        Goal::at_most(
            format!("{engine}: the same page by that of the smallest archive, worst"),
            2.0,
            "x",
            worst,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::assert_explained, tests::quick};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_small_run_has_every_kind_of_page_at_each_size() {
        let args = PagesArgs { common: quick("memory:"), sizes: Some(Sizes(vec![500, 2_000])) };
        let report = measure(&args).await.unwrap();
        // Four kinds at three places and three kinds at one, in two directions and two sizes.
        assert_eq!(report.rows.len(), (4 * 3 + 3) * 2 * 2);
        for row in &report.rows {
            assert!(row["median_ms"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["ratio_to_smallest"].is_f64(), "{row}");
        }
        let hot =
            report.rows.iter().find(|row| row["query"] == "hot topic" && row["position"] == "first").unwrap();
        assert_eq!(hot["rows"], 100.0);
        assert_explained(&report.tables);
        assert_eq!((report.plots.len(), report.goals.len()), (2, 0), "goals are the embedded engine's");
    }

    #[test]
    fn an_absent_topic_is_absent_and_a_topic_of_few_has_few() {
        let dataset = Dataset::new(0, 150_000);
        let absent = absent_topic(&dataset);
        assert_eq!(dataset.count(Span::Month, |topic| topic == absent), 0);
        let few = topic_of_few(&dataset);
        let count = dataset.count(Span::Month, |topic| topic == few);
        assert!((8..=12).contains(&count), "{count}");
    }

    #[tokio::test]
    async fn a_named_folder_is_refused() {
        let error = measure(&PagesArgs { common: quick("log:x"), sizes: None }).await.err().unwrap();
        assert!(error.to_string().contains("--data"), "{error}");
    }
}
