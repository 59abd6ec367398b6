//! Progress of long operations, on stderr; nothing is shown when that is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar, or a spinner if the total is not known.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) bar: ProgressBar,
}

impl Progress {
    /// Counts bytes.
    pub(crate) fn bytes(what: &'static str, total: Option<u64>) -> Self {
        Self::new(
            what,
            total,
            "{decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}",
            "{decimal_bytes}",
        )
    }

    /// Counts items, such as messages.
    pub(crate) fn counting(things: &str, what: &'static str, total: Option<u64>) -> Self {
        let with_end = format!("{{human_pos}} of {{human_len}} {things}, {{per_sec}}");
        Self::new(what, total, &with_end, &format!("{{human_pos}} {things}, {{per_sec}}"))
    }

    fn new(what: &'static str, total: Option<u64>, with_end: &str, without_end: &str) -> Self {
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), format!("{{msg}} {{wide_bar}} {with_end} {{eta}}")),
            None => (ProgressBar::new_spinner(), format!("{{spinner}} {{msg}} {without_end}")),
        };
        let style = ProgressStyle::with_template(&template).expect("both templates are well-formed");
        bar.set_style(style);
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    /// Sets the progress.
    pub(crate) fn set(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Sets the progress and the total.
    pub(crate) fn set_of(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
