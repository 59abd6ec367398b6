//! Fetches the file of a policy.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, body::Bytes, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use restante_net::dns::{Answer, Resolver};
use rustls_pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::{
    super::{Network, trust::TrustedTls},
    parse::{self, Policy},
};

/// The longest file (RFC 8461 §3.2 suggests 64 KiB).
const FILE_BYTES_MAX: usize = 64 << 10;
/// Addresses that are tried.
const ADDRESSES_MAX: usize = 4;

/// The policy of a domain from its server, whose certificate is checked; redirections are not followed (RFC 8461 §3.3).
pub(super) async fn policy(
    resolver: &dyn Resolver,
    network: &dyn Network,
    trust: &TrustedTls,
    domain: &str,
) -> Result<Policy, String> {
    let host = format!("mta-sts.{domain}");
    let addresses = match resolver.addresses(&host).await {
        Answer::Found(addresses) => addresses,
        Answer::NoSuchName | Answer::NoRecords => return Err(format!("{host} has no address")),
        Answer::Temporary(why) => return Err(why),
    };
    let config = trust.config().await?;
    let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
    let mut last = format!("{host} has no address");
    for ip in addresses.into_iter().take(ADDRESSES_MAX) {
        let socket = match network.connect(SocketAddr::new(ip, 443)).await {
            Ok(socket) => socket,
            Err(error) => {
                last = error.to_string();
                continue;
            }
        };
        let connecting = TlsConnector::from(config.clone()).connect(name.clone(), socket);
        let stream = connecting.await.map_err(|error| error.to_string())?;
        return file(&host, TokioIo::new(stream)).await;
    }
    Err(last)
}

async fn file<S>(host: &str, stream: S) -> Result<Policy, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
{
    let (mut sender, connection) = http1::handshake(stream).await.map_err(|error| error.to_string())?;
    let request = Request::get("/.well-known/mta-sts.txt")
        .header(header::HOST, host)
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        if response.status() != StatusCode::OK {
            return Err(format!("{host} answers {}", response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), FILE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        let text = std::str::from_utf8(&body).map_err(|error| error.to_string())?;
        parse::policy(text).ok_or_else(|| format!("the file of {host} is no policy"))
    };
    // The connection is driven until there is an answer. It may end first, also with an error when it is closed; only the answer counts.
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        found = &mut exchange => return found,
        _ended = connection => {}
    }
    exchange.await
}
