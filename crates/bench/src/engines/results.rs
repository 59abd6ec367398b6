//! What was measured so far: rows, settings, plots, failures.

use std::{collections::BTreeMap, path::Path};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{
    setting::{EngineSetting, Judgement},
    verdict::{Better, Circumstances, Figure, Verdict, judge},
};
use crate::{
    measure::{Latencies, rounded},
    report::{Curves, Plot, Report, Table, number, optional},
};

/// One figure of one engine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) engine: &'static str,
    pub(crate) table: String,
    pub(crate) row: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The published figure.
    pub(crate) seed_value: Option<f64>,
    /// The best that machine and network allow in this run.
    pub(crate) floor: Option<f64>,
    /// The figure of an earlier run.
    pub(crate) baseline: Option<f64>,
    /// The share of its processors that the client used, 0 to 1.
    pub(crate) client_cpu: Option<f64>,
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
}

/// A name, and pairs of percentile and value.
type NamedCurve = (String, Vec<(f64, f64)>);

/// All that a run has measured so far.
#[derive(Default)]
pub(crate) struct Results {
    rows: Vec<Row>,
    settings: Vec<EngineSetting>,
    /// By title: percentile curves in milliseconds.
    curves: BTreeMap<String, Vec<NamedCurve>>,
    failures: Vec<String>,
    baseline: Baseline,
}

/// A table of an engine, to which figures are added.
pub(crate) struct Figures<'a> {
    results: &'a mut Results,
    engine: &'static str,
    table: String,
}

impl Results {
    pub(crate) fn new(baseline: Baseline) -> Self {
        Self { baseline, ..Self::default() }
    }

    /// The table of that name.
    pub(crate) fn table(&mut self, engine: &'static str, table: impl Into<String>) -> Figures<'_> {
        Figures { results: self, engine, table: table.into() }
    }

    pub(crate) fn add_settings(&mut self, settings: Vec<EngineSetting>) {
        self.settings.extend(settings);
    }

    pub(crate) fn add_failure(&mut self, failure: String) {
        self.failures.push(failure);
    }

    /// What could not be measured, in one line each.
    pub(crate) fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Whether anything was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.settings.is_empty()
    }

    /// Puts all into a report.
    pub(crate) fn fill(self, report: &mut Report) -> anyhow::Result<()> {
        report.add_rows(&self.rows)?;
        for setting in &self.settings {
            report.rows.push(setting_row(setting)?);
        }
        report.tables.extend(self.figure_tables());
        if !self.settings.is_empty() {
            report.tables.push(settings_table(&self.settings));
        }
        for (title, lines) in self.curves {
            report.plots.push(Plot::Curves(Curves { title, unit: "ms", lines }));
        }
        report.notes.extend(self.failures.into_iter().map(|failure| format!("NOT MEASURED: {failure}")));
        Ok(())
    }

    fn figure_tables(&self) -> Vec<Table> {
        let mut tables: Vec<(String, Vec<&Row>)> = Vec::new();
        for row in &self.rows {
            let title = format!("{}: {}", row.engine, row.table);
            match tables.iter_mut().find(|(other, _)| *other == title) {
                Some((_, rows)) => rows.push(row),
                None => tables.push((title, vec![row])),
            }
        }
        tables.into_iter().map(|(title, rows)| figure_table(title, &rows)).collect()
    }
}

impl Figures<'_> {
    /// Adds a figure with its verdict.
    pub(crate) fn add(
        &mut self,
        row: impl Into<String>,
        unit: &'static str,
        figure: &Figure,
        run: &Circumstances,
    ) {
        let row = row.into();
        let (verdict, reason) = judge(figure, run);
        let baseline = self.results.baseline.find(self.engine, &self.table, &row);
        self.results.rows.push(Row {
            engine: self.engine,
            table: self.table.clone(),
            row,
            value: rounded(figure.value),
            unit,
            seed_value: figure.seed,
            floor: figure.floor.map(rounded),
            baseline,
            client_cpu: run.client_cpu.map(rounded),
            verdict,
            reason,
        });
    }

    /// Adds a rate: higher is better.
    pub(crate) fn rate(
        &mut self,
        row: impl Into<String>,
        unit: &'static str,
        value: f64,
        references: References,
        run: &Circumstances,
    ) {
        let References { seed, floor } = references;
        self.add(row, unit, &Figure { value, better: Better::Higher, seed, floor }, run);
    }

    /// Adds a time in milliseconds.
    pub(crate) fn time(
        &mut self,
        row: impl Into<String>,
        value: f64,
        references: References,
        run: &Circumstances,
    ) {
        let References { seed, floor } = references;
        self.add(row, "ms", &Figure { value, better: Better::Lower, seed, floor }, run);
    }

    /// Adds a figure that is shown and not judged, because nothing says what it should be.
    pub(crate) fn shown(&mut self, row: impl Into<String>, unit: &'static str, value: f64) {
        let figure = Figure { value, better: Better::Higher, seed: None, floor: None };
        self.add(row, unit, &figure, &Circumstances::default());
    }

    /// Adds a percentile curve to the plot of that title.
    pub(crate) fn curve(&mut self, title: impl Into<String>, name: impl Into<String>, times: &Latencies) {
        if times.len() > 0 {
            let lines = self.results.curves.entry(title.into()).or_default();
            lines.push((name.into(), times.curve()));
        }
    }
}

/// What a figure is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct References {
    /// The published figure.
    pub(crate) seed: Option<f64>,
    /// The best that machine and network allow in this run.
    pub(crate) floor: Option<f64>,
}

impl References {
    pub(crate) const NONE: Self = Self { seed: None, floor: None };

