//! What a bench has to say, and the ways it says it: plain text, JSON, one page with plots.

mod html;
mod json;
mod plot;
mod table;

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;

pub use plot::{Bars, Curves, Plot, Series};
pub use table::{Table, number, optional};

use crate::{args::CommonArgs, dataset::MESSAGES_FULL, machine::Machine};

/// The result of one bench.
pub struct Report {
    pub(crate) bench: &'static str,
    /// What was measured, in one sentence.
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// Every figure, for programs.
    pub(crate) rows: Vec<serde_json::Value>,
    /// The figures that people read, in order.
    pub tables: Vec<Table>,
    /// What the page shows beside them.
    pub plots: Vec<Plot>,
    /// What this run is held to.
    pub goals: Vec<Goal>,
    /// How to read the figures.
    pub notes: Vec<String>,
}

/// What restante has set itself, and whether this run shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is judged.
    pub what: String,
    /// What it must keep.
    pub bound: String,
    /// What this run has shown.
    pub measured: String,
    /// Nothing when it could not be measured.
    pub is_met: Option<bool>,
}

impl Goal {
    /// A figure that must not be larger.
    pub fn at_most(what: impl Into<String>, bound: f64, unit: &str, measured: Option<f64>) -> Self {
        let is_met = measured.map(|measured| measured <= bound);
        Self::new(what.into(), format!("at most {}", with_unit(bound, unit)), unit, measured, is_met)
    }

    /// A figure that must not be smaller.
    pub fn at_least(what: impl Into<String>, bound: f64, unit: &str, measured: Option<f64>) -> Self {
        let is_met = measured.map(|measured| measured >= bound);
        Self::new(what.into(), format!("at least {}", with_unit(bound, unit)), unit, measured, is_met)
    }

    fn new(what: String, bound: String, unit: &str, measured: Option<f64>, is_met: Option<bool>) -> Self {
        let measured = measured.map_or_else(|| "-".to_owned(), |measured| with_unit(measured, unit));
        Self { what, bound, measured, is_met }
    }

    fn verdict(&self) -> &'static str {
        match self.is_met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        }
    }
}

fn with_unit(value: f64, unit: &str) -> String {
    if unit.is_empty() { number(value) } else { format!("{} {unit}", number(value)) }
}

impl Report {
    /// An empty report.
    pub fn new(bench: &'static str, title: impl Into<String>, machine: Machine) -> Self {
        Self {
            bench,
            title: title.into(),
            machine,
            rows: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            goals: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds rows for programs.
    ///
    /// # Errors
    /// When a row is no JSON.
    pub fn add_rows<T: Serialize>(&mut self, rows: &[T]) -> anyhow::Result<()> {
        for row in rows {
            self.rows.push(serde_json::to_value(row)?);
        }
        Ok(())
    }

    /// Says that goals are about the full data set, when this run had another.
    pub fn note_size(&mut self, messages: u64) {
        if messages != MESSAGES_FULL {
            let (messages, full) = (number(messages as f64), number(MESSAGES_FULL as f64));
            self.notes.push(format!("This run had {messages} messages; goals are set for {full}."));
        }
        if self.machine.build == "debug" {
            self.notes.push("This is a debug build: its figures mean nothing.".to_owned());
        }
    }

    /// Prints the report and writes the files that were asked for.
    ///
    /// # Errors
    /// When a file or the standard output takes nothing.
    pub fn deliver(&self, common: &CommonArgs) -> anyhow::Result<()> {
        print(&self.text())?;
        if let Some(file) = &common.json {
            write(file, &json::page(self)?)?;
        }
        if let Some(file) = &common.html {
            write(file, &html::page(self))?;
        }
        Ok(())
    }

    /// The report as plain text.
    fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.title);
        for (name, value) in self.machine.facts() {
            text.push_str(&format!("{name:<18} {value}\n"));
        }
        for table in self.tables.iter().chain(self.goal_table().as_ref()) {
            text.push('\n');
            text.push_str(&table.text());
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("* {note}\n"));
        }
        text
    }

    fn goal_table(&self) -> Option<Table> {
        if self.goals.is_empty() {
            return None;
        }
        let mut table = Table::new("Goals", &["what", "goal", "measured", "met"]);
        for goal in &self.goals {
            table.add([
                goal.what.clone(),
                goal.bound.clone(),
                goal.measured.clone(),
                goal.verdict().to_owned(),
            ]);
        }
        Some(table)
    }
}

/// Prints to stdout; a reader that went away is no error.
fn print(text: &str) -> anyhow::Result<()> {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("can't print the report"),
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("can't write {}", file.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Report {
        let mut report = Report::new("history", "An <example>.", Machine::look(Path::new(".")));
        report.add_rows(&[serde_json::json!({"engine": "log", "median_ms": 0.5})]).unwrap();
        let mut table = Table::new("Figures", &["cell", "ms"]);
        table.add(["1ws".to_owned(), "0.5".to_owned()]);
        report.tables.push(table);
        report.plots.push(Plot::Bars(Bars {
            title: "Cells".to_owned(),
            unit: "ms",
            groups: vec!["1ws".to_owned(), "1ms".to_owned()],
            series: vec![
                ("log".to_owned(), vec![Some(0.5), Some(2.0)]),
                ("seed".to_owned(), vec![Some(7.0), None]),
            ],
        }));
        report.plots.push(Plot::Curves(Curves {
            title: "Latencies".to_owned(),
            unit: "ms",
            lines: vec![("pages".to_owned(), vec![(50.0, 0.1), (99.0, 0.4), (100.0, 2.0)])],
        }));
        report.goals.push(Goal::at_most("a page", 0.2, "ms", Some(0.1)));
        report.goals.push(Goal::at_least("a rate", 2_000.0, "/s", Some(1_000.0)));
        report.goals.push(Goal::at_least("a ratio", 20.0, "", None));
        report
    }

    #[test]
    fn goals_are_judged() {
        let verdicts: Vec<_> = example().goals.iter().map(|goal| goal.is_met).collect();
        assert_eq!(verdicts, [Some(true), Some(false), None]);
    }

    async fn history_of_5_000_messages() -> Report {
        let common = crate::tests::quick("log:");
        crate::history::measure(&crate::HistoryArgs { common }).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_run_of_another_size_shows_no_verdict_and_says_why() {
        let text = history_of_5_000_messages().await.text();
        assert!(!text.contains("Goals\n"), "{text}");
        let why = text.lines().find(|line| line.starts_with("Goals are not shown: ")).unwrap();
        assert!(why.contains("1,467,846 messages") && why.contains("5,000"), "{why}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn columns_are_explained_below_their_table() {
        let report = history_of_5_000_messages().await;
        for page in [report.text(), html::page(&report)] {
            for words in ["ms divided by floor ms", "256 topics in a month", "256 topics (l)"] {
                assert!(page.contains(words), "{words} is missing in {page}");
            }
        }
    }

    #[test]
    fn text_is_plain_and_says_everything() {
        let text = example().text();
        assert!(text.is_ascii(), "{text}");
        for part in ["An <example>.", "processor", "1ws", "at least 2,000 /s", "NO"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
