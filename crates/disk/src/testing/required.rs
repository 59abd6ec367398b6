use std::env;

use libtest_mimic::{Completion, Failed};

/// The variable with the names of what tests require, separated by commas.
const REQUIRE: &str = "RESTANTE_TEST_REQUIRE";

/// Runs a test if nothing that it needs is `missing`. Otherwise the test is ignored, or fails if `RESTANTE_TEST_REQUIRE` contains
/// `needed`.
///
/// # Errors
/// What is missing and required.
pub fn run_or_ignore(
    needed: &str,
    missing: Option<String>,
    test: impl FnOnce(),
) -> Result<Completion, Failed> {
    let Some(why) = missing else {
        test();
        return Ok(Completion::Completed);
    };
    let required = env::var(REQUIRE).unwrap_or_default();
    if required.split(',').any(|name| name.trim() == needed) {
        return Err(format!("{REQUIRE} has {needed}, but {why}").into());
    }
    Ok(Completion::ignored_with(why))
}
