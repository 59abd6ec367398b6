//! `POST /admin/v1/backup`: how a running server is asked for a backup.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use restante_core::ErrorKind;
use restante_http::{Audience, Route};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc},
    time::timeout,
};
use tracing::warn;

use super::{Event, Sources, Teller, Trouble, take::Taking};
use crate::signals::Stop;

/// Where a server is asked.
pub(crate) const PATH: &str = "/admin/v1/backup";
const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// What is asked.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// Where to write.
    pub(crate) folder: PathBuf,
    /// The data folder that is meant, from whoever has only guessed that this is its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<PathBuf>,
}

/// One backup at a time: two would fight for the disk, and copy the same.
#[derive(Clone, Debug)]
pub(crate) struct Turn(Arc<Semaphore>);

impl Default for Turn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Turn {
    fn take(&self) -> Result<OwnedSemaphorePermit, Trouble> {
        self.0.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => {
                Trouble::new(ErrorKind::Conflict, "another backup is under way: try again later")
            }
            TryAcquireError::Closed => Trouble::server_stops(),
        })
    }

    /// Waits until a backup that was under way when the server was told to stop has removed what it has copied. No other
    /// begins behind it.
    pub(crate) async fn end(&self, limit: Duration) {
        if timeout(limit, self.0.acquire()).await.is_err() {
            warn!("a backup did not end in time: the next one to the same place removes what it leaves");
        }
        self.0.close();
    }
}

struct RequestHandler {
    sources: Arc<Sources>,
    stop: Stop,
    turn: Turn,
}

/// The route of a server that keeps these.
pub(crate) fn route(sources: Sources, stop: Stop, turn: Turn) -> Route {
    let handler = RequestHandler { sources: Arc::new(sources), stop, turn };
    let route = Route::post(PATH, "back everything up", answer).with_audience(Audience::Operators);
    route.with_state(Arc::new(handler))
}

async fn answer(State(handler): State<Arc<RequestHandler>>, body: Bytes) -> Response {
    match begin(&handler, &body).await {
        Ok(events) => {
            let lines = lines(events, handler.stop.clone());
            ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
        }
        Err(error) => (status(error.kind()), error.to_string()).into_response(),
    }
}

/// Begins a backup, which goes on by itself for as long as somebody hears of it.
async fn begin(handler: &RequestHandler, body: &[u8]) -> Result<mpsc::Receiver<Event>, Trouble> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| {
        Trouble::invalid(format!("expected {{\"folder\": \"/an/absolute/path\"}}: {error}"))
    })?;
    handler.sources.check_meant(asked.data.as_deref())?;
    let turn = handler.turn.take()?;
    let sources = handler.sources.clone();
    // A task of its own, which keeps the turn while it looks and removes, also when who asked goes away meanwhile.
    let looking = tokio::spawn(async move { (Taking::begin(sources, asked.folder).await, turn) });
    let looked = looking.await;
    let (taking, turn) =
        looked.map_err(|_| Trouble::new(ErrorKind::Internal, "a task of the backup ended early"))?;
    let taking = taking.inspect_err(|_| handler.sources.metrics.failed())?;
    let (teller, events) = Teller::until(handler.stop.clone(), Trouble::server_stops);
    tokio::spawn(async move {
        let end = match taking.finish(&teller).await {
            Ok(summary) => Event::Done(summary),
            Err(error) => Event::failed(&error),
        };
        // Whoever hears of the end may ask for the next one.
        drop(turn);
        teller.say(end).await;
    });
    Ok(events)
}

/// An event a line, up to the end of the backup or of the server.
fn lines(
    events: mpsc::Receiver<Event>,
    stop: Stop,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    stream::unfold(Some((events, stop)), |state| async move {
        let (mut events, stop) = state?;
        let event = tokio::select! {
            event = events.recv() => event?,
            () = stop.clone().requested() => {
                return Some((Ok(line(&Event::failed(&Trouble::server_stops()))), None));
            }
        };
        Some((Ok(line(&event)), Some((events, stop))))
    })
}

