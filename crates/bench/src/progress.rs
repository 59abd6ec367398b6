//! Progress bars on stderr, shown only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` steps.
pub(crate) fn bar(what: &str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let template = "{msg:<34} [{bar:30}] {human_pos}/{human_len} {eta}";
    bar.set_style(
        ProgressStyle::with_template(template).expect("the template is right").progress_chars("=> "),
    );
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
