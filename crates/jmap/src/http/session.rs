//! The session object (RFC 8620 §2).

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, Uri, header},
    response::{IntoResponse, Response},
};
use parking_lot::Mutex;
use restante_core::Error;
use restante_directory::{Access, Login};
use restante_http::reply;
use restante_records::AccountId;
use sha2::{Digest, Sha256};

use super::{
    API, App, Failure, HttpRequest, SOCKET,
    base::{base_url, socket_base_url},
    login,
};
use crate::core::{Capability, Members, Object, ids::account_id, write_json};
use crate::methods::{LOOKUP_TYPES, email::query::sort::SORT_OPTIONS};

/// Caches must not keep the session: it depends on the user (RFC 8620 §2).
const NO_STORE: HeaderValue = HeaderValue::from_static("no-cache, no-store, must-revalidate");
/// The collations of a sort (RFC 4790).
const COLLATIONS: [&str; 4] = ["i;ascii-casemap", "i;unicode-casemap", "i;ascii-numeric", "i;octet"];
/// The capabilities without properties of the server that a user's own account has.
const EMPTY: [Capability; 5] = [
    Capability::Mail,
    Capability::Blob,
    Capability::Quota,
    Capability::Submission,
    Capability::VacationResponse,
];
/// The most log-ins whose session state is cached.
const STATES_MAX: usize = 4_096;
/// The bytes of the digest in a session's state.
const STATE_BYTES: usize = 8;

/// `GET /.well-known/jmap`.
pub(super) async fn session(State(app): State<Arc<App>>, request: HttpRequest) -> Response {
    let (uri, headers) = (request.uri(), request.headers());
    match answer(&app, uri, headers, request.extensions()).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    }
}

async fn answer(
    app: &App,
    uri: &Uri,
    headers: &HeaderMap,
    extensions: &axum::http::Extensions,
) -> Result<Response, Failure> {
    let login = login(extensions)?;
    let base = base_url(&app.parts, uri, headers)?;
    let session = write(app, &login, &base).await?;
    let mut response = reply::json(session.json);
    response.headers_mut().insert(header::CACHE_CONTROL, NO_STORE);
    Ok(response)
}

/// A session object, and its state.
struct Session {
    json: Vec<u8>,
    state: String,
}

/// The session states by what they depend on, so that a request need not build the session to get its state.
#[derive(Default)]
pub(super) struct SessionStates(Mutex<HashMap<u64, String>>);

/// The state of the session of a log-in.
pub(super) async fn state(app: &App, login: &Login, base: &str) -> Result<String, Error> {
    // Everything else in the session stays the same while the server runs: addresses and numbers of accounts never change.
    let mut hasher = DefaultHasher::new();
    (login.account, login.address.to_string(), base).hash(&mut hasher);
    for grant in &login.grants {
        (grant.owner, grant.access == Access::Write).hash(&mut hasher);
    }
    let key = hasher.finish();
    if let Some(state) = app.session_states.0.lock().get(&key) {
        return Ok(state.clone());
    }
    let state = write(app, login, base).await?.state;
    let mut states = app.session_states.0.lock();
    if states.len() >= STATES_MAX {
        states.clear();
    }
    states.insert(key, state.clone());
    Ok(state)
}

/// An account in the session.
struct Listed {
    id: String,
    address: String,
    is_personal: bool,
    is_read_only: bool,
}

async fn write(app: &App, login: &Login, base: &str) -> Result<Session, Error> {
    let own = Listed {
        id: account_id(login.account),
        address: login.address.to_string(),
        is_personal: true,
        is_read_only: false,
    };
    let mut accounts = vec![own];
    for grant in &login.grants {
        let Some(address) = app.parts.directory.address_of(grant.owner).await? else { continue };
        accounts.push(Listed {
            id: account_id(grant.owner),
            address: address.to_string(),
            is_personal: false,
            is_read_only: grant.access == Access::Read,
        });
    }
    let key = app.push.application_server_key().await?;
    let mut json = Vec::new();
    let mut session = Object::open(&mut json);
    write_capabilities(app, base, key, &mut session);
    let mut members = session.object("accounts");
    for account in &accounts {
        write_account(app, account, members.object(&account.id));
    }
    drop(members);
    write_primary_accounts(login.account, session.object("primaryAccounts"));
    session.field("username", &login.address.to_string());
    write_urls(base, &mut session);
    drop(session);
    // The state is a hash of everything before it (RFC 8620 §2), so it is the last member.
    let digest = Sha256::digest(&json);
    let state = hex::encode(digest.get(..STATE_BYTES).unwrap_or_default());
    json.pop();
    json.extend_from_slice(b",\"state\":");
    write_json(&state, &mut json);
    json.push(b'}');
    Ok(Session { json, state })
}

