use restante_core::Timestamp;

/// The health of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What is wrong, for people; `None` when the engine works.
    pub problem: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// What is damaged or lost, for people, though the engine works with the rest.
    pub damage: Option<String>,
    /// Messages in the spool that wait for the engine.
    pub spooled_messages: u64,
    /// Bytes of the spool on disk.
    pub spooled_bytes: u64,
    /// The state of the second archive of a tandem; `None` without one.
    pub following: Option<Following>,
}

/// How the second archive of a tandem follows the first. The first does not depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// The second's engine.
    pub engine: &'static str,
    /// What is wrong, for people; `None` when it follows.
    pub problem: Option<String>,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Whether it has given up: messages are missing in the second.
    pub is_stopped: bool,
    /// Messages that the second does not have yet.
    pub messages: u64,
    /// Their bytes on disk.
    pub bytes: u64,
    /// The oldest timestamp among them.
    pub oldest: Option<Timestamp>,
}
