//! Whether an engine is available: what is known about it without a request, so that an outage costs one time-out and not one for
//! every append.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use restante_core::{Clock, Timestamp};
use tokio::sync::watch;
use tracing::{info, warn};

/// What is known about an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// It works, as far as is known.
    Well,
    /// It answers, but the messages in the spool can't be stored.
    Stuck(Outage),
    /// It does not answer.
    Away(Outage),
}

/// What is wrong, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) what: String,
    pub(crate) since: Timestamp,
}

/// The state of one engine, shared by its callers and by the task that waits for its return.
pub(crate) struct Circuit {
    engine: &'static str,
    condition: watch::Sender<Condition>,
    clock: Arc<dyn Clock>,
    up: Gauge,
}

impl Circuit {
    /// An engine that is assumed to work.
    pub(crate) fn new(engine: &'static str, clock: Arc<dyn Clock>, up: Gauge) -> Self {
        up.set(1);
        Self { engine, condition: watch::Sender::new(Condition::Well), clock, up }
    }

    pub(crate) fn engine(&self) -> &'static str {
        self.engine
    }

    pub(crate) fn is_away(&self) -> bool {
        matches!(*self.condition.borrow(), Condition::Away(_))
    }

    pub(crate) fn outage(&self) -> Option<Outage> {
        match &*self.condition.borrow() {
            Condition::Well => None,
            Condition::Stuck(outage) | Condition::Away(outage) => Some(outage.clone()),
        }
    }

    /// Notes that the engine does not answer.
    pub(crate) fn open(&self, why: &str) {
        let begin = format!("{} is unavailable", self.engine);
        let what = if why.starts_with(&begin) { why.to_owned() } else { format!("{begin}: {why}") };
        let now = self.clock.now();
        let is_new = self.condition.send_if_modified(|condition| match condition {
            Condition::Away(outage) => {
                outage.what.clone_from(&what);
                false
            }
            _ => {
                *condition = Condition::Away(Outage { what: what.clone(), since: now });
                true
            }
        });
        if is_new {
            self.up.set(0);
            warn!(
                engine = self.engine,
                what, "the engine is away: messages wait in the spool for its return"
            );
        }
    }

    /// Notes that the engine answers, but the waiting messages can't be stored.
    pub(crate) fn stick(&self, why: &str) {
        let what = format!("what is in the spool can't be stored in {}: {why}", self.engine);
        let now = self.clock.now();
        let is_new = self.condition.send_if_modified(|condition| match condition {
            Condition::Stuck(outage) => {
                outage.what.clone_from(&what);
                false
            }
            _ => {
                *condition = Condition::Stuck(Outage { what: what.clone(), since: now });
                true
            }
        });
        self.up.set(1);
        if is_new {
            warn!(engine = self.engine, what, "the spool is not drained; it is tried again and again");
        }
    }

    /// Notes that the engine works.
    pub(crate) fn close(&self) {
        let was_troubled = self.condition.send_if_modified(|condition| {
            let was_troubled = *condition != Condition::Well;
            *condition = Condition::Well;
            was_troubled
        });
        if was_troubled {
            self.up.set(1);
            info!(engine = self.engine, "the engine is back");
        }
    }

    /// Returns once the engine is known to be unavailable.
    pub(crate) async fn opened(&self) {
        let is_away = |condition: &Condition| matches!(condition, Condition::Away(_));
        let mut seen = self.condition.subscribe();
        // The sender lives as long as this circuit, so waiting can't fail.
        let _ = seen.wait_for(is_away).await;
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ManualClock;

    use super::*;

    #[test]
    fn an_outage_begins_once_and_its_reason_is_the_latest() {
        let clock = Arc::new(ManualClock::new(Timestamp(5)));
        let circuit = Circuit::new("postgres", clock.clone(), Gauge::default());
        assert_eq!((circuit.is_away(), circuit.outage()), (false, None));
        circuit.open("no answer");
        clock.set(Timestamp(9));
        circuit.open("postgres is unavailable: refused");
        let outage = Outage { what: "postgres is unavailable: refused".into(), since: Timestamp(5) };
        assert_eq!((circuit.is_away(), circuit.outage()), (true, Some(outage)));
        assert_eq!(circuit.up.get(), 0);
        circuit.stick("no room");
        assert_eq!((circuit.is_away(), circuit.outage().unwrap().since), (false, Timestamp(9)));
        circuit.close();
        assert_eq!((circuit.outage(), circuit.up.get()), (None, 1));
    }
}
