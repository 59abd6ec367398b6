//! State changes as an event stream (RFC 8620 §7.3).

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, Uri},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use restante_directory::Login;
use restante_http::{Refusal, event_stream, path};
use restante_records::AccountId;
use tokio::time::{Instant, sleep_until};

use super::{App, Failure, HttpRequest, login};
use crate::{
    connections::{ConnectionKind, OpenConnection},
    core::{Members, Object},
    push::{Subscription, Types, Visible},
};

/// The bounds for the seconds between pings (RFC 8620 §7.3).
const PING_SECONDS_MIN: u64 = 30;
const PING_SECONDS_MAX: u64 = 300;
/// A stream without pings gets a comment this often, so that it ends when its client is gone.
const COMMENT_INTERVAL: Duration = Duration::from_secs(PING_SECONDS_MAX);
/// The most bytes of a list of types.
const TYPES_BYTES_MAX: usize = 1_024;

/// `GET` of the stream.
pub(super) async fn events(State(app): State<Arc<App>>, request: HttpRequest) -> Response {
    let (head, _) = request.into_parts();
    let asked = login(&head.extensions)
        .and_then(|login| Asked::read(&head.uri, &head.headers).map(|asked| (login, asked)));
    let answer = async {
        let (login, asked) = asked?;
        let open = app.open_connection(ConnectionKind::EventStream, &login)?;
        let subscription = app.pusher.subscribe(&visible_accounts(&login)).await?;
        Ok::<_, Failure>(Events::new(subscription, asked, open))
    };
    match answer.await {
        Ok(events) => {
            let events = stream::unfold(Some(Box::new(events)), Events::step);
            event_stream::response(events.take_until(Box::pin(app.closed())))
        }
        Err(failure) => failure.into_response(),
    }
}

/// The accounts that a log-in may use, its own first.
pub(crate) fn visible_accounts(login: &Login) -> Vec<AccountId> {
    let granted = login.grants.iter().map(|grant| grant.owner);
    std::iter::once(login.account).chain(granted).collect()
}

/// What a client requests.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    types: Types,
    is_closed_after_state: bool,
    ping: Option<Duration>,
    /// What the client had received before it lost the stream.
    seen: Option<Visible>,
}

impl Asked {
    fn read(uri: &Uri, headers: &HeaderMap) -> Result<Self, Refusal> {
        let (mut types, mut close_after, mut ping) = (None, None, None);
        for parameter in uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty())
        {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let value = path::decode_form(value, name)?;
            let read = match name {
                "types" => path::set_once(&mut types, read_types(&value)?),
                "closeafter" => path::set_once(&mut close_after, read_close_after(&value)?),
                "ping" => path::set_once(&mut ping, read_ping(&value)?),
                _ => Ok(()), // some clients add a number to bypass caches
            };
            read.map_err(|problem| Refusal::field(name, problem))?;
        }
        let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok());
        Ok(Self {
            types: types.ok_or_else(|| Refusal::field("types", "is missing: use * for all"))?,
            is_closed_after_state: close_after.ok_or_else(|| Refusal::field("closeafter", "is missing"))?,
            ping: ping.ok_or_else(|| Refusal::field("ping", "is missing: use 0 for none"))?,
            seen: seen.map(Visible::of_id),
        })
    }
}

fn read_types(text: &str) -> Result<Types, Refusal> {
    if text == "*" {
        return Ok(Types::ALL);
    }
    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if text.len() > TYPES_BYTES_MAX || !text.split(',').all(is_name) {
        return Err(Refusal::field("types", "expected * or names of types with commas between"));
    }
    Ok(Types::of(text.split(',')))
}

fn read_close_after(text: &str) -> Result<bool, Refusal> {
    match text {
        "state" => Ok(true),
        "no" => Ok(false),
        _ => Err(Refusal::field("closeafter", "expected state or no")),
    }
}

fn read_ping(text: &str) -> Result<Option<Duration>, Refusal> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let wrong = || Refusal::field("ping", "expected a number of seconds, or 0");
    match text.parse::<u64>() {
        Ok(0) if is_number => Ok(None),
        Ok(seconds) if is_number => {
            Ok(Some(Duration::from_secs(seconds.clamp(PING_SECONDS_MIN, PING_SECONDS_MAX))))
        }
        _ => Err(wrong()),
    }
}

