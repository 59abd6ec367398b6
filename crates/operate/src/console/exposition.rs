//! Parses the text of the server's metrics: so the console needs no more knowledge of roles and doors than Prometheus.

/// One line of the text: a value with its name and labels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'t> {
    /// The name of its series.
    pub name: &'t str,
    labels: &'t str,
    /// Its value.
    pub value: f64,
}

impl<'t> Sample<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        Some(Self { name, labels, value })
    }

    /// A label's value. Those of this server contain neither commas nor quotes: they are closed sets of words.
    pub fn label(&self, name: &str) -> Option<&'t str> {
        for label in self.labels.split(',') {
            let (label_name, value) = label.split_once('=')?;
            if label_name == name {
                return Some(value.trim_matches('"'));
            }
        }
        None
    }
}

/// The samples of a text; other lines are left out.
pub fn samples(text: &str) -> impl Iterator<Item = Sample<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::parse)
}

/// A histogram as in Prometheus: how many observations were at most each bound; the last bound is infinite.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram {
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    bound: f64,
    count: f64,
}

impl Histogram {
    /// Adds a bucket's line, in the order of the text, which is that of the bounds. Series with the same bounds and other labels
    /// are added up.
    pub(crate) fn take(&mut self, sample: &Sample<'_>) {
        let bound: Option<f64> =
            sample.label("le").and_then(|bound| bound.trim_start_matches('+').parse().ok());
        let Some(bound) = bound else { return };
        match self.buckets.iter_mut().find(|bucket| bucket.bound == bound) {
            Some(bucket) => bucket.count += sample.value,
            None => self.buckets.push(Bucket { bound, count: sample.value }),
        }
    }

    /// The quantile `share` of the observations since `before`, interpolated linearly between two bounds; `None` if there were
    /// none. It is what Prometheus' `histogram_quantile` returns.
    pub(crate) fn quantile_since(&self, before: &Self, share: f64) -> Option<f64> {
        let count_before = |index: usize| before.buckets.get(index).map_or(0.0, |bucket| bucket.count);
        let counts: Vec<f64> = self
            .buckets
            .iter()
            .enumerate()
            .map(|(index, bucket)| bucket.count - count_before(index))
            .collect();
        let all = counts.last().copied().filter(|all| *all > 0.0)?;
        let rank = share * all;
        let mut below = Bucket { bound: 0.0, count: 0.0 };
        for (bucket, count) in self.buckets.iter().zip(counts) {
            if count < rank {
                below = Bucket { bound: bucket.bound, count };
                continue;
            }
            if bucket.bound.is_infinite() {
                return Some(below.bound);
            }
            let within = if count > below.count { (rank - below.count) / (count - below.count) } else { 1.0 };
            return Some(below.bound + (bucket.bound - below.bound) * within);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: [u32; 3]) -> Histogram {
        let [one, two, all] = counts;
        let text = format!(
            "# TYPE t histogram\nt_sum 1.5\nt_bucket{{le=\"1.0\"}} {one}\nt_bucket{{le=\"2.0\",engine=\"log\"}} {two}\n\
             t_bucket{{le=\"+Inf\"}} {all}\n# EOF\n"
        );
        let mut histogram = Histogram::default();
        samples(&text).filter(|sample| sample.name == "t_bucket").for_each(|sample| histogram.take(&sample));
        assert_eq!(histogram.buckets.len(), 3);
        histogram
    }

    #[test]
    fn samples_are_read_and_other_lines_are_not() {
        let text = "# HELP a b\na{x=\"1\",y=\"two\"} 3\nb 4.5\nnot a sample\nc{x=\"1\" 2\n\n# EOF\n";
        let read: Vec<_> = samples(text).map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(read, [("a", 3.0), ("b", 4.5)]);
        let first = samples(text).next().unwrap();
        assert_eq!((first.label("x"), first.label("y"), first.label("z")), (Some("1"), Some("two"), None));
    }

    #[test]
    fn series_of_a_histogram_are_added_up() {
        let text = "t_bucket{le=\"1.0\",protocol=\"smtp\"} 1\nt_bucket{le=\"+Inf\",protocol=\"smtp\"} 2\n\
                    t_bucket{le=\"1.0\",protocol=\"lmtp\"} 10\nt_bucket{le=\"+Inf\",protocol=\"lmtp\"} 20\n";
        let mut histogram = Histogram::default();
        samples(text).for_each(|sample| histogram.take(&sample));
        let counts: Vec<(f64, f64)> =
            histogram.buckets.iter().map(|bucket| (bucket.bound, bucket.count)).collect();
        assert_eq!(counts, [(1.0, 11.0), (f64::INFINITY, 22.0)]);
    }

    #[test]
    fn quantiles_are_those_of_what_came_since() {
        let (before, now) = (histogram([100, 100, 100]), histogram([110, 120, 120]));
        assert_eq!(now.quantile_since(&before, 0.5), Some(1.0));
        assert_eq!(now.quantile_since(&before, 0.25), Some(0.5));
        assert_eq!(now.quantile_since(&before, 0.75), Some(1.5));
        assert_eq!(now.quantile_since(&now, 0.5), None, "nothing came");
        assert_eq!(Histogram::default().quantile_since(&Histogram::default(), 0.5), None);
        let beyond = histogram([0, 0, 4]);
        assert_eq!(beyond.quantile_since(&Histogram::default(), 0.99), Some(2.0), "at least the last bound");
    }
}
