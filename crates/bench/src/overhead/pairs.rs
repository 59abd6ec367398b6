//! Two sides that do the same work in turn, and the ratio of the two.
//!
//! A shared machine is faster in one minute than in the next. Sides that take turns of some seconds run in the same minutes, so
//! the ratio of a pair is more reliable than the figures.

use std::{future::Future, time::Duration};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::{
    engines::load::{Done, Measured, closed_loop},
    measure::{median, ratio, rounded},
    report::Goal,
};

/// Each side first runs for this part of its time without being measured: connections, caches and the code of servers warm up.
const WARM_UP_SHARE: u32 = 3;

/// What a side did in its share of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
}

impl Load {
    /// # Errors
    /// When an operation failed: leaving it out would make a side look faster.
    pub(super) fn of(measured: &Measured) -> anyhow::Result<Self> {
        if let Some(error) = &measured.first_error {
            bail!("{} of the operations failed, the first with: {error}", measured.errors);
        }
        let (kind, _) = measured.times.first().context("no operation was finished in time: use --seconds")?;
        Ok(Self { per_second: measured.per_second(), p50_ms: measured.times(kind).service.median_ms() })
    }
}

/// `clients` clients repeat an operation without a pause. It gets the number of its client and, from 0 on, its own.
///
/// # Errors
/// When an operation fails.
pub(super) async fn load<F, W>(clients: usize, span: Duration, operation: F) -> anyhow::Result<Load>
where
    F: Fn(usize, u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<()>> + Send,
{
    let timed = move |client, number| {
        let done = operation(client, number);
        async move { done.await.map(|()| Done::new("operation", 0)) }
    };
    Load::of(&closed_loop(clients, u64::MAX, span, &ProgressBar::hidden(), timed).await?)
}

/// How many pairs there are, and how long each of their sides runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) pairs: u64,
    pub(super) span: Duration,
}

/// The loads of both sides, pair by pair.
#[derive(Debug, Default)]
pub(super) struct Pairs(Vec<(Load, Load)>);

/// Runs two sides in turn. Each side gets the time for which to run.
///
/// # Errors
/// When a side fails.
pub(super) async fn alternate(
    plan: Plan,
    mut base: impl AsyncFnMut(Duration) -> anyhow::Result<Load>,
    mut ours: impl AsyncFnMut(Duration) -> anyhow::Result<Load>,
) -> anyhow::Result<Pairs> {
    let warm_up = plan.span / WARM_UP_SHARE;
    base(warm_up).await.context("the side to compare with")?;
    ours(warm_up).await.context("restante")?;
    let mut pairs = Pairs::default();
    for _ in 0..plan.pairs {
        let one = base(plan.span).await.context("the side to compare with")?;
        let other = ours(plan.span).await.context("restante")?;
        pairs.0.push((one, other));
    }
    Ok(pairs)
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// The rate is at least this many times the other.
    Rate(f64),
    /// The median time is at most this many times the other.
    Time(f64),
    /// The median time is at most this many times the other, plus this many milliseconds.
    TimeAndMs(f64, f64),
}

impl Bound {
    fn is_rate(self) -> bool {
        matches!(self, Self::Rate(_))
    }

    fn figure(self, load: &Load) -> f64 {
        if self.is_rate() { load.per_second } else { load.p50_ms }
    }

    fn unit(self) -> &'static str {
        if self.is_rate() { "1/s" } else { "ms" }
    }

    fn text(self) -> String {
        match self {
            Self::Rate(least) => format!(">= {least} x"),
            Self::Time(most) => format!("<= {most} x"),
            Self::TimeAndMs(most, ms) => format!("<= {most} x + {ms} ms"),
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) what: &'a str,
    /// What it is compared with: the raw client, or restante itself in another state.
    pub(super) beside: &'a str,
}

/// A row of the report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) server: &'static str,
    pub(super) what: String,
    pub(super) beside: String,
    pub(super) unit: &'static str,
    /// The median of the side that is compared with.
    pub(super) base: f64,
    /// That of restante.
    pub(super) restante: f64,
    /// The ratios of all pairs: the median, the smallest and the largest.
    pub(super) ratio: f64,
    pub(super) ratio_min: f64,
    pub(super) ratio_max: f64,
    pub(super) bound: String,
    pub(super) is_met: bool,
    pub(super) pairs: usize,
    #[serde(skip)]
    judged: (Bound, f64),
}

impl Pairs {
    /// The row with whether a bound holds.
    ///
    /// # Errors
    /// When there are no pairs, or a side did nothing.
    pub(super) fn row(
        &self,
        server: &'static str,
        subject: Subject<'_>,
        bound: Bound,
    ) -> anyhow::Result<Row> {
        let figures: Vec<(f64, f64)> =
            self.0.iter().map(|(base, ours)| (bound.figure(base), bound.figure(ours))).collect();
        let ratios: Option<Vec<f64>> = figures.iter().map(|(base, ours)| ratio(*ours, *base)).collect();
        let ratios = ratios.filter(|ratios| !ratios.is_empty()).context("a side did nothing")?;
        let middle = |side: fn(&(f64, f64)) -> f64| rounded(median(figures.iter().map(side).collect()));
        let middle_ratio = median(ratios.clone());
        let judged = match bound {
            Bound::Rate(_) | Bound::Time(_) => middle_ratio,
            Bound::TimeAndMs(most, _) => {
                median(figures.iter().map(|(base, ours)| ours - most * base).collect())
            }
        };
        let is_met = match bound {
            Bound::Rate(least) => judged >= least,
            Bound::Time(most) | Bound::TimeAndMs(_, most) => judged <= most,
        };
        Ok(Row {
            server,
            what: subject.what.to_owned(),
            beside: subject.beside.to_owned(),
            unit: bound.unit(),
            base: middle(|(base, _)| *base),
            restante: middle(|(_, ours)| *ours),
            ratio: middle_ratio,
            ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratio_max: ratios.iter().copied().fold(0.0, f64::max),
            bound: bound.text(),
            is_met,
            pairs: figures.len(),
            judged: (bound, judged),
        })
    }
}

impl Row {
    /// The goal that the row judges.
    pub(super) fn goal(&self) -> Goal {
        let (bound, judged) = self.judged;
        let what = format!("{}: {}, by {}", self.server, self.what, self.beside);
        match bound {
            Bound::Rate(least) => Goal::at_least(format!("{what}, rate"), least, "x", Some(judged)),
            Bound::Time(most) => Goal::at_most(format!("{what}, p50"), most, "x", Some(judged)),
            Bound::TimeAndMs(times, ms) => {
                Goal::at_most(format!("{what}, p50 above {times} x"), ms, "ms", Some(judged))
            }
        }
    }
}
