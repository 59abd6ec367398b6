//! Server-sent events (HTML standard, section 9.2).

use std::convert::Infallible;

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use crate::reply;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
/// nginx forwards an answer at once if this header of the answer says so, and otherwise when its buffer is full.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const NO: HeaderValue = HeaderValue::from_static("no");

/// The response that sends a stream of events, each written by the functions below.
pub fn response(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = reply::with_type(EVENT_STREAM, Body::from_stream(events.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    headers.insert(X_ACCEL_BUFFERING, NO);
    response
}

/// Writes an event. A reader that reconnects sends the last `id` that it has seen, if there was one; neither it nor `event` may
/// contain a line break. Data may have several lines.
pub fn write_event(event: &str, id: Option<&[u8]>, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    out.push(b'\n');
    write_id(id, out);
    for line in data.split(|byte| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// Writes a comment, which readers skip and which keeps proxies from closing a silent stream. Browsers remember the `id` that is
/// sent with it.
pub fn write_comment(id: Option<&[u8]>, out: &mut Vec<u8>) {
    out.extend_from_slice(b":\n");
    write_id(id, out);
    out.push(b'\n');
}

fn write_id(id: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(id) = id else { return };
    out.extend_from_slice(b"id: ");
    out.extend_from_slice(id);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_data_has_its_field() {
        let mut out = Vec::new();
        write_event("state", Some(b"7"), b"{\n}", &mut out);
        write_event("end", None, b"", &mut out);
        write_comment(Some(b"8"), &mut out);
        let expected = "event: state\nid: 7\ndata: {\ndata: }\n\nevent: end\ndata: \n\n:\nid: 8\n\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
