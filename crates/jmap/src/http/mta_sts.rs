//! `https://mta-sts.DOMAIN/.well-known/mta-sts.txt`: the policy by which other servers use TLS for mail to a domain (RFC 8461 §3.3).

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use restante_directory::Domain;
use restante_http::Refusal;
use tracing::warn;

use super::App;

pub(super) const PATH: &str = "/.well-known/mta-sts.txt";
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Returns the policy for each domain of this server, selected by the host that the request names.
pub(super) async fn policy(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    let Some(policy) = app.parts.mta_sts_policy.clone() else { return unknown().into_response() };
    let Some(domain) = domain_of(&uri, &headers) else { return unknown().into_response() };
    match app.parts.directory.domain(&domain).await {
        Ok(Some(_)) => ([(header::CONTENT_TYPE, TEXT)], policy).into_response(),
        Ok(None) => unknown().into_response(),
        Err(error) => {
            warn!(%error, "an MTA-STS policy was not served");
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the directory does not answer now: try again")
                .into_response()
        }
    }
}

/// The domain after `mta-sts.` in the host that a request names: in its target for HTTP/2, else in `Host`.
fn domain_of(uri: &Uri, headers: &HeaderMap) -> Option<Domain> {
    let of_header = || headers.get(header::HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = uri.authority().cloned().or_else(of_header)?;
    let host = authority.host().to_ascii_lowercase();
    host.strip_suffix('.').unwrap_or(&host).strip_prefix("mta-sts.")?.parse().ok()
}

fn unknown() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is no MTA-STS policy for this host")
}
