//! What retention keeps, and what it did last.

use std::{sync::Arc, time::Duration};

use parking_lot::RwLock;
use restante_archive::{Error, Pruned, Retention};
use restante_core::Timestamp;
use serde_json::{Value, json};

/// What retention keeps, and what it did last. Whoever prunes notes it here, and the console shows it. Cloning shares it; the
/// default keeps everything.
#[derive(Clone, Debug, Default)]
pub struct RetentionState {
    policy: Retention,
    interval: Duration,
    turns: Arc<RwLock<Turns>>,
}

#[derive(Debug, Default)]
struct Turns {
    last: Option<Turn>,
    /// The last that removed something.
    last_removing: Option<Turn>,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    at: Timestamp,
    /// What was removed, or the kind of error.
    pruned: Result<Pruned, &'static str>,
}

impl RetentionState {
    /// A policy that is looked after so often.
    pub fn new(policy: Retention, interval: Duration) -> Self {
        Self { policy, interval, turns: Arc::default() }
    }

    /// Notes how a turn went.
    pub fn note(&self, at: Timestamp, pruned: &Result<Pruned, Error>) {
        let turn = Turn { at, pruned: pruned.as_ref().copied().map_err(|error| error.kind().as_str()) };
        let mut turns = self.turns.write();
        turns.last = Some(turn);
        if turn.pruned.is_ok_and(|pruned| pruned != Pruned::default()) {
            turns.last_removing = Some(turn);
        }
    }

    pub(crate) fn told(&self) -> Value {
        let turns = self.turns.read();
        json!({
            "policy": self.policy.to_string(),
            "timeSeconds": self.policy.time_seconds,
            "messagesMax": self.policy.capacity,
            "bytesMax": self.policy.size_bytes,
            "intervalSeconds": self.interval.as_secs(),
            "last": turns.last.map(Turn::told),
            "lastRemoving": turns.last_removing.map(Turn::told),
        })
    }
}

impl Turn {
    fn told(self) -> Value {
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
    use restante_core::ErrorKind;

    use super::*;

    #[test]
    fn the_last_turn_is_told_and_the_last_that_removed() {
        let state = RetentionState::new("time:60;size:2MB".parse().unwrap(), Duration::from_secs(30));
        let told = state.told();
        assert_eq!(told["policy"], "time:60;size:2MB");
        assert_eq!((&told["timeSeconds"], &told["bytesMax"]), (&json!(60), &json!(2_000_000)));
        assert_eq!((&told["intervalSeconds"], &told["last"]), (&json!(30), &Value::Null));

        let pruned = Pruned { messages: 3, disk_bytes: 4, parts: 1 };
        let removed = json!({"at": 1_000, "messages": 3, "diskBytes": 4, "parts": 1});
        let noting = state.clone();
        noting.note(Timestamp::from_seconds(1), &Ok(pruned));
        assert_eq!((&state.told()["last"], &state.told()["lastRemoving"]), (&removed, &removed));
        noting.note(Timestamp::from_seconds(2), &Ok(Pruned::default()));
        assert_eq!(state.told()["last"]["at"], 2_000);
        noting.note(Timestamp::from_seconds(3), &Err(Error::new(ErrorKind::Full, "secret/path is full")));
        assert_eq!(state.told()["last"], json!({"at": 3_000, "error": "full"}));
        assert_eq!(state.told()["lastRemoving"], removed);
    }
}
