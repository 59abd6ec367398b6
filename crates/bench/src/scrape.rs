//! The metrics of a server.

use std::net::SocketAddr;

use anyhow::ensure;
use restante_operate::exposition::{Sample, samples};

use crate::http::{Connection, get};

/// All figures at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape {
    text: String,
}

impl Scrape {
    /// Reads them from a server.
    pub(crate) async fn of(rest: SocketAddr) -> anyhow::Result<Self> {
        let mut connection = Connection::open(rest).await?;
        let mut body = Vec::new();
        let status =
            connection.ask(get("/metrics").as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        ensure!(status == 200, "the metrics were answered with status {status}");
        Ok(Self::parse(&String::from_utf8_lossy(&body)))
    }

    /// The metrics in the text format of Prometheus.
    pub(crate) fn parse(text: &str) -> Self {
        Self { text: text.to_owned() }
    }

    /// The sum of a metric over all its labels; 0 when it is missing.
    pub(crate) fn sum(&self, name: &str) -> u64 {
        self.sum_where(|sample| sample.name == name)
    }

    /// The sum of a metric over all series whose `label` is `value`.
    pub(crate) fn sum_with(&self, name: &str, label: &str, value: &str) -> u64 {
        self.sum_where(|sample| sample.name == name && sample.label(label) == Some(value))
    }

    /// Messages that did not fit into the queue between relay and archive, and those that the archive refused: they are lost
    /// to this server, unless it fetches them later.
    pub(crate) fn lost_to_archive(&self) -> u64 {
        self.sum("restante_waku_handover_dropped_total") + self.sum("restante_waku_handover_failed_total")
    }

    /// Messages that relay did not deliver to a slow peer.
    pub(crate) fn lost_to_peers(&self) -> u64 {
        self.sum("restante_waku_relay_dropped_total")
    }

    /// Valid messages that relay has received.
    pub(crate) fn arrived(&self) -> u64 {
        self.sum_with("restante_waku_relay_messages_total", "result", "taken")
    }

    /// Messages that are durable.
    pub(crate) fn stored(&self) -> u64 {
        self.sum_with("restante_archive_messages_total", "result", "stored")
    }

    fn sum_where(&self, is_match: impl Fn(&Sample<'_>) -> bool) -> u64 {
        samples(&self.text).filter(is_match).map(|sample| sample.value).sum::<f64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_summed_by_name_and_label() {
        let text = "# HELP restante_waku_relay_messages What.\n\
            restante_waku_relay_messages_total{result=\"taken\"} 7\n\
            restante_waku_relay_messages_total{result=\"too_old\"} 2\n\
            restante_waku_handover_dropped_total 3\nrestante_waku_handover_failed_total 4\n\
            restante_archive_messages_total{engine=\"log\",result=\"stored\"} 5\n# EOF\n";
        let scrape = Scrape::parse(text);
        assert_eq!(scrape.sum("restante_waku_relay_messages_total"), 9);
        assert_eq!((scrape.arrived(), scrape.stored(), scrape.lost_to_archive()), (7, 5, 7));
        assert_eq!((scrape.lost_to_peers(), scrape.sum("nothing")), (0, 0));
    }
}