fn line(event: &Event) -> Bytes {
    let mut line =
        serde_json::to_vec(event).expect("an event can be written as JSON: its paths were read from JSON");
    line.push(b'\n');
    line.into()
}

fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid | ErrorKind::NotFound => StatusCode::BAD_REQUEST,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Corrupt | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use restante_core::{ManualClock, Timestamp};
    use tokio::sync::watch;

    use super::*;
    use crate::backup::{BackupMetrics, Removing, Role};

    /// A server that keeps nothing.
    fn handler() -> (watch::Sender<bool>, RequestHandler) {
        let sources = Sources {
            roles: Vec::new(),
            files: Vec::new(),
            settings: String::new(),
            data: "/nowhere".into(),
            places: Vec::new(),
            clock: Arc::new(ManualClock::new(Timestamp(0))),
            removing: Removing::default(),
            metrics: BackupMetrics::default(),
        };
        let (tell, told) = watch::channel(false);
        (tell, RequestHandler { sources: Arc::new(sources), stop: Stop::of(told), turn: Turn::default() })
    }

    async fn told(lines: impl Stream<Item = Result<Bytes, Infallible>>) -> Vec<Event> {
        let lines: Vec<_> = lines.collect().await;
        lines.into_iter().map(|line| serde_json::from_slice(&line.unwrap()).unwrap()).collect()
    }

    #[tokio::test]
    async fn there_is_one_backup_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let asked = Asked { folder: folder.path().join("copy"), data: None };
        let asked = serde_json::to_vec(&asked).unwrap();
        let (_tell, handler) = handler();
        let other = handler.turn.take().unwrap();
        let error = begin(&handler, &asked).await.unwrap_err();
        assert_eq!((error.kind(), status(error.kind())), (ErrorKind::Conflict, StatusCode::CONFLICT));
        drop(other);
        let events = told(lines(begin(&handler, &asked).await.unwrap(), handler.stop.clone())).await;
        assert!(matches!(events.last(), Some(Event::Done(summary)) if summary.files == 1), "{events:?}");
        let again = begin(&handler, &asked).await.unwrap_err();
        assert!(again.to_string().contains("is not empty"), "it is the next one's turn: {again}");
        assert_eq!(handler.sources.metrics.counts(), [1, 1], "one was taken, and one could not be");
    }

    #[tokio::test]
    async fn a_server_that_stops_says_so() {
        let (tell, handler) = handler();
        let (teller, events) = Teller::new();
        tell.send(true).unwrap();
        let events = told(lines(events, handler.stop)).await;
        let [Event::Failed { kind, error }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((kind.as_str(), error.starts_with("the server is stopping")), ("unavailable", true));
        assert!(teller.check_heard().is_err(), "and the backup ends");
    }

    #[tokio::test]
    async fn the_end_of_a_server_is_the_end_of_its_backup() {
        let folder = tempfile::tempdir().unwrap();
        let (tell, handler) = handler();
        let removing = handler.sources.removing.clone();
        let sweeping = removing.lock().await;
        let asked = Asked { folder: folder.path().join("copy"), data: None };
        let mut events = begin(&handler, &serde_json::to_vec(&asked).unwrap()).await.unwrap();
        // It tells that it waits for the sweeper. Then it is heard no more, and nobody goes away.
        while !matches!(events.recv().await, Some(Event::Copying { role: Role::Files, .. })) {}
        handler.turn.take().unwrap_err();
        tell.send(true).unwrap();
        handler.turn.end(Duration::from_secs(60)).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing of it is left");
        let error = handler.turn.take().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "none begins any more: {error}");
        drop(sweeping);
    }

    #[tokio::test]
    async fn what_is_not_understood_is_refused() {
        let (_tell, handler) = handler();
        for body in ["", "{}", "[]", "{\"folder\": 1}", "{\"folder\": \"/x\", \"more\": 1}"] {
            let error = begin(&handler, body.as_bytes()).await.unwrap_err();
            assert!(error.to_string().starts_with("expected {\"folder\""), "{body}: {error}");
        }
    }
}
