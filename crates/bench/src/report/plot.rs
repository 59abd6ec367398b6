//! Plots as SVG: bars and percentile curves, both on a logarithmic scale, and values over time.
//!
//! Colours come from the page (classes `c0` to `c11`), so that they suit a light and a dark page.

use std::fmt::Write;

use super::{html::escape, table::number};

/// A plot.
#[derive(Clone, Debug)]
pub enum Plot {
    /// See [`Bars`].
    Bars(Bars),
    /// See [`Curves`].
    Curves(Curves),
    /// See [`Series`].
    Series(Series),
}

/// Groups of bars, one bar for each series.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What it shows.
    pub title: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// Name, and a value for each group, if there is one.
    pub series: Vec<(String, Vec<Option<f64>>)>,
}

/// The distribution of durations.
#[derive(Clone, Debug)]
pub struct Curves {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    /// Name, and pairs of percentile and value.
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Values over time. Both axes are linear and begin at 0.
#[derive(Clone, Debug)]
pub struct Series {
    /// What is shown.
    pub title: String,
    /// The unit of all values.
    pub unit: &'static str,
    /// Name, and pairs of seconds and value.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Colours of series; further series start over.
pub(super) const COLOURS: usize = 12;
const WIDTH: f64 = 420.0;
const BAR_HEIGHT: f64 = 11.0;

impl Plot {
    pub(super) fn title(&self) -> &str {
        match self {
            Self::Bars(bars) => &bars.title,
            Self::Curves(curves) => &curves.title,
            Self::Series(series) => &series.title,
        }
    }

    pub(super) fn unit(&self) -> &'static str {
        match self {
            Self::Bars(bars) => bars.unit,
            Self::Curves(curves) => curves.unit,
            Self::Series(series) => series.unit,
        }
    }

    /// The names of the series in the order of their colours.
    pub(super) fn series(&self) -> Vec<&str> {
        match self {
            Self::Bars(bars) => bars.series.iter().map(|(name, _)| name.as_str()).collect(),
            Self::Curves(curves) => curves.lines.iter().map(|(name, _)| name.as_str()).collect(),
            Self::Series(series) => series.lines.iter().map(|(name, _)| name.as_str()).collect(),
        }
    }

    /// Whether there is anything to draw.
    pub(super) fn has_values(&self) -> bool {
        match self {
            Self::Bars(bars) => bars.series.iter().any(|(_, values)| values.iter().any(Option::is_some)),
            Self::Curves(Curves { lines, .. }) | Self::Series(Series { lines, .. }) => {
                lines.iter().any(|(_, points)| !points.is_empty())
            }
        }
    }

    pub(super) fn svg(&self) -> String {
        match self {
            Self::Bars(bars) => bars.svg(),
            Self::Curves(curves) => curves.svg(),
            Self::Series(series) => series.svg(),
        }
    }
}

/// A logarithmic scale over whole decades, mapped to a range of the drawing.
struct Scale {
    /// Powers of ten.
    decades: (i32, i32),
    from: f64,
    to: f64,
}

impl Scale {
    /// A scale that covers all positive values.
    fn over(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::MAX, f64::MIN);
        for value in values.filter(|value| *value > 0.0 && value.is_finite()) {
            low = low.min(value.log10());
            high = high.max(value.log10());
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let first = low.floor() as i32;
        let last = (high.ceil() as i32).max(first + 1);
        Self { decades: (first, last), from, to }
    }

    /// The coordinate of a value; values up to 0 are at the start.
    fn place(&self, value: f64) -> f64 {
        let (first, last) = self.decades;
        let share = (value.log10() - f64::from(first)) / f64::from(last - first);
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self.from + share * (self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (first, last) = self.decades;
        (first..=last).map(|decade| 10_f64.powi(decade))
    }
}

fn svg(height: f64, title: &str, content: &str) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>{content}</svg>\n"
    )
}

fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escape(words))
}

fn line(x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
}

/// A tick's label: 10,000 would be too wide.
fn tick_label(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", number(value / 1e6)),
        value if value >= 1e3 => format!("{}k", number(value / 1e3)),
        value if value < 1e-4 => format!("{value:e}"),
        value => number(value),
    }
}

