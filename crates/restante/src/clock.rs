//! The source of time of the binary.

use std::sync::Arc;

use restante_core::{Clock, SystemClock};

/// The machine's clock.
pub(crate) fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}
