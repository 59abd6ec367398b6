use std::{fmt, path::PathBuf, str::FromStr, sync::Arc};

use restante_core::{Clock, SystemClock, TopicBits};

use crate::{Archive, Error, Metrics, Retention, Upkeep, log, memory, observe::Observed};

/// Which engine, and where: `log:<folder>` or `memory:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The embedded engine, in a folder.
    Log(PathBuf),
    /// The reference model: everything in memory, nothing kept.
    Memory,
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Log(_) => "log",
            Self::Memory => "memory",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("log", folder)) if !folder.is_empty() => Ok(Self::Log(folder.into())),
            Some(("memory", "")) => Ok(Self::Memory),
            _ => Err(Error::invalid(format!(
                "archive URL '{text}' is not understood: use log:<folder> or memory:"
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(folder) => write!(f, "log:{}", folder.display()),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// How to open an archive.
#[derive(Clone)]
pub struct Config {
    /// The engine and its place.
    pub url: EngineUrl,
    /// Open for reading beside a server that writes: nothing is locked or changed, appends and prunes are refused.
    pub read_only: bool,
    /// The retention policy in force. Opening removes nothing; the `log` engine cuts its segments so that the policy can
    /// be kept closely.
    pub retention: Retention,
    /// The bits that a topic sets in a bloom filter. Without it a bloom filter matches everything or nothing.
    pub topic_bits: fn(&str) -> TopicBits,
    /// Settings of the `log` engine.
    pub log: LogConfig,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            read_only: false,
            retention: Retention::default(),
            topic_bits: |_| TopicBits::new([0; 3]),
            log: LogConfig::default(),
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `log` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Length of a window: messages of one window share segments, retention removes whole segments.
    pub window_seconds: u64,
    /// A segment is full at this size.
    pub segment_bytes: u64,
    /// A segment is full at this many messages: it bounds the memory that an open segment's index takes.
    pub segment_messages: u64,
    /// Segments that take messages at the same time, each of another window; one more seals the least recently used.
    pub open_segments: usize,
    /// A segment whose window is over is sealed when nothing came for this long.
    pub quiet_seconds: u64,
    /// Bytes of messages that wait for the writer at most; further appends wait for room.
    pub queue_bytes: usize,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            window_seconds: 86_400,
            segment_bytes: 256 << 20,
            segment_messages: 1_000_000,
            open_segments: 4,
            quiet_seconds: 60,
            queue_bytes: 64 << 20,
        }
    }
}

/// An opened archive: the two halves of one engine.
#[derive(Clone)]
pub struct Opened {
    /// For doors.
    pub archive: Arc<dyn Archive>,
    /// For operators.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the archive that `config` names, and creates it when it is not there.
///
/// # Errors
/// `Conflict` when another process has it open for writing, `Corrupt` when its format is not understood, `Unavailable`
/// when the disk fails.
pub async fn open(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let opened = match &config.url {
        EngineUrl::Log(folder) => log::open(folder.clone(), config.clone()).await?,
        EngineUrl::Memory => memory::open(&config),
    };
    Ok(Opened { archive: Arc::new(Observed { inner: opened.archive, metrics }), upkeep: opened.upkeep })
}