impl Bars {
    fn svg(&self) -> String {
        let values = self.series.iter().flat_map(|(_, values)| values).filter_map(|value| *value);
        let scale = Scale::over(values, 4.0, WIDTH - 56.0);
        let mut groups = String::new();
        let mut bottom = 4.0;
        for (number, group) in self.groups.iter().enumerate() {
            groups.push_str(&text(scale.from, bottom + 11.0, "start", group));
            bottom = self.bars(number, bottom + 15.0, &scale, &mut groups) + 5.0;
        }
        let mut axis = String::new();
        for (number, tick) in scale.ticks().enumerate() {
            let x = scale.place(tick);
            let anchor = if number == 0 { "start" } else { "middle" };
            axis.push_str(&line(x, 2.0, x, bottom + 4.0));
            axis.push_str(&text(x, bottom + 17.0, anchor, &tick_label(tick)));
        }
        svg(bottom + 24.0, &self.title, &(axis + &groups))
    }

    /// Draws the bars of a group from `top` down and returns the end of the last.
    fn bars(&self, group: usize, top: f64, scale: &Scale, content: &mut String) -> f64 {
        let mut y = top;
        for (series, (_, values)) in self.series.iter().enumerate() {
            let Some(Some(value)) = values.get(group) else { continue };
            let width = (scale.place(*value) - scale.from).max(1.0);
            let (x, height, colour) = (scale.from, BAR_HEIGHT - 1.5, series % COLOURS);
            let _ = write!(
                content,
                "<rect class=\"c{colour}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>",
            );
            content.push_str(&text(x + width + 3.0, y + BAR_HEIGHT - 2.0, "start", &number(*value)));
            y += BAR_HEIGHT;
        }
        y
    }
}

/// The right end of a percentile axis, for all percentiles above 99.9.
const PERCENTILE_MAX: f64 = 99.99;

/// The position of a percentile between 0 and 1: 90, 99 and 99.9 are at equal distances.
fn percentile_share(percentile: f64) -> f64 {
    let nines = |percentile: f64| -(1.0 - percentile / 100.0).log10();
    nines(percentile.min(PERCENTILE_MAX)) / nines(PERCENTILE_MAX)
}

