//! Settings that an engine reports, and whether they are safe.

use serde::Serialize;

/// A setting of an engine as it was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EngineSetting {
    pub(crate) engine: &'static str,
    pub(crate) name: String,
    pub(crate) value: String,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
}

/// What a value means for data and speed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Judgement {
    Safe,
    /// Acknowledged data may be lost, or work refused.
    Unsafe {
        because: String,
        cure: String,
    },
    /// It costs speed or space that few operators need to give up.
    Costly {
        because: String,
        cure: String,
    },
}

impl EngineSetting {
    pub(crate) fn safe(engine: &'static str, name: &str, value: impl Into<String>) -> Self {
        Self { engine, name: name.to_owned(), value: value.into(), judgement: Judgement::Safe }
    }

    pub(crate) fn into_unsafe(self, because: &str, cure: &str) -> Self {
        let judgement = Judgement::Unsafe { because: because.to_owned(), cure: cure.to_owned() };
        Self { judgement, ..self }
    }

    pub(crate) fn into_costly(self, because: &str, cure: &str) -> Self {
        let judgement = Judgement::Costly { because: because.to_owned(), cure: cure.to_owned() };
        Self { judgement, ..self }
    }
}