    pub(crate) fn seed(value: f64) -> Self {
        Self { seed: Some(value), floor: None }
    }

    pub(crate) fn floor(value: f64) -> Self {
        Self { seed: None, floor: Some(value) }
    }
}

fn figure_table(title: String, rows: &[&Row]) -> Table {
    let has_baseline = rows.iter().any(|row| row.baseline.is_some());
    let mut columns = vec!["row", "value", "unit", "seed", "floor"];
    if has_baseline {
        columns.extend(["baseline", "x baseline"]);
    }
    columns.extend(["client cpu %", "verdict", "reason"]);
    let mut table = Table::new(title, &columns).explain(&[
        ("seed", "the figure that Distributed James publishes for its deployment"),
        ("floor", "the best that machine and network allow in this run"),
        ("x baseline", "the value divided by that of the run named with --baseline"),
        ("client cpu %", "the share of its processors that the bench used itself"),
    ]);
    for row in rows {
        let mut cells = vec![
            row.row.clone(),
            number(row.value),
            row.unit.to_owned(),
            optional(row.seed_value),
            optional(row.floor),
        ];
        if has_baseline {
            cells.extend([optional(row.baseline), optional(row.baseline.map(|before| row.value / before))]);
        }
        let cpu = row.client_cpu.map(|share| (share * 100.0).round());
        cells.extend([optional(cpu), row.verdict.text().to_owned(), row.reason.clone()]);
        table.add(cells);
    }
    table
}

fn settings_table(settings: &[EngineSetting]) -> Table {
    let mut table = Table::new("Settings", &["engine", "setting", "value", "safe", "because", "cure"])
        .explain(&[(
            "safe",
            "NO: acknowledged data may be lost, or work refused; costly: it costs speed or space",
        )]);
    for setting in settings {
        let (safe, because, cure) = match &setting.judgement {
            Judgement::Safe => ("yes", "", ""),
            Judgement::Unsafe { because, cure } => ("NO", because.as_str(), cure.as_str()),
            Judgement::Costly { because, cure } => ("costly", because.as_str(), cure.as_str()),
        };
        let cells = [setting.engine, &setting.name, &setting.value, safe, because, cure];
        table.add(cells.map(str::to_owned));
    }
    table
}

/// A setting as a row of JSON, in the table "settings".
fn setting_row(setting: &EngineSetting) -> anyhow::Result<serde_json::Value> {
    let mut row = serde_json::to_value(setting)?;
    if let Some(fields) = row.as_object_mut() {
        fields.insert("table".to_owned(), "settings".into());
    }
    Ok(row)
}

/// The figures of an earlier run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Baseline(BTreeMap<(String, String, String), f64>);

#[derive(Deserialize)]
struct EarlierReport {
    bench: String,
    rows: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct EarlierRow {
    engine: String,
    table: String,
    row: String,
    value: f64,
}

impl Baseline {
    /// Reads a file that an earlier run wrote with --json.
    ///
    /// # Errors
    /// When it can't be read, or is the report of another bench.
    pub(crate) fn read(file: &Path) -> anyhow::Result<Self> {
        let name = file.display();
        let text = std::fs::read(file).with_context(|| format!("can't read the baseline {name}"))?;
        let advice = || format!("{name} is no report of `restante bench engines --json`");
        let report: EarlierReport = serde_json::from_slice(&text).with_context(advice)?;
        anyhow::ensure!(report.bench == "engines", "{}: it is one of `bench {}`", advice(), report.bench);
        // Settings are rows without a number.
        let rows = report.rows.into_iter().filter_map(|row| serde_json::from_value::<EarlierRow>(row).ok());
        Ok(Self(rows.map(|row| ((row.engine, row.table, row.row), row.value)).collect()))
    }

    fn find(&self, engine: &str, table: &str, row: &str) -> Option<f64> {
        self.0.get(&(engine.to_owned(), table.to_owned(), row.to_owned())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn example(baseline: Baseline) -> Report {
        let mut results = Results::new(baseline);
        let mut table = results.table("redis", "sessions");
        table.rate("look-ups", "1/s", 100.0, References::floor(150.0), &Circumstances::default());
        table.time("look-up p50", 3.0, References::seed(1.0), &Circumstances::default());
        let setting = EngineSetting::safe("redis", "appendonly", "no");
        results.add_settings(vec![setting.into_unsafe("a restart loses all sessions", "set appendonly yes")]);
        let mut report = Report::new("engines", "Engines.", Machine::look(Path::new(".")));
        results.fill(&mut report).unwrap();
        report
    }

    #[test]
    fn rows_have_what_programs_need() {
        let report = example(Baseline::default());
        let row = &report.rows[0];
        assert_eq!((row["engine"].as_str(), row["value"].as_f64()), (Some("redis"), Some(100.0)));
        assert_eq!((row["verdict"].as_str(), row["floor"].as_f64()), (Some("healthy"), Some(150.0)));
        assert_eq!(report.rows[1]["verdict"], "not_healthy");
        assert_eq!(
            (report.rows[2]["table"].as_str(), report.rows[2]["is"].as_str()),
            (Some("settings"), Some("unsafe"))
        );
    }

    #[test]
    fn a_report_is_a_baseline_of_a_later_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("engines.json");
        let json = serde_json::json!({"bench": "engines", "rows": example(Baseline::default()).rows});
        std::fs::write(&file, json.to_string()).unwrap();
        let later = example(Baseline::read(&file).unwrap());
        assert_eq!(later.rows[0]["baseline"], 100.0);
        std::fs::write(&file, json.to_string().replace("engines", "pages")).unwrap();
        let error = Baseline::read(&file).unwrap_err().to_string();
        assert!(error.contains("bench pages"), "{error}");
    }
}