impl Curves {
    fn svg(&self) -> String {
        const HEIGHT: f64 = 220.0;
        let (left, right, bottom) = (44.0, WIDTH - 12.0, HEIGHT - 24.0);
        let values = self.lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value);
        let scale = Scale::over(values, bottom, 16.0);
        let x = |percentile: f64| left + percentile_share(percentile) * (right - left);
        let mut content = String::new();
        for tick in scale.ticks() {
            let y = scale.place(tick);
            content.push_str(&line(left, y, right, y));
            content.push_str(&text(left - 4.0, y + 4.0, "end", &tick_label(tick)));
        }
        for (percentile, label) in
            [(0.0, "0 %"), (50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9"), (100.0, "max")]
        {
            content.push_str(&line(x(percentile), 16.0, x(percentile), bottom));
            let anchor = if percentile == 100.0 { "end" } else { "middle" };
            content.push_str(&text(x(percentile), HEIGHT - 8.0, anchor, label));
        }
        for (series, (_, points)) in self.lines.iter().enumerate() {
            let mut path = String::new();
            for (percentile, value) in points {
                let _ = write!(path, "{:.1},{:.1} ", x(*percentile), scale.place(*value));
            }
            let _ =
                write!(content, "<polyline class=\"c{}\" points=\"{}\"/>", series % COLOURS, path.trim_end());
        }
        svg(HEIGHT, &self.title, &content)
    }
}

/// The distance of ticks on a linear axis up to `max`: 1, 2 or 5 times a power of ten, and at most five of them.
fn even_step(max: f64) -> f64 {
    const TICKS_MAX: f64 = 5.0;
    if max <= 0.0 || !max.is_finite() {
        return 1.0;
    }
    let decade = 10_f64.powf((max / TICKS_MAX).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * decade);
    steps.into_iter().find(|step| max / step <= TICKS_MAX).unwrap_or(max)
}

impl Series {
    fn svg(&self) -> String {
        const HEIGHT: f64 = 220.0;
        let (left, right, top, bottom) = (44.0, WIDTH - 12.0, 16.0, HEIGHT - 24.0);
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let seconds_max = points().map(|(seconds, _)| *seconds).fold(1.0, f64::max);
        let value_max = points().map(|(_, value)| *value).fold(1.0, f64::max);
        let x = |seconds: f64| left + seconds / seconds_max * (right - left);
        let y = |value: f64| bottom - value / value_max * (bottom - top);
        let mut content = String::new();
        for tick in ticks(value_max) {
            content.push_str(&line(left, y(tick), right, y(tick)));
            content.push_str(&text(left - 4.0, y(tick) + 4.0, "end", &tick_label(tick)));
        }
        for tick in ticks(seconds_max) {
            content.push_str(&line(x(tick), top, x(tick), bottom));
            content.push_str(&text(x(tick), HEIGHT - 8.0, "middle", &format!("{} s", number(tick))));
        }
        for (series, (_, points)) in self.lines.iter().enumerate() {
            let mut path = String::new();
            for (seconds, value) in points {
                let _ = write!(path, "{:.1},{:.1} ", x(*seconds), y(*value));
            }
            let colour = series % COLOURS;
            let _ = write!(content, "<polyline class=\"c{colour}\" points=\"{}\"/>", path.trim_end());
        }
        svg(HEIGHT, &self.title, &content)
    }
}

/// The ticks of a linear axis from 0 up to `max`.
fn ticks(max: f64) -> impl Iterator<Item = f64> {
    let step = even_step(max);
    let count = (max / step).floor() as u32;
    (0..=count).map(move |tick| f64::from(tick) * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_covers_its_values() {
        let scale = Scale::over([0.02, 0.0, 30.0].into_iter(), 0.0, 40.0);
        assert_eq!(scale.decades, (-2, 2));
        assert_eq!(scale.place(0.01), 0.0);
        assert!((scale.place(1.0) - 20.0).abs() < 1e-9);
        assert_eq!(scale.place(0.0), 0.0);
        assert_eq!(scale.ticks().count(), 5);
    }

    #[test]
    fn empty_plots_can_be_drawn() {
        let bars = Bars { title: "none".to_owned(), unit: "ms", groups: Vec::new(), series: Vec::new() };
        assert!(bars.svg().starts_with("<svg"));
        let curves =
            Curves { title: "none".to_owned(), unit: "ms", lines: vec![("x".to_owned(), Vec::new())] };
        assert!(!curves.svg().contains("NaN"));
    }

    #[test]
    fn larger_values_have_longer_bars() {
        let bars = Bars {
            title: "two".to_owned(),
            unit: "ms",
            groups: vec!["a".to_owned(), "b".to_owned()],
            series: vec![("s".to_owned(), vec![Some(1.0), Some(50.0)])],
        };
        let drawing = bars.svg();
        let widths: Vec<f64> = drawing
            .split("width=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths.len(), 2);
        assert!(widths[0] < widths[1], "{widths:?}");
    }

    #[test]
    fn a_linear_axis_has_a_few_round_ticks() {
        assert_eq!(ticks(60.0).collect::<Vec<_>>(), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(ticks(7.0).collect::<Vec<_>>(), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.0).count(), 1);
    }

    #[test]
    fn later_points_are_further_to_the_right() {
        let points = vec![(0.0, 10.0), (30.0, 1_500.0), (60.0, 0.0)];
        let series = Series { title: "t".to_owned(), unit: "/min", lines: vec![("a".to_owned(), points)] };
        let drawing = series.svg();
        let path = drawing.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let places: Vec<(f64, f64)> = path
            .split(' ')
            .map(|pair| pair.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(places.len(), 3);
        assert!(places.is_sorted_by(|one, next| one.0 < next.0), "{places:?}");
        assert!(places[1].1 < places[0].1 && places[0].1 < places[2].1, "{places:?}");
        let empty = Series { title: "t".to_owned(), unit: "/min", lines: vec![("a".to_owned(), Vec::new())] };
        assert!(!empty.svg().contains("NaN"));
    }
}
