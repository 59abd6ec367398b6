//! Where log lines go: to stderr, so that stdout stays with the command's own output.

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{Config, LogFormat};

/// Logs as a server does, by its settings.
pub(crate) fn start(config: &Config) {
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(is_terminal);
    let registry = tracing_subscriber::registry().with(config.log.level.directives());
    match config.log.format {
        LogFormat::Text => registry.with(lines).init(),
        LogFormat::Json => registry.with(lines.json()).init(),
    }
}

/// Logs as a command does that a person waits for: only what needs attention.
pub(crate) fn start_quietly() {
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(EnvFilter::new("warn")).with(lines).init();
}