/// A stream that is being sent.
struct Events {
    subscription: Subscription,
    asked: Asked,
    seen: Visible,
    next_ping: Instant,
    _open: OpenConnection,
}

impl Events {
    fn new(mut subscription: Subscription, mut asked: Asked, open: OpenConnection) -> Self {
        let newest = subscription.newest();
        // A client that reconnects with another state than the current one gets the current state at once.
        let seen = asked.seen.take().unwrap_or(newest);
        let next_ping = Instant::now() + asked.ping.unwrap_or(COMMENT_INTERVAL);
        Self { subscription, asked, seen, next_ping, _open: open }
    }

    /// The next piece of the stream.
    fn step(events: Option<Box<Self>>) -> BoxFuture<'static, Option<(Bytes, Option<Box<Self>>)>> {
        async move {
            let mut events = events?;
            let (piece, is_state) = events.next().await;
            let goes_on = !(is_state && events.asked.is_closed_after_state);
            Some((piece, goes_on.then_some(events)))
        }
        .boxed()
    }

    /// Waits for the next event; returns whether it is a state.
    async fn next(&mut self) -> (Bytes, bool) {
        loop {
            let newest = self.subscription.newest();
            if newest.differs(&self.seen, self.asked.types) {
                return (self.state(newest), true);
            }
            tokio::select! {
                () = self.subscription.changed() => {}
                () = sleep_until(self.next_ping) => return (self.ping(), false),
            }
        }
    }

    fn state(&mut self, newest: Visible) -> Bytes {
        let (mut data, mut out) = (Vec::new(), Vec::new());
        newest.write_change(&self.seen, self.asked.types, &mut Object::open(&mut data));
        event_stream::write_event("state", Some(newest.id().as_bytes()), &data, &mut out);
        self.seen = newest;
        self.restart_ping();
        out.into()
    }

    fn ping(&mut self) -> Bytes {
        let mut out = Vec::new();
        match self.asked.ping {
            None => event_stream::write_comment(None, &mut out),
            Some(interval) => {
                let mut data = Vec::new();
                Object::open(&mut data).field("interval", &interval.as_secs());
                event_stream::write_event("ping", None, &data, &mut out);
            }
        }
        self.restart_ping();
        out.into()
    }

    fn restart_ping(&mut self) {
        self.next_ping = Instant::now() + self.asked.ping.unwrap_or(COMMENT_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(query: &str) -> Result<Asked, String> {
        let uri: Uri = format!("/jmap/events?{query}").parse().unwrap();
        Asked::read(&uri, &HeaderMap::new()).map_err(|refusal| refusal.text.into_owned())
    }

    #[test]
    fn p2_the_ping_is_clamped_and_0_is_none() {
        let ping = |seconds: &str| asked(&format!("types=*&closeafter=no&ping={seconds}")).unwrap().ping;
        assert_eq!(ping("0"), None);
        for (seconds, expected) in [("1", 30), ("30", 30), ("60", 60), ("300", 300), ("86400", 300)] {
            assert_eq!(ping(seconds), Some(Duration::from_secs(expected)), "{seconds}");
        }
    }

    #[test]
    fn p2_bad_values_are_refused() {
        let read = asked("types=Email,Mailbox&closeafter=state&ping=0").unwrap();
        assert_eq!((read.types, read.is_closed_after_state), (Types::of(["Email", "Mailbox"]), true));
        assert!(asked("types=%2A&closeafter=no&ping=0&_=123").is_ok());
        for wrong in [
            "",
            "types=*",
            "types=*&closeafter=no",
            "types=&closeafter=no&ping=0",
            "types=a,,b&closeafter=no&ping=0",
            "types=*&closeafter=yes&ping=0",
            "types=*&closeafter=no&ping=-1",
            "types=*&closeafter=no&ping=+1",
            "types=*&closeafter=no&ping=x",
            "types=*&closeafter=no&ping=",
            "types=*&types=*&closeafter=no&ping=0",
            "types=*&closeafter=no&ping=99999999999999999999",
        ] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }
}
