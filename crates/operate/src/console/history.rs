//! The last minutes of rates and times, so that the page shows what happened before it was opened.

use std::collections::VecDeque;

use parking_lot::RwLock;
use restante_core::Timestamp;
use serde_json::{Value, json};

use super::exposition::{Histogram, samples};

/// How often the metrics are read: often enough that plots move, and it takes a millisecond each time.
pub(crate) const INTERVAL_SECONDS: u64 = 2;
/// Points in memory: ten minutes. Longer history is Prometheus' job.
pub(crate) const POINTS_MAX: usize = 300;

/// The metrics at one moment, as far as the page shows their history.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) counts: Counts,
    appends: Histogram,
    queries: Histogram,
    deliveries: Histogram,
    requests: Histogram,
    /// The age of the oldest commit that is not in the search index; `None` without an indexer.
    index_lag_seconds: Option<f64>,
}

/// Counters since the server was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// New messages that the archive stored.
    pub(crate) stored: f64,
    /// Messages that were received by relay and accepted.
    pub(crate) relayed: f64,
    /// Messages in answers to queries.
    pub(crate) served: f64,
    /// Messages pushed to connected clients: filter subscribers and live streams.
    pub(crate) pushed: f64,
    /// Pages that were queried from the archive.
    pub(crate) queries: f64,
    /// New emails that were delivered to accounts.
    pub(crate) delivered: f64,
    /// Recipients that were refused or deferred.
    pub(crate) undelivered: f64,
    /// JMAP requests that were answered.
    pub(crate) requests: f64,
}

impl Reading {
    pub(crate) fn of(text: &str) -> Self {
        let mut reading = Self::default();
        for sample in samples(text) {
            let counts = &mut reading.counts;
            match (sample.name, sample.label("result")) {
                ("restante_archive_messages_total", Some("stored" | "spooled")) => {
                    counts.stored += sample.value;
                }
                ("restante_waku_relay_messages_total", Some("taken")) => counts.relayed += sample.value,
                ("restante_archive_query_rows_sum", _) => counts.served += sample.value,
                ("restante_sessions_hub_handed_out_total", _) => counts.pushed += sample.value,
                ("restante_archive_query_seconds_count", _) => counts.queries += sample.value,
                ("restante_mail_deliveries_total", Some("new")) => counts.delivered += sample.value,
                ("restante_smtp_recipients_total", Some(result)) if result != "accepted" => {
                    counts.undelivered += sample.value;
                }
                ("restante_jmap_request_seconds_count", _) => counts.requests += sample.value,
                ("restante_smtp_message_seconds_bucket", _) => reading.deliveries.take(&sample),
                ("restante_jmap_request_seconds_bucket", _) => reading.requests.take(&sample),
                ("restante_follow_lag_seconds", _) if sample.label("follower") == Some("indexer") => {
                    reading.index_lag_seconds = Some(sample.value);
                }
                ("restante_archive_append_seconds_bucket", _) => reading.appends.take(&sample),
                ("restante_archive_query_seconds_bucket", _) => reading.queries.take(&sample),
                _ => {}
            }
        }
        reading
    }
}

/// What happened between two readings: per second, and in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    at_ms: i64,
    rates: Counts,
    append_ms: Quantiles,
    query_ms: Quantiles,
    delivery_ms: Quantiles,
    request_ms: Quantiles,
    index_lag_ms: Option<f64>,
}

/// The median and the 99th percentile; `None` if there was nothing to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Quantiles {
    p50: Option<f64>,
    p99: Option<f64>,
}

impl Quantiles {
    fn between(before: &Histogram, after: &Histogram) -> Self {
        let ms = |share| after.quantile_since(before, share).map(|seconds| seconds * 1e3);
        Self { p50: ms(0.5), p99: ms(0.99) }
    }
}

impl Point {
    fn between(before: &(Timestamp, Reading), after: &(Timestamp, Reading)) -> Option<Self> {
        let ((from, before), (to, after)) = (before, after);
        let seconds = (to.nanos().checked_sub(from.nanos())? as f64) / 1e9;
        if seconds <= 0.0 {
            return None; // the clock was set back
        }
        let rate = |count: fn(&Counts) -> f64| {
            let difference = count(&after.counts) - count(&before.counts);
            difference.max(0.0) / seconds
        };
        let rates = Counts {
            stored: rate(|counts| counts.stored),
            relayed: rate(|counts| counts.relayed),
            served: rate(|counts| counts.served),
            pushed: rate(|counts| counts.pushed),
            queries: rate(|counts| counts.queries),
            delivered: rate(|counts| counts.delivered),
            undelivered: rate(|counts| counts.undelivered),
            requests: rate(|counts| counts.requests),
        };
        Some(Self {
            at_ms: to.nanos() / 1_000_000,
            rates,
            append_ms: Quantiles::between(&before.appends, &after.appends),
            query_ms: Quantiles::between(&before.queries, &after.queries),
            delivery_ms: Quantiles::between(&before.deliveries, &after.deliveries),
            request_ms: Quantiles::between(&before.requests, &after.requests),
            index_lag_ms: after.index_lag_seconds.map(|seconds| seconds * 1e3),
        })
    }
}

/// The points of the last minutes.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: RwLock<Points>,
}

#[derive(Debug, Default)]
struct Points {
    last: Option<(Timestamp, Reading)>,
    points: VecDeque<Point>,
}

impl History {
    /// Adds the current metrics.
    pub(crate) fn add(&self, now: Timestamp, reading: Reading) {
        let mut points = self.points.write();
        let current = (now, reading);
        let point = points.last.as_ref().and_then(|last| Point::between(last, &current));
        points.last = Some(current);
        let Some(point) = point else { return };
        if points.points.len() == POINTS_MAX {
            points.points.pop_front();
        }
        points.points.push_back(point);
    }

