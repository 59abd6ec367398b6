//! How bytes travel: TCP and WebSockets, secured by Noise, with many streams by yamux or mplex.

use std::{fs, io};

use libp2p::{
    PeerId, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::Boxed,
        upgrade::{SelectUpgrade, Version},
    },
    dns,
    identity::Keypair,
    noise, tcp, websocket,
};

use super::{
    NodeError, NodeLimits, TlsFiles,
    half_open::{Gate, HalfOpen},
    hasty::Hasty,
    metrics::NodeMetrics,
    muxers::{Budget, Mplex, Yamux},
};

/// Streams that a muxer keeps beyond those that a connection may have: some are being refused or negotiated.
const STREAMS_SPARE: usize = 64;
/// The longest WebSocket frame: it is buffered as a whole, also before the handshake. Noise's are 64 KiB at most, and a client
/// may put some of them into one.
const WEBSOCKET_FRAME_BYTES_MAX: usize = 2 << 20;

/// The transport of a node.
pub(crate) fn build(
    key: &Keypair,
    tls: Option<&TlsFiles>,
    limits: &NodeLimits,
    metrics: &NodeMetrics,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, NodeError> {
    let config =
        |what: &str, error: &dyn ToString| NodeError::Config(format!("{what}: {}", error.to_string()));
    let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let dns = |tcp| dns::tokio::Transport::system(tcp).map_err(|error| config("can't resolve names", &error));
    let mut websocket = websocket::Config::new(dns(tcp())?);
    websocket.set_max_data_size(WEBSOCKET_FRAME_BYTES_MAX);
    if let Some(files) = tls {
        websocket.set_tls_config(read_tls(files)?);
    }
    let noise = noise::Config::new(key).map_err(|error| config("the node key can't be used", &error))?;
    // WebSockets come first: TCP would take their addresses too.
    let transport = websocket
        .or_transport(dns(tcp())?)
        .upgrade(Version::V1)
        .authenticate(noise)
        .multiplex(muxers(limits, metrics))
        .timeout(limits.handshake_timeout)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(Hasty::new(muxer))));
    Ok(Gate::new(transport.boxed(), HalfOpen::new(limits, metrics.clone())).boxed())
}

/// Both muxers are offered: go-waku speaks only yamux and js-waku only mplex.
fn muxers(limits: &NodeLimits, metrics: &NodeMetrics) -> SelectUpgrade<Yamux, Mplex> {
    let streams_max = limits.streams_per_connection_max.saturating_add(STREAMS_SPARE);
    let budget = Budget::new(limits, metrics.clone());
    SelectUpgrade::new(Yamux::new(budget.clone(), streams_max), Mplex::new(budget, streams_max))
}

impl TlsFiles {
    /// Checks that the files hold a certificate and its key.
    ///
    /// # Errors
    /// Names the file that can't be used.
    pub fn check(&self) -> Result<(), NodeError> {
        read_tls(self).map(|_| ())
    }
}

fn read_tls(files: &TlsFiles) -> Result<websocket::tls::Config, NodeError> {
    let wrong = |path: &std::path::Path, error: &dyn ToString| {
        NodeError::Config(format!("can't use {}: {}", path.display(), error.to_string()))
    };
    let pem = fs::read(&files.certificate).map_err(|error| wrong(&files.certificate, &error))?;
    let certificates = certificates_of(&pem).map_err(|error| wrong(&files.certificate, &error))?;
    let pem = fs::read(&files.key).map_err(|error| wrong(&files.key, &error))?;
    let key = key_of(&pem).map_err(|error| wrong(&files.key, &error))?;
    let certificates = certificates.into_iter().map(websocket::tls::Certificate::new);
    websocket::tls::Config::new(websocket::tls::PrivateKey::new(key), certificates)
        .map_err(|error| wrong(&files.certificate, &error))
}

fn certificates_of(pem: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    use rustls_pki_types::{CertificateDer, pem::PemObject};
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let parsed = parsed.map_err(|error| io::Error::other(format!("no PEM file: {error}")))?;
    if parsed.is_empty() {
        return Err(io::Error::other("it holds no certificate: expected a PEM file"));
    }
    Ok(parsed.into_iter().map(|certificate| certificate.to_vec()).collect())
}

fn key_of(pem: &[u8]) -> io::Result<Vec<u8>> {
    use rustls_pki_types::{PrivateKeyDer, pem::PemObject};
    let parsed = PrivateKeyDer::from_pem_slice(pem);
    let parsed = parsed.map_err(|error| io::Error::other(format!("it holds no private key: {error}")))?;
    Ok(parsed.secret_der().to_vec())
}
