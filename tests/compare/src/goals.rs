//! The goals of restante against each rival, judged by the figures of one run.

use restante_bench::{Goal, number, rounded};

use crate::{args::Database, contender::Part, measure::Figure, sides::Measured};

/// Cells of few topics.
const SMALL: [&str; 2] = ["1ws", "1ms"];
/// Cells of many topics.
const LARGE: [&str; 4] = ["1wl", "1ml", "1wx", "1mx"];
const CELLS: [&str; 6] = ["1ws", "1ms", "1wl", "1ml", "1wx", "1mx"];

/// The answers of all stores to one question at one level of concurrency.
pub(crate) struct Contest<'a> {
    pub(crate) cell: &'static str,
    pub(crate) query: &'static str,
    pub(crate) access: &'static str,
    pub(crate) concurrency: usize,
    pub(crate) figures: Vec<&'a Figure>,
}

impl Contest<'_> {
    /// The figures of a side, by question.
    pub(crate) fn all(measured: &Measured) -> Vec<Contest<'_>> {
        let mut contests: Vec<Contest<'_>> = Vec::new();
        for figure in &measured.figures {
            let is_same = |contest: &&mut Contest<'_>| {
                let (cell, query) = (contest.cell, contest.query);
                let is_question = (cell, query, contest.access) == (figure.cell, figure.query, figure.access);
                is_question && contest.concurrency == figure.concurrency
            };
            if let Some(contest) = contests.last_mut().filter(is_same) {
                contest.figures.push(figure);
                continue;
            }
            let &Figure { cell, query, access, concurrency, .. } = figure;
            contests.push(Contest { cell, query, access, concurrency, figures: vec![figure] });
        }
        contests
    }

    pub(crate) fn ours(&self) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.part == Part::Ours).copied()
    }

    /// The fastest rival.
    pub(crate) fn better(&self) -> Option<&Figure> {
        let rivals = self.figures.iter().filter(|figure| figure.part == Part::Rival);
        rivals.min_by(|one, other| one.median_ms.total_cmp(&other.median_ms)).copied()
    }

    /// One contender's figure.
    pub(crate) fn by(&self, contender: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.contender == contender).copied()
    }

    /// The time of the fastest rival divided by ours.
    pub(crate) fn ratio(&self) -> Option<f64> {
        ratio(self.better()?, self.ours()?)
    }
}

fn ratio(rival: &Figure, ours: &Figure) -> Option<f64> {
    (ours.median_ms > 0.0).then(|| rounded(rival.median_ms / ours.median_ms))
}

/// The questions of a side without concurrency.
struct Contests<'a> {
    full: Vec<Contest<'a>>,
    pages: Vec<Contest<'a>>,
}

impl<'a> Contests<'a> {
    fn of(measured: &'a Measured) -> Self {
        let mut alone = Contest::all(measured);
        alone.retain(|contest| contest.concurrency == 1);
        let (full, pages) = alone.into_iter().partition(|contest| contest.access == "full");
        Self { full, pages }
    }
}

/// The goals of a side.
pub(crate) fn goals(measured: &Measured) -> Vec<Goal> {
    let contests = Contests::of(measured);
    match measured.database {
        Database::Postgres => postgres_goals(&contests, measured),
        Database::Sqlite => sqlite_goals(&contests),
    }
}

fn postgres_goals(Contests { full, pages }: &Contests<'_>, measured: &Measured) -> Vec<Goal> {
    let slowest = most(pages.iter().map(|page| (place(page), page.ours().map(|ours| ours.median_ms))));
    let ours = measured.loads.iter().find(|(_, part, _)| *part == Part::Ours);
    let space = ours.map(|(_, _, load)| load.disk_bytes as f64 / load.payload_bytes.max(1) as f64);
    vec![
        at_least("PostgreSQL: better method by ours, in full, least", 1.0, least_ratio(full, &CELLS)),
        at_least(
            "PostgreSQL: bit string by ours, few topics by bloom, least",
            50.0,
            least_by_bit_string(full),
        ),
        at_least("PostgreSQL: better method by ours, large cells, least", 1.5, least_ratio(full, &LARGE)),
        at_least("PostgreSQL: better method by ours, pages of 100, least", 1.0, least_ratio(pages, &CELLS)),
        at_most_ms("PostgreSQL: ours, a page of 100, slowest", 2.0, slowest),
        Goal::at_most("PostgreSQL: ours, disk by payload", 1.5, "x", space),
    ]
}

fn sqlite_goals(Contests { full, pages }: &Contests<'_>) -> Vec<Goal> {
    vec![
        at_least("SQLite: nwaku's schema by ours, few topics, least", 5.0, least_ratio(full, &SMALL)),
        at_least("SQLite: nwaku's schema by ours, in full, least", 1.0, least_ratio(full, &CELLS)),
        at_least("SQLite: nwaku's schema by ours, pages of 100, least", 1.0, least_ratio(pages, &CELLS)),
    ]
}

