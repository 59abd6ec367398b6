//! `GET /admin/v1/records`: the statistics of a running server's records, for `restante records stats --rest`.

use std::sync::Arc;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use restante_http::{Audience, Route};
use restante_records::Upkeep;
use tokio::sync::Semaphore;
use tracing::warn;

use super::stats::{RECORDS_PATH, shown};

/// The route for statistics of a running server's records. Counting walks through them, so requests are handled one at a time.
pub(crate) fn route(url: String, upkeep: Arc<dyn Upkeep>) -> Route {
    let permits = Arc::new(Semaphore::new(1));
    let answer = move || answer(url.clone(), upkeep.clone(), permits.clone());
    Route::get(RECORDS_PATH, "what the records hold", answer).with_audience(Audience::Operators)
}

async fn answer(url: String, upkeep: Arc<dyn Upkeep>, permits: Arc<Semaphore>) -> Response {
    let Ok(_permit) = permits.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the records are being counted already: ask again")
            .into_response();
    };
    match upkeep.stats().await {
        Ok(stats) => Json(shown(url, &stats)).into_response(),
        Err(error) => {
            warn!(%error, "the size of the records could not be read");
            (StatusCode::SERVICE_UNAVAILABLE, "the size of the records could not be read").into_response()
        }
    }
}
