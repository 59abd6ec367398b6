//! The routes of a running server for `restante search --rest`.

use std::sync::Arc;

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use restante_http::{Audience, Route};
use restante_search::{Error, Upkeep};
use tokio::sync::Semaphore;
use tracing::{info, warn};

use super::{REBUILD_PATH, SEARCH_PATH, stats::shown};

/// The routes of a server that has a search index. Requests are handled one at a time.
pub(crate) fn routes(url: String, upkeep: Arc<dyn Upkeep>) -> [Route; 2] {
    let permits = Arc::new(Semaphore::new(1));
    let (upkeep_of_stats, permits_of_stats) = (upkeep.clone(), permits.clone());
    let stats = move || stats(url.clone(), upkeep_of_stats.clone(), permits_of_stats.clone());
    let rebuild = move || rebuild(upkeep.clone(), permits.clone());
    [
        Route::get(SEARCH_PATH, "what the search index holds", stats).with_audience(Audience::Operators),
        Route::post(REBUILD_PATH, "make the search index again", rebuild).with_audience(Audience::Operators),
    ]
}

async fn stats(url: String, upkeep: Arc<dyn Upkeep>, permits: Arc<Semaphore>) -> Response {
    let Ok(_permit) = permits.try_acquire() else { return busy() };
    match upkeep.stats().await {
        Ok(stats) => Json(shown(url, stats)).into_response(),
        Err(error) => failed(&error, "the search index does not report what it holds"),
    }
}

async fn rebuild(upkeep: Arc<dyn Upkeep>, permits: Arc<Semaphore>) -> Response {
    let Ok(_permit) = permits.try_acquire() else { return busy() };
    match upkeep.rebuild().await {
        Ok(()) => {
            info!("an operator has the search index made again");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => failed(&error, "the search index can't be made again now"),
    }
}

fn busy() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the search index is busy with another request: ask again")
        .into_response()
}

fn failed(error: &Error, what: &'static str) -> Response {
    warn!(%error, "{what}");
    (StatusCode::SERVICE_UNAVAILABLE, what).into_response()
}