    /// The points after a time, from old to new, as columns: these are half as long as a list of objects.
    pub(crate) fn since(&self, after_ms: i64) -> Value {
        let held = self.points.read();
        let points: Vec<&Point> = held.points.iter().filter(|point| point.at_ms > after_ms).collect();
        let column = |value: fn(&Point) -> Option<f64>| {
            points.iter().map(|point| value(point).map(rounded)).collect::<Vec<Option<f64>>>()
        };
        json!({
            "at": points.iter().map(|point| point.at_ms).collect::<Vec<i64>>(),
            "stored": column(|point| Some(point.rates.stored)),
            "relayed": column(|point| Some(point.rates.relayed)),
            "served": column(|point| Some(point.rates.served)),
            "pushed": column(|point| Some(point.rates.pushed)),
            "queries": column(|point| Some(point.rates.queries)),
            "appendP50": column(|point| point.append_ms.p50),
            "appendP99": column(|point| point.append_ms.p99),
            "queryP50": column(|point| point.query_ms.p50),
            "queryP99": column(|point| point.query_ms.p99),
            "delivered": column(|point| Some(point.rates.delivered)),
            "undelivered": column(|point| Some(point.rates.undelivered)),
            "deliveryP50": column(|point| point.delivery_ms.p50),
            "deliveryP99": column(|point| point.delivery_ms.p99),
            "requests": column(|point| Some(point.rates.requests)),
            "requestP50": column(|point| point.request_ms.p50),
            "requestP99": column(|point| point.request_ms.p99),
            "indexLag": column(|point| point.index_lag_ms),
        })
    }
}

/// A plot shows fewer than three digits after the decimal point.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(messages: u32, fast: u32, slow: u32) -> String {
        let all = fast + slow;
        format!(
            "restante_archive_messages_total{{engine=\"log\",result=\"stored\"}} {messages}\n\
             restante_archive_messages_total{{engine=\"log\",result=\"duplicate\"}} 99\n\
             restante_waku_relay_messages_total{{result=\"taken\"}} 7\n\
             restante_waku_relay_messages_total{{result=\"malformed\"}} 5\n\
             restante_archive_query_seconds_count{{engine=\"log\"}} {all}\n\
             restante_archive_query_seconds_bucket{{le=\"0.001\",engine=\"log\"}} {fast}\n\
             restante_archive_query_seconds_bucket{{le=\"0.002\",engine=\"log\"}} {all}\n\
             restante_archive_query_seconds_bucket{{le=\"+Inf\",engine=\"log\"}} {all}\n"
        )
    }

    #[test]
    fn readings_are_of_the_families_that_are_shown() {
        let counts = Reading::of(&text(10, 3, 1)).counts;
        assert_eq!(counts, Counts { stored: 10.0, relayed: 7.0, queries: 4.0, ..Counts::default() });
        assert_eq!(Reading::of("nothing of ours 1\n"), Reading::default());
    }

    #[test]
    fn mail_is_among_what_is_read() {
        let text = "restante_mail_deliveries_total{result=\"new\"} 5\n\
                    restante_mail_deliveries_total{result=\"repeated\"} 9\n\
                    restante_smtp_recipients_total{protocol=\"lmtp\",result=\"accepted\"} 5\n\
                    restante_smtp_recipients_total{protocol=\"lmtp\",result=\"unknown\"} 2\n\
                    restante_smtp_recipients_total{protocol=\"smtp\",result=\"over_quota\"} 1\n\
                    restante_jmap_request_seconds_count 7\n\
                    restante_follow_lag_seconds{follower=\"other\"} 3.0\n\
                    restante_follow_lag_seconds{follower=\"indexer\"} 1.5\n";
        let reading = Reading::of(text);
        let expected = Counts { delivered: 5.0, undelivered: 3.0, requests: 7.0, ..Counts::default() };
        assert_eq!((reading.counts, reading.index_lag_seconds), (expected, Some(1.5)));
    }

    #[test]
    fn points_are_differences_per_second() {
        let history = History::default();
        let at = Timestamp::from_seconds;
        history.add(at(100), Reading::of(&text(10, 0, 0)));
        assert_eq!(history.since(0)["at"], json!([]), "a difference needs two");
        history.add(at(102), Reading::of(&text(30, 2, 0)));
        history.add(at(104), Reading::of(&text(30, 2, 2)));
        let shown = history.since(0);
        assert_eq!(shown["at"], json!([102_000, 104_000]));
        assert_eq!(shown["stored"], json!([10.0, 0.0]));
        assert_eq!(shown["queries"], json!([1.0, 1.0]));
        assert_eq!(shown["queryP50"], json!([0.5, 1.5]));
        assert_eq!(shown["appendP99"], json!([null, null]), "nothing was measured");
        assert_eq!(history.since(102_000)["at"], json!([104_000]), "only what is new");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_point() {
        let history = History::default();
        history.add(Timestamp::from_seconds(100), Reading::default());
        history.add(Timestamp::from_seconds(50), Reading::default());
        assert_eq!(history.since(0)["at"], json!([]));
        history.add(Timestamp::from_seconds(52), Reading::default());
        assert_eq!(history.since(0)["at"], json!([52_000]));
    }

    #[test]
    fn the_oldest_points_go() {
        let history = History::default();
        for second in 0..=(POINTS_MAX as i64 + 10) {
            history.add(Timestamp::from_seconds(second), Reading::default());
        }
        let shown = history.since(0);
        let at = shown["at"].as_array().unwrap();
        assert_eq!(at.len(), POINTS_MAX);
        assert_eq!(at[0], json!(11_000));
    }
}