/// The question with the smallest ratio of the better rival to ours.
fn least_ratio(contests: &[Contest<'_>], cells: &[&str]) -> Found {
    let chosen = contests.iter().filter(|contest| cells.contains(&contest.cell));
    least(chosen.map(|contest| (place(contest), contest.ratio())))
}

/// The same for the bit string alone, in the cells of few topics with queries by filter.
fn least_by_bit_string(contests: &[Contest<'_>]) -> Found {
    let is_chosen = |contest: &&Contest<'_>| SMALL.contains(&contest.cell) && contest.query == "bloom";
    least(contests.iter().filter(is_chosen).map(|contest| {
        let figures = contest.by("bit string").zip(contest.ours());
        (place(contest), figures.and_then(|(rival, ours)| ratio(rival, ours)))
    }))
}

/// A figure and its question, if there is one.
type Found = Option<(String, f64)>;

fn place(contest: &Contest<'_>) -> String {
    let page = if contest.access == "full" { String::new() } else { format!(", {}", contest.access) };
    format!("{} by {}{page}", contest.cell, contest.query)
}

/// The smallest; `None` when any is missing.
fn least(figures: impl Iterator<Item = (String, Option<f64>)>) -> Found {
    extreme(figures, |one, other| one < other)
}

/// The largest; `None` when any is missing.
fn most(figures: impl Iterator<Item = (String, Option<f64>)>) -> Found {
    extreme(figures, |one, other| one > other)
}

fn extreme(figures: impl Iterator<Item = (String, Option<f64>)>, is_further: fn(f64, f64) -> bool) -> Found {
    let mut found: Found = None;
    for (place, figure) in figures {
        let figure = figure?;
        if found.as_ref().is_none_or(|(_, furthest)| is_further(figure, *furthest)) {
            found = Some((place, figure));
        }
    }
    found
}

/// A goal for a ratio, with its question.
fn at_least(what: &str, bound: f64, found: Found) -> Goal {
    let goal = Goal::at_least(what, bound, "x", found.as_ref().map(|(_, figure)| *figure));
    with_place(goal, "x", found)
}

/// A goal in milliseconds, with its question.
fn at_most_ms(what: &str, bound: f64, found: Found) -> Goal {
    let goal = Goal::at_most(what, bound, "ms", found.as_ref().map(|(_, figure)| *figure));
    with_place(goal, "ms", found)
}

/// Adds the question that decides the goal.
fn with_place(mut goal: Goal, unit: &str, found: Found) -> Goal {
    if let Some((place, figure)) = found {
        goal.measured = format!("{} {unit} ({place})", number(figure));
    }
    goal
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::contender::Load;

    fn figure(
        contender: &'static str,
        part: Part,
        cell: &'static str,
        access: &'static str,
        ms: f64,
    ) -> Figure {
        Figure {
            database: "PostgreSQL",
            contender,
            part,
            cell,
            query: "bloom",
            access,
            concurrency: 1,
            rows: 1,
            bytes: 1,
            median_ms: ms,
            min_ms: ms,
            max_ms: ms,
            rounds: 1,
            inner: 1,
        }
    }

    /// Ours needs 1 ms for everything, the bit string 60 and the index 2, or `index_ms` for 1ml.
    fn measured(database: Database, index_ms: f64) -> Measured {
        let mut figures = Vec::new();
        for cell in CELLS {
            for access in ["full", "newest 100"] {
                let is_special = cell == "1ml" && access == "full";
                let index_ms = if is_special { index_ms } else { 2.0 };
                figures.push(figure("ours", Part::Ours, cell, access, 1.0));
                figures.push(figure("bit string", Part::Rival, cell, access, 60.0));
                figures.push(figure("topic index", Part::Rival, cell, access, index_ms));
                figures.push(figure("log", Part::Reference, cell, access, 0.1));
            }
        }
        let time = Duration::from_secs(1);
        let load = Load { time, messages: 1, payload_bytes: 100, disk_bytes: 140, how: "" };
        Measured { database, loads: vec![("ours", Part::Ours, load)], figures }
    }

    fn verdicts(measured: &Measured) -> Vec<Option<bool>> {
        goals(measured).iter().map(|goal| goal.is_met).collect()
    }

    #[test]
    fn goals_are_met_by_the_better_rival_s_figures() {
        assert_eq!(verdicts(&measured(Database::Postgres, 2.0)), [Some(true); 6]);
        let sqlite = verdicts(&measured(Database::Sqlite, 2.0));
        assert_eq!(sqlite, [Some(false), Some(true), Some(true)]);
    }

    #[test]
    fn one_slow_cell_misses_the_goal_and_is_named() {
        let measured = measured(Database::Postgres, 0.5);
        let [full, by_bit_string, large, ..] = &goals(&measured)[..] else { panic!("goals are missing") };
        assert_eq!([full.is_met, by_bit_string.is_met, large.is_met], [Some(false), Some(true), Some(false)]);
        assert_eq!(full.measured, "0.5 x (1ml by bloom)");
    }

    #[test]
    fn nothing_is_judged_without_ours() {
        let mut measured = measured(Database::Postgres, 2.0);
        measured.figures.retain(|figure| figure.part != Part::Ours);
        measured.loads.clear();
        assert_eq!(verdicts(&measured), [None; 6]);
    }
}
