//! `GET /admin/v1/records`: the statistics of a running server's records, for `restante records stats --rest`.

use std::sync::Arc;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing,
};
use restante_records::Upkeep;
use restante_waku::rest::OperatorRoute;
use tokio::sync::Semaphore;
use tracing::warn;

use super::stats::{RECORDS_PATH, shown};

/// Where a running server tells what its records hold. To count them takes a walk: one at a time.
pub(crate) fn route(url: String, upkeep: Arc<dyn Upkeep>) -> OperatorRoute {
    let turn = Arc::new(Semaphore::new(1));
    let answer = move || answer(url.clone(), upkeep.clone(), turn.clone());
    OperatorRoute {
        method: "get",
        path: RECORDS_PATH,
        what: "what the records hold",
        handler: routing::get(answer),
    }
}

async fn answer(url: String, upkeep: Arc<dyn Upkeep>, turn: Arc<Semaphore>) -> Response {
    let Ok(_turn) = turn.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the records are being counted already: ask again")
            .into_response();
    };
    match upkeep.stats().await {
        Ok(stats) => Json(shown(url, &stats)).into_response(),
        Err(error) => {
            warn!(%error, "the records do not tell what they hold");
            (StatusCode::SERVICE_UNAVAILABLE, "the records do not tell what they hold").into_response()
        }
    }
}
