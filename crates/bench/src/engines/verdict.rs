//! The verdict on one figure: is this engine as fast as it should be?

use serde::Serialize;

/// An engine that reaches this share of the published figure is healthy.
const HEALTHY_OF_SEED: f64 = 0.8;
/// An engine that reaches this share of what machine and network allow is healthy.
const HEALTHY_OF_FLOOR: f64 = 0.5;
/// An engine that reaches this share of the published figure is worth a look.
const LOOK_OF_SEED: f64 = 0.4;
/// The same for what machine and network allow.
const LOOK_OF_FLOOR: f64 = 0.25;
/// With more of its processors in use, the client and not the engine was the limit.
const CLIENT_CPU_MAX: f64 = 0.8;
/// A slowest percent that takes this many times the median shows pauses.
const SPREAD_MAX: f64 = 20.0;
/// Shorter times are no pauses, whatever the median is.
const PAUSE_MS_MIN: f64 = 100.0;

/// What a figure says about its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// As fast as it should be.
    Healthy,
    /// Slower than it should be.
    LookIntoIt,
    /// Much slower than it should be, or it failed.
    NotHealthy,
    /// There is nothing to compare with, or the client was the limit.
    None,
}

impl Verdict {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::LookIntoIt => "look into it",
            Self::NotHealthy => "NOT HEALTHY",
            Self::None => "-",
        }
    }
}

/// Which of two values is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// A figure and what it is compared with, all in the same unit.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) better: Better,
    /// The published figure.
    pub(crate) seed: Option<f64>,
    /// The best value that machine and network allow in the same run.
    pub(crate) floor: Option<f64>,
}

/// What else is known about the run that produced a figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Circumstances {
    /// Operations that failed, and the text of the first error.
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// Milliseconds: half of the operations took at most this long, and 99 of 100.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Whether more work was submitted than was done, at a rate that the engine should sustain.
    pub(crate) has_growing_backlog: bool,
    /// The share of its processors that the client used, 0 to 1.
    pub(crate) client_cpu: Option<f64>,
}

/// The verdict and its reason.
pub(crate) fn judge(figure: &Figure, run: &Circumstances) -> (Verdict, String) {
    if run.errors > 0 {
        let first = run.first_error.as_deref().unwrap_or("no text");
        return (Verdict::NotHealthy, format!("{} operations failed, the first with: {first}", run.errors));
    }
    if let Some(cpu) = run.client_cpu.filter(|cpu| *cpu > CLIENT_CPU_MAX) {
        let share = (cpu * 100.0).round();
        let reason = format!("the client used {share} % of its processors: run it on another machine");
        return (Verdict::None, reason);
    }
    if run.has_growing_backlog {
        return (Verdict::NotHealthy, "work came in faster than it was done".to_owned());
    }
    if run.p99_ms > PAUSE_MS_MIN && run.p99_ms > SPREAD_MAX * run.p50_ms {
        let times = (run.p99_ms / run.p50_ms).round();
        let reason = format!("the slowest percent takes {times} times the median: the engine pauses");
        return (Verdict::NotHealthy, reason);
    }
    compare(figure)
}

