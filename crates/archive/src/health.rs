use restante_core::Timestamp;

/// How an archive is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What is wrong, for people; `None` when the engine does its work.
    pub problem: Option<String>,
    /// Since when it is so.
    pub since: Option<Timestamp>,
    /// What is damaged or lost, for people, though the engine does its work with what is left.
    pub damage: Option<String>,
    /// Messages in the spool, which wait for the engine.
    pub spooled_messages: u64,
    /// Bytes that the spool takes on disk.
    pub spooled_bytes: u64,
    /// How the second archive of a tandem follows; `None` without one.
    pub following: Option<Following>,
}

/// How the second archive of a tandem follows the first. The first does not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// The second's engine.
    pub engine: &'static str,
    /// What is wrong, for people; `None` when it follows.
    pub problem: Option<String>,
    /// Since when it is so.
    pub since: Option<Timestamp>,
    /// Whether it has given up: messages are missing in the second.
    pub is_stopped: bool,
    /// Messages that the second does not have yet.
    pub messages: u64,
    /// Bytes that they take on disk.
    pub bytes: u64,
    /// The oldest timestamp among them.
    pub oldest: Option<Timestamp>,
}
