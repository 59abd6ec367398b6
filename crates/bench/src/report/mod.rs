//! The report of a bench in three formats: plain text, JSON, one page with plots.

mod html;
mod json;
mod plot;
mod table;

use std::{fs, path::Path};

use anyhow::Context;
use serde::Serialize;

pub use plot::{Bars, Curves, Plot, Series};
#[cfg(test)]
pub(crate) use table::tests::assert_explained;
pub use table::{Table, number, optional};

use crate::{args::CommonArgs, dataset::MESSAGES_FULL, machine::Machine};

/// The result of one bench.
pub struct Report {
    pub(crate) bench: &'static str,
    /// What was measured, in one sentence.
    pub(crate) title: String,
    pub(crate) machine: Machine,
    /// All figures, as JSON.
    pub(crate) rows: Vec<serde_json::Value>,
    /// The figures for human readers, in order.
    pub tables: Vec<Table>,
    /// The plots of the page.
    pub plots: Vec<Plot>,
    /// The goals of this run.
    pub goals: Vec<Goal>,
    /// Why the goals that depend on the size of the run are not shown.
    withheld: Vec<String>,
    /// How to read the figures.
    pub notes: Vec<String>,
}

/// A goal of restante, and whether this run meets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is judged.
    pub what: String,
    /// Its limit.
    pub bound: String,
    /// The figure of this run.
    pub measured: String,
    /// `None` if it was not measured: the goal is not shown then.
    pub is_met: Option<bool>,
    /// Whether the goal is set for a run of one size.
    needs_size: bool,
}

impl Goal {
    /// A figure with an upper limit.
    pub fn at_most(what: impl Into<String>, bound: f64, unit: &str, measured: Option<f64>) -> Self {
        let is_met = measured.map(|measured| measured <= bound);
        Self::new(what.into(), format!("at most {}", with_unit(bound, unit)), unit, measured, is_met)
    }

    /// A figure with a lower limit.
    pub fn at_least(what: impl Into<String>, bound: f64, unit: &str, measured: Option<f64>) -> Self {
        let is_met = measured.map(|measured| measured >= bound);
        Self::new(what.into(), format!("at least {}", with_unit(bound, unit)), unit, measured, is_met)
    }

    /// A count of errors or losses that must be 0, whatever the size of the run.
    pub fn none(what: impl Into<String>, count: u64) -> Self {
        Self::at_most(what, 0.0, "", Some(count as f64)).at_any_size()
    }

    /// The same goal for runs of every size.
    pub fn at_any_size(self) -> Self {
        Self { needs_size: false, ..self }
    }

    fn new(what: String, bound: String, unit: &str, measured: Option<f64>, is_met: Option<bool>) -> Self {
        let measured = measured.map_or_else(|| "-".to_owned(), |measured| with_unit(measured, unit));
        Self { what, bound, measured, is_met, needs_size: true }
    }

    /// The verdict in a table of goals, which has only measured ones.
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
            withheld: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds rows of JSON.
    ///
    /// # Errors
    /// When a row can't be encoded.
    pub fn add_rows<T: Serialize>(&mut self, rows: &[T]) -> anyhow::Result<()> {
        for row in rows {
            self.rows.push(serde_json::to_value(row)?);
        }
        Ok(())
    }

    /// Removes the goals that are set for the full data set when this run had another one, or was a debug build.
    pub fn note_size(&mut self, messages: u64) {
        self.note_size_of(messages, MESSAGES_FULL, "messages");
        self.note_debug_build();
    }

    /// Removes the goals that are set for another number of things than this run had.
    pub(crate) fn note_size_of(&mut self, had: u64, set_for: u64, things: &str) {
        if had != set_for {
            let (had, set_for) = (number(had as f64), number(set_for as f64));
            self.withhold_goals(format!("they are set for {set_for} {things}, and this run had {had}"));
        }
    }

    /// Removes the goals that depend on the size of the run when it was a quick one.
    pub(crate) fn note_quick(&mut self, is_quick: bool) {
        if is_quick {
            self.withhold_goals("this was a quick run");
            self.notes.push("This was a quick run: its figures mean nothing.".to_owned());
        }
    }

    /// Removes the goals that depend on the size of the run in a debug build.
    pub(crate) fn note_debug_build(&mut self) {
        if self.machine.build == "debug" {
            self.withhold_goals("this is a debug build");
            self.notes.push("This is a debug build: its figures mean nothing.".to_owned());
        }
    }

    /// Removes the goals that depend on the size of the run. If there are any, the report shows the reason.
    pub(crate) fn withhold_goals(&mut self, reason: impl Into<String>) {
        let before = self.goals.len();
        self.goals.retain(|goal| !goal.needs_size);
        if self.goals.len() < before {
            self.withhold(reason);
        }
    }

    /// Adds goals; if the run was of another size only those for every size.
    pub(crate) fn add_goals(&mut self, goals: impl IntoIterator<Item = Goal>, is_of_size: bool) {
        self.goals.extend(goals.into_iter().filter(|goal| is_of_size || !goal.needs_size));
    }

    /// Adds a reason why goals are missing.
    pub(crate) fn withhold(&mut self, reason: impl Into<String>) {
        self.withheld.push(reason.into());
    }

    /// Why some goals are missing, in one line.
    fn withheld_line(&self) -> Option<String> {
        let mut reasons = self.withheld.clone();
        let unmeasured = self.goals.len() - self.judged().count();
        if unmeasured > 0 {
            reasons.push(format!("this run has no figure for {unmeasured} of them, or one of another size"));
        }
        let beginning = if self.judged().next().is_some() { "Some goals" } else { "Goals" };
        (!reasons.is_empty()).then(|| format!("{beginning} are not shown: {}.", reasons.join("; ")))
    }

    /// The goals that were measured.
    fn judged(&self) -> impl Iterator<Item = &Goal> {
        self.goals.iter().filter(|goal| goal.is_met.is_some())
    }

    /// Prints the report and writes the requested files.
    ///
    /// # Errors
    /// When a file or the standard output can't be written.
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
        if let Some(line) = self.withheld_line() {
            text.push_str(&format!("\n{line}\n"));
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
        self.judged().next()?;
        let mut table = Table::new("Goals", &["what", "goal", "measured", "met"]);
        for goal in self.judged() {
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

/// Prints to stdout; a closed pipe is not an error.
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
    fn goals_of_another_size_are_withheld_and_those_of_every_size_stay() {
        let mut report = example();
        report.goals.push(Goal::none("losses", 1));
        report.note_size_of(7, 7, "cats");
        assert_eq!(report.goals.len(), 4);
        report.note_size_of(7, 9, "cats");
        report.note_quick(true);
        assert_eq!(report.goals.iter().map(|goal| goal.what.as_str()).collect::<Vec<_>>(), ["losses"]);
        let text = report.text();
        assert!(text.contains("losses  at most 0 "), "{text}");
        let line = "Some goals are not shown: they are set for 9 cats, and this run had 7.";
        assert!(text.contains(line) && html::page(&report).contains(line), "{text}");
    }

    #[test]
    fn goals_without_a_figure_are_not_shown() {
        for page in [example().text(), html::page(&example())] {
            assert!(!page.contains("a ratio"), "{page}");
            assert!(page.contains("this run has no figure for 1 of them"), "{page}");
        }
    }

    #[test]
    fn plain_text_is_complete() {
        let text = example().text();
        assert!(text.is_ascii(), "{text}");
        for part in ["An <example>.", "processor", "1ws", "at least 2,000 /s", "NO"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
