//! `POST /admin/v1/backup`: how a running server is requested to take a backup.

use std::{convert::Infallible, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use restante_core::{Error, ErrorKind};
use restante_http::{Audience, Route};
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc},
    time::timeout,
};
use tracing::warn;

use super::{
    Event, EventSender, Sources, StopSignal,
    events::{requested, server_stops},
    take::Taking,
};

/// The path of the route.
pub const PATH: &str = "/admin/v1/backup";
const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");

/// The body of the request.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The folder to write to.
    pub folder: PathBuf,
    /// The data folder that the client expects, if it has only guessed that this is its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
}

/// Allows one backup at a time: two would compete for the disk, and copy the same data.
#[derive(Clone, Debug)]
pub struct BackupPermit(Arc<Semaphore>);

impl Default for BackupPermit {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl BackupPermit {
    fn take(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.0.clone().try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => Error::conflict("another backup is under way: try again later"),
            TryAcquireError::Closed => server_stops(),
        })
    }

    /// Waits until a backup that was in progress when the server was asked to stop has removed its copies. No further
    /// backup begins.
    pub async fn end(&self, limit: Duration) {
        if timeout(limit, self.0.acquire()).await.is_err() {
            warn!("a backup did not end in time: the next one to the same place removes what it leaves");
        }
        self.0.close();
    }
}

struct RequestHandler {
    sources: Arc<Sources>,
    stop: StopSignal,
    permit: BackupPermit,
}

/// The route of a server with these sources.
pub fn route(sources: Sources, stop: StopSignal, permit: BackupPermit) -> Route {
    let handler = RequestHandler { sources: Arc::new(sources), stop, permit };
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

/// Begins a backup, which runs in its own task for as long as the client is connected.
async fn begin(handler: &RequestHandler, body: &[u8]) -> Result<mpsc::Receiver<Event>, Error> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| {
        Error::invalid(format!("expected {{\"folder\": \"/an/absolute/path\"}}: {error}"))
    })?;
    handler.sources.check_meant(asked.data.as_deref())?;
    let permit = handler.permit.take()?;
    let sources = handler.sources.clone();
    // In its own task, which holds the permit during the checks and the removal, even if the client disconnects meanwhile.
    let folder = asked.folder.clone();
    let looking = tokio::spawn(async move { (Taking::begin(sources, folder).await, permit) });
    let looked = looking.await;
    let (taking, permit) = looked.map_err(|_| Error::internal("a task of the backup ended early"))?;
    let taking = taking.inspect_err(|error| {
        warn!(%error, folder = %asked.folder.display(), "no backup was taken");
        handler.sources.metrics.failed();
    })?;
    let (sender, events) = EventSender::until(handler.stop.clone(), server_stops);
    tokio::spawn(async move {
        let end = match taking.finish(&sender).await {
            Ok(summary) => Event::Done(summary),
            Err(error) => Event::failed(&error),
        };
        // A client may request the next backup as soon as it receives the end of this one.
        drop(permit);
        sender.say(end).await;
    });
    Ok(events)
}

/// One event per line, up to the end of the backup or of the server.
fn lines(
    events: mpsc::Receiver<Event>,
    stop: StopSignal,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    stream::unfold(Some((events, stop)), |state| async move {
        let (mut events, stop) = state?;
        let event = tokio::select! {
            event = events.recv() => event?,
            () = requested(stop.clone()) => {
                return Some((Ok(line(&Event::failed(&server_stops()))), None));
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
    use std::path::Path;

    use futures_util::StreamExt;
    use restante_core::{ManualClock, Timestamp};
    use tokio::sync::watch;

    use super::*;
    use crate::{Layout, Removing, Role};

    /// A server that stores nothing.
    fn handler() -> (watch::Sender<bool>, RequestHandler) {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let layout = Layout::new(Path::new("/nowhere"));
        let sources = Sources::new(layout, String::new(), clock, Removing::default());
        let (stop_sender, stop) = watch::channel(false);
        (stop_sender, RequestHandler { sources: Arc::new(sources), stop, permit: BackupPermit::default() })
    }

    async fn read_events(lines: impl Stream<Item = Result<Bytes, Infallible>>) -> Vec<Event> {
        let lines: Vec<_> = lines.collect().await;
        lines.into_iter().map(|line| serde_json::from_slice(&line.unwrap()).unwrap()).collect()
    }

    #[tokio::test]
    async fn there_is_one_backup_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let asked = Asked { folder: folder.path().join("copy"), data: None };
        let asked = serde_json::to_vec(&asked).unwrap();
        let (_stop_sender, handler) = handler();
        let other = handler.permit.take().unwrap();
        let error = begin(&handler, &asked).await.unwrap_err();
        assert_eq!((error.kind(), status(error.kind())), (ErrorKind::Conflict, StatusCode::CONFLICT));
        drop(other);
        let events = read_events(lines(begin(&handler, &asked).await.unwrap(), handler.stop.clone())).await;
        assert!(matches!(events.last(), Some(Event::Done(summary)) if summary.files == 1), "{events:?}");
        let again = begin(&handler, &asked).await.unwrap_err();
        assert!(again.to_string().contains("is not empty"), "the permit is free again: {again}");
        assert_eq!(handler.sources.metrics.counts(), [1, 1], "one was taken, and one could not be");
    }

    #[tokio::test]
    async fn a_server_that_stops_says_so() {
        let (stop_sender, handler) = handler();
        let (sender, events) = EventSender::new();
        stop_sender.send(true).unwrap();
        let events = read_events(lines(events, handler.stop)).await;
        let [Event::Failed { kind, error }] = &events[..] else { panic!("{events:?}") };
        assert_eq!((kind.as_str(), error.starts_with("the server is stopping")), ("unavailable", true));
        assert!(sender.check_heard().is_err(), "and the backup ends");
    }

    #[tokio::test]
    async fn the_end_of_a_server_is_the_end_of_its_backup() {
        let folder = tempfile::tempdir().unwrap();
        let (stop_sender, handler) = handler();
        let removing = handler.sources.removing.clone();
        let sweeping = removing.lock().await;
        let asked = Asked { folder: folder.path().join("copy"), data: None };
        let mut events = begin(&handler, &serde_json::to_vec(&asked).unwrap()).await.unwrap();
        // It reports that it waits for the sweeper. After this event the test reads no more, and the client stays connected.
        while !matches!(events.recv().await, Some(Event::Copying { role: Role::Files, .. })) {}
        handler.permit.take().unwrap_err();
        stop_sender.send(true).unwrap();
        handler.permit.end(Duration::from_secs(60)).await;
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing of it is left");
        let error = handler.permit.take().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "none begins any more: {error}");
        drop(sweeping);
    }

    #[tokio::test]
    async fn what_is_not_understood_is_refused() {
        let (_stop_sender, handler) = handler();
        for body in ["", "{}", "[]", "{\"folder\": 1}", "{\"folder\": \"/x\", \"more\": 1}"] {
            let error = begin(&handler, body.as_bytes()).await.unwrap_err();
            assert!(error.to_string().starts_with("expected {\"folder\""), "{body}: {error}");
        }
    }
}
