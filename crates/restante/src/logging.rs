//! Log lines go to stderr, so that stdout has only the command's own output.

use std::sync::Arc;

use restante_operate::SetLogLevel;
use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

use crate::config::{Config, LogFilter, LogFormat};

/// Starts the log of a server, configured by its settings. The returned function changes the level.
pub(crate) fn start(config: &Config) -> SetLogLevel {
    let (filter, handle) = reload::Layer::new(config.log.level.directives());
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal);
    let registry = tracing_subscriber::registry().with(filter);
    match config.log.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json()).init(),
    }
    Arc::new(move |text| {
        let filter: LogFilter = text.parse()?;
        handle.reload(filter.directives()).map_err(|error| error.to_string())
    })
}

/// Whether log lines and stdout go to the same place: a terminal, a file, the journal.
pub(crate) fn is_stdout() -> bool {
    let (out, log) = (rustix::fs::fstat(std::io::stdout()), rustix::fs::fstat(std::io::stderr()));
    matches!((out, log), (Ok(out), Ok(log)) if (out.st_dev, out.st_ino) == (log.st_dev, log.st_ino))
}

/// Starts the log of an interactive command: only what needs attention.
pub(crate) fn start_quietly() {
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(EnvFilter::new("warn")).with(lines).init();
}
