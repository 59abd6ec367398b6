//! Aggregate reports of DMARC (RFC 7489 §7.2): results are counted by day, and after each day a domain that asks for it gets a report.
//!
//! [`DmarcCollector`] collects the results of checks in memory and writes the counts every minute into
//! [`restante_mail::dmarc::DmarcRows`]: a crash loses at most the statistics of a minute. [`Reporter`] sends the reports. Several
//! servers may do both on one store: a report is queued once, under a key of its day and domain.

mod collector;
mod destinations;
mod mail;
mod metrics;
mod published;
mod reporter;
#[cfg(test)]
mod tests;
mod xml;

pub use collector::DmarcCollector;
pub use metrics::AggregateMetrics;
pub use published::{Destination, Published};
pub use reporter::{Reporter, ReporterParts};
pub use xml::{Feedback, feedback_of, write_xml};

/// The seconds of a day, which reports are about: from midnight to midnight in UTC.
const DAY_SECONDS: u64 = 86_400;
