//! The files of the page.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    response::Response,
};
use sha2::{Digest, Sha256};

use restante_http::{Refusal, path, reply};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

/// The page connects only to this server, runs only its own files, and can't be framed.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
);

/// Browsers and others get different answers at `/`.
pub(crate) const VARY: HeaderValue = HeaderValue::from_static("accept");

/// The headers of every file.
const HEADERS: [(header::HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")), // for browsers that don't know frame-ancestors
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")), // a newer server has newer files: ask, by ETag
    (header::VARY, VARY),
];

/// A file of the page.
struct File {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

/// The files that live in `page/`, each with its type.
macro_rules! files {
    ($($content_type:ident $name:literal),* $(,)?) => {
        &[$(File { name: $name, content_type: $content_type, bytes: include_bytes!(concat!("page/", $name)) }),*]
    };
}

const INDEX: &str = "index.html";
const FILES: &[File] = files![
    HTML "index.html",
    SVG "icon.svg",
    CSS "console.css",
    SCRIPT "console.js",
    SCRIPT "account.js",
    SCRIPT "api.js",
    SCRIPT "deliveries.js",
    SCRIPT "dmarc.js",
    SCRIPT "dom.js",
    SCRIPT "format.js",
    SCRIPT "mail.js",
    SCRIPT "messages.js",
    SCRIPT "outgoing.js",
    SCRIPT "overview.js",
    SCRIPT "plots.js",
    SCRIPT "quarantine.js",
    SCRIPT "queue.js",
    SCRIPT "tail.js",
    SCRIPT "uPlot.iife.min.js",
    CSS "uPlot.min.css",
    TEXT "uPlot.LICENSE",
];

/// The tags with which browsers check whether a file is unchanged, in the order of the files.
static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| FILES.iter().map(tag).collect());

fn tag(file: &File) -> HeaderValue {
    let digest = Sha256::digest(file.bytes);
    let tag = digest.iter().take(8).fold(String::from("\""), |tag, byte| tag + &format!("{byte:02x}")) + "\"";
    HeaderValue::try_from(tag).expect("hex digits in quotes are valid in a header")
}

/// Whether the client is a browser that shows pages to people.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    accepted.flat_map(|accept| accept.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

/// `GET /`, requested by a browser.
pub(crate) fn page(headers: &HeaderMap) -> Response {
    answer(INDEX, headers).unwrap_or_default() // the index is one of the files
}

/// `GET /console`, with or without a trailing slash: the page is one level above. A proxy may serve everything below its own
/// path, so the location is relative.
pub(crate) async fn redirect(uri: Uri) -> Response {
    let above = if uri.path().ends_with('/') { "../" } else { "./" };
    let mut response = Response::default();
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    response.headers_mut().insert(header::LOCATION, HeaderValue::from_static(above));
    response
}

/// `GET /console/{file}`
pub(crate) async fn file(uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    let name = path::last(&uri, "file")?;
    let is_elsewhere = name == INDEX; // it is served at `/`, from where its links lead to the other files
    let answer = if is_elsewhere { None } else { answer(&name, &headers) };
    answer.ok_or(Refusal::not_found("the console has no such file"))
}

fn answer(name: &str, headers: &HeaderMap) -> Option<Response> {
    let (file, tag) = FILES.iter().zip(TAGS.iter()).find(|(file, _)| file.name == name)?;
    let has_same = headers.get(header::IF_NONE_MATCH).is_some_and(|known| names(known, tag));
    let mut response = if has_same {
        let mut unchanged = Response::default();
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else {
        reply::with_type(HeaderValue::from_static(file.content_type), file.bytes)
    };
    response.headers_mut().extend(HEADERS);
    response.headers_mut().insert(header::ETAG, tag.clone());
    Some(response)
}

/// Whether a list of tags contains this one. Proxies that compress make tags weak (RFC 9110 §13.1.2 compares weakly).
fn names(known: &HeaderValue, tag: &HeaderValue) -> bool {
    let known = known.to_str().unwrap_or_default();
    known.split(',').any(|known| known.trim().trim_start_matches("W/").as_bytes() == tag.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Including the points of its plots, the page should load within 200 KB.
    const BYTES_MAX: usize = 165_000;
    /// Files that are loaded when somebody opens mail.
    const LATER: [&str; 7] =
        ["account.js", "deliveries.js", "dmarc.js", "mail.js", "outgoing.js", "quarantine.js", "queue.js"];

    #[test]
    fn the_page_is_small() {
        let at_once = FILES.iter().filter(|file| !LATER.contains(&file.name));
        let bytes: usize = at_once.map(|file| file.bytes.len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes}");
    }

    /// Our own files, as texts.
    fn own() -> Vec<(&'static str, String)> {
        let own = FILES.iter().filter(|file| !file.name.starts_with("uPlot"));
        own.map(|file| (file.name, String::from_utf8(file.bytes.to_vec()).unwrap())).collect()
    }

    #[test]
    fn each_file_that_is_named_is_there_and_each_that_is_there_is_named() {
        let mut named = BTreeSet::from([INDEX.to_owned()]);
        for (_, text) in own() {
            for begin in ["\"console/", "from \"./", "import(\"./"] {
                let names = text.split(begin).skip(1).filter_map(|rest| rest.split('"').next());
                named.extend(names.map(str::to_owned));
            }
        }
        assert_eq!(named, FILES.iter().map(|file| file.name.to_owned()).collect());
    }

    /// It led to `openapi.json`, which only the REST interface has.
    #[test]
    fn without_scripts_the_page_leads_to_what_each_listener_with_a_console_has() {
        let index = String::from_utf8(FILES[0].bytes.to_vec()).unwrap();
        let (_, rest) = index.split_once("<noscript>").unwrap();
        let (noscript, _) = rest.split_once("</noscript>").unwrap();
        let links: Vec<&str> =
            noscript.split("href=\"").skip(1).filter_map(|link| link.split('"').next()).collect();
        assert_eq!(links, ["health", "metrics"]);
    }

    /// Texts of messages are shown only as text; and anything that the policy forbids would not work.
    #[test]
    fn the_page_makes_no_markup_of_texts_and_has_nothing_inline() {
        for (name, text) in own() {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=",
                " onclick",
            ] {
                assert!(!text.contains(word), "{name} has {word}");
            }
            let names_a_server = text.replace("http://www.w3.org/2000/svg", "").contains("://");
            assert!(!names_a_server, "{name} names a server");
        }
    }

    #[test]
    fn tags_are_compared_weakly() {
        let tag = &TAGS[0];
        let list = |text: String| HeaderValue::try_from(text).unwrap();
        let own = tag.to_str().unwrap();
        for known in [own.to_owned(), format!("W/{own}"), format!("\"other\", W/{own}")] {
            assert!(names(&list(known.clone()), tag), "{known}");
        }
        for known in ["", "\"other\"", "*"] {
            assert!(!names(&list(known.to_owned()), tag), "{known}");
        }
    }
}