fn write_capabilities(app: &App, base: &str, push_key: &str, session: &mut Object<'_>) {
    let config = &app.config;
    let mut capabilities = session.object("capabilities");
    let mut core = capabilities.object(Capability::Core.uri());
    core.field("maxSizeUpload", &config.upload_bytes_max);
    core.field("maxConcurrentUpload", &config.uploads_per_user_max);
    core.field("maxSizeRequest", &config.request_bytes_max);
    core.field("maxConcurrentRequests", &config.requests_per_user_max);
    core.field("maxCallsInRequest", &config.calls_max);
    core.field("maxObjectsInGet", &config.objects_in_get_max);
    core.field("maxObjectsInSet", &config.objects_in_set_max);
    core.field("collationAlgorithms", &COLLATIONS);
    drop(core);
    for capability in EMPTY {
        capabilities.object(capability.uri());
    }
    let mut socket = capabilities.object(Capability::WebSocket.uri());
    socket.field("url", &format!("{}{SOCKET}", socket_base_url(base)));
    socket.field("supportsPush", &true);
    drop(socket);
    // RFC 9749 §3: clients pass it to their push service.
    capabilities.object(Capability::WebPushVapid.uri()).field("applicationServerKey", push_key);
}

fn write_account(app: &App, account: &Listed, mut out: Object<'_>) {
    let (config, limits) = (&app.config, app.parts.mail.config());
    out.field("name", &account.address);
    out.field("isPersonal", &account.is_personal);
    out.field("isReadOnly", &account.is_read_only);
    let mut capabilities = out.object("accountCapabilities");
    capabilities.object(Capability::Core.uri());
    let mut mail = capabilities.object(Capability::Mail.uri());
    mail.field("maxMailboxesPerEmail", &limits.mailboxes_per_email_max);
    mail.field("maxMailboxDepth", &limits.mailbox_depth_max);
    mail.field("maxSizeMailboxName", &limits.mailbox_name_bytes_max);
    mail.field("maxSizeAttachmentsPerEmail", &config.attachments_bytes_max);
    mail.field("emailQuerySortOptions", &SORT_OPTIONS);
    mail.field("mayCreateTopLevelMailbox", &!account.is_read_only);
    drop(mail);
    let mut blob = capabilities.object(Capability::Blob.uri());
    blob.field("maxSizeBlobSet", &config.upload_bytes_max);
    blob.field("maxDataSources", &config.blob_sources_max);
    blob.field("supportedTypeNames", &LOOKUP_TYPES);
    blob.field("supportedDigestAlgorithms", &["sha", "sha-256"]);
    drop(blob);
    capabilities.object(Capability::Quota.uri());
    capabilities.object(Capability::VacationResponse.uri());
    if Capability::Submission.is_of(account.is_personal) {
        write_submission(app, capabilities.object(Capability::Submission.uri()));
    }
}

/// RFC 8621 §1.3.2.
fn write_submission(app: &App, mut out: Object<'_>) {
    let seconds_max = app.config.submission.delay_seconds_max;
    out.field("maxDelayedSend", &seconds_max);
    let mut extensions = out.object("submissionExtensions");
    extensions.field("DSN", &[(); 0]);
    if seconds_max > 0 {
        extensions.field("FUTURERELEASE", &[seconds_max.to_string()]);
    }
}

fn write_primary_accounts(account: AccountId, mut out: Object<'_>) {
    // RFC 8620 §2: none for the core capability.
    for capability in EMPTY {
        out.field(capability.uri(), &account_id(account));
    }
}

fn write_urls(base: &str, session: &mut Object<'_>) {
    session.field("apiUrl", &format!("{base}{API}"));
    let download = "/jmap/download/{accountId}/{blobId}/{name}?type={type}";
    session.field("downloadUrl", &format!("{base}{download}"));
    session.field("uploadUrl", &format!("{base}/jmap/upload/{{accountId}}"));
    let events = "/jmap/events?types={types}&closeafter={closeafter}&ping={ping}";
    session.field("eventSourceUrl", &format!("{base}{events}"));
}