/// The better of both comparisons counts: the published machines are larger than most, and a floor is not always known.
fn compare(figure: &Figure) -> (Verdict, String) {
    let share_of = |reference: f64| match figure.better {
        Better::Higher => figure.value / reference,
        Better::Lower => reference / figure.value,
    };
    let of = |reference: Option<f64>| reference.filter(|value| *value > 0.0).map(share_of);
    let (of_seed, of_floor) = (of(figure.seed), of(figure.floor));
    let by_seed =
        of_seed.map(|share| (grade(share, HEALTHY_OF_SEED, LOOK_OF_SEED), share, "the published figure"));
    let by_floor = of_floor.map(|share| {
        (grade(share, HEALTHY_OF_FLOOR, LOOK_OF_FLOOR), share, "what machine and network allow")
    });
    let better = match (by_seed, by_floor) {
        (Some(seed), Some(floor)) if floor.0 > seed.0 => Some(floor),
        (seed, floor) => seed.or(floor),
    };
    let Some((grade, share, reference)) = better else {
        return (Verdict::None, "nothing to compare with".to_owned());
    };
    let verdict = match grade {
        Grade::Good => Verdict::Healthy,
        Grade::Fair => Verdict::LookIntoIt,
        Grade::Poor => Verdict::NotHealthy,
    };
    (verdict, format!("{share:.2} x {reference}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    Poor,
    Fair,
    Good,
}

fn grade(share: f64, good: f64, fair: f64) -> Grade {
    match share {
        share if share >= good => Grade::Good,
        share if share >= fair => Grade::Fair,
        _ => Grade::Poor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64, seed: Option<f64>, floor: Option<f64>) -> Figure {
        Figure { value, better: Better::Higher, seed, floor }
    }

    fn verdict(figure: &Figure) -> Verdict {
        judge(figure, &Circumstances::default()).0
    }

    #[test]
    fn shares_of_the_published_figure_decide() {
        for (value, expected) in [
            (80.0, Verdict::Healthy),
            (79.0, Verdict::LookIntoIt),
            (40.0, Verdict::LookIntoIt),
            (39.0, Verdict::NotHealthy),
        ] {
            assert_eq!(verdict(&rate(value, Some(100.0), None)), expected, "{value}");
        }
        let slow = Figure { value: 200.0, better: Better::Lower, seed: Some(22.0), floor: None };
        assert_eq!(verdict(&slow), Verdict::NotHealthy);
        let fast = Figure { value: 20.0, ..slow };
        assert_eq!(verdict(&fast), Verdict::Healthy);
    }

    #[test]
    fn the_better_of_seed_and_floor_counts() {
        assert_eq!(verdict(&rate(50.0, Some(1_000.0), Some(100.0))), Verdict::Healthy);
        assert_eq!(verdict(&rate(90.0, Some(100.0), Some(1_000.0))), Verdict::Healthy);
        assert_eq!(verdict(&rate(30.0, None, Some(100.0))), Verdict::LookIntoIt);
        assert_eq!(verdict(&rate(30.0, None, None)), Verdict::None);
        assert_eq!(verdict(&rate(30.0, Some(0.0), None)), Verdict::None);
    }

    #[test]
    fn errors_backlogs_and_pauses_are_not_healthy_at_any_speed() {
        let fast = rate(100.0, Some(10.0), None);
        let failed =
            Circumstances { errors: 3, first_error: Some("timed out".into()), ..Circumstances::default() };
        let (verdict, reason) = judge(&fast, &failed);
        assert_eq!(verdict, Verdict::NotHealthy);
        assert!(reason.contains('3') && reason.contains("timed out"), "{reason}");
        let growing = Circumstances { has_growing_backlog: true, ..Circumstances::default() };
        assert_eq!(judge(&fast, &growing).0, Verdict::NotHealthy);
        let paused = Circumstances { p50_ms: 5.0, p99_ms: 101.0, ..Circumstances::default() };
        assert_eq!(judge(&fast, &paused).0, Verdict::NotHealthy);
        let short = Circumstances { p50_ms: 0.1, p99_ms: 99.0, ..Circumstances::default() };
        assert_eq!(judge(&fast, &short).0, Verdict::Healthy);
    }

    #[test]
    fn a_busy_client_gets_no_verdict_but_its_errors_do() {
        let slow = rate(1.0, Some(100.0), None);
        let busy =
            Circumstances { client_cpu: Some(0.81), has_growing_backlog: true, ..Circumstances::default() };
        let (verdict, reason) = judge(&slow, &busy);
        assert_eq!(verdict, Verdict::None);
        assert!(reason.contains("81 %"), "{reason}");
        assert_eq!(judge(&slow, &Circumstances { errors: 1, ..busy }).0, Verdict::NotHealthy);
        let idle = Circumstances { client_cpu: Some(0.8), ..Circumstances::default() };
        assert_eq!(judge(&slow, &idle).0, Verdict::NotHealthy);
    }
}
