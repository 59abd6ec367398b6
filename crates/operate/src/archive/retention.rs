//! What retention keeps, and the result of its last runs.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use restante_archive::{Error, Pruned, Retention};
use restante_core::Timestamp;
use serde_json::{Value, json};

/// What retention keeps, and the result of its last runs. The task that prunes notes it here, and the console shows it. Cloning
/// shares it; the default keeps everything.
#[derive(Clone, Debug, Default)]
pub struct RetentionState {
    policy: Retention,
    interval: Duration,
    runs: Arc<RwLock<Runs>>,
}

#[derive(Debug, Default)]
struct Runs {
    last: Option<Run>,
    /// The last run that removed something.
    last_removing: Option<Run>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    at: Timestamp,
    /// What was removed, or the kind of error.
    pruned: Result<Pruned, &'static str>,
}

impl RetentionState {
    /// A policy that is applied at an interval.
    pub fn new(policy: Retention, interval: Duration) -> Self {
        Self { policy, interval, runs: Arc::default() }
    }

    /// Notes the result of a run.
    pub fn note(&self, at: Timestamp, pruned: &Result<Pruned, Error>) {
        let run = Run { at, pruned: pruned.as_ref().copied().map_err(|error| error.kind().as_str()) };
        let mut runs = self.runs.write();
        runs.last = Some(run);
        if run.pruned.is_ok_and(|pruned| pruned != Pruned::default()) {
            runs.last_removing = Some(run);
        }
    }

    pub(crate) fn show(&self) -> Value {
        let runs = self.runs.read();
        json!({
            "policy": self.policy.to_string(),
            "timeSeconds": self.policy.time_seconds,
            "messagesMax": self.policy.capacity,
            "bytesMax": self.policy.size_bytes,
            "intervalSeconds": self.interval.as_secs(),
            "last": runs.last.map(Run::show),
            "lastRemoving": runs.last_removing.map(Run::show),
        })
    }
}

impl Run {
    fn show(self) -> Value {
        let at = self.at.nanos() / 1_000_000;
        match self.pruned {
            Ok(Pruned { messages, disk_bytes, parts }) => {
                json!({"at": at, "messages": messages, "diskBytes": disk_bytes, "parts": parts})
            }
            Err(kind) => json!({"at": at, "error": kind}),
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_last_run_is_shown_and_the_last_that_removed() {
        let state = RetentionState::new("time:60;size:2MB".parse().unwrap(), Duration::from_secs(30));
        let shown = state.show();
        assert_eq!(shown["policy"], "time:60;size:2MB");
        assert_eq!((&shown["timeSeconds"], &shown["bytesMax"]), (&json!(60), &json!(2_000_000)));
        assert_eq!((&shown["intervalSeconds"], &shown["last"]), (&json!(30), &Value::Null));

        let pruned = Pruned { messages: 3, disk_bytes: 4, parts: 1 };
        let removed = json!({"at": 1_000, "messages": 3, "diskBytes": 4, "parts": 1});
        let noting = state.clone();
        noting.note(Timestamp::from_seconds(1), &Ok(pruned));
        assert_eq!((&state.show()["last"], &state.show()["lastRemoving"]), (&removed, &removed));
        noting.note(Timestamp::from_seconds(2), &Ok(Pruned::default()));
        assert_eq!(state.show()["last"]["at"], 2_000);
        noting.note(Timestamp::from_seconds(3), &Err(Error::full("secret/path is full")));
        assert_eq!(state.show()["last"], json!({"at": 3_000, "error": "full"}));
        assert_eq!(state.show()["lastRemoving"], removed);
    }
}
