//! The transports: TCP and WebSockets, secured by Noise, multiplexed by yamux or mplex.

use std::sync::Arc;

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
use restante_muxers::{Budget, Limits, Mplex, Yamux};
use restante_net::tls::Certificates;

use super::{
    NodeError, NodeLimits,
    close_timeout::CloseTimeout,
    half_open::{Gate, HalfOpen},
    metrics::NodeMetrics,
    secure_websocket::ReloadingWebSocket,
};

/// Streams that a muxer allows beyond the limit of a connection: some are being refused or negotiated.
const STREAMS_SPARE: usize = 64;
/// The longest WebSocket frame: it is buffered as a whole, also before the handshake. Noise's frames have at most 64 KiB, and a
/// client may put several of them into one.
const WEBSOCKET_FRAME_BYTES_MAX: usize = 2 << 20;

/// The transport of a node.
pub(crate) fn build(
    key: &Keypair,
    certificates: Option<Arc<Certificates>>,
    limits: &NodeLimits,
    metrics: &NodeMetrics,
) -> Result<Boxed<(PeerId, StreamMuxerBox)>, NodeError> {
    let config =
        |what: &str, error: &dyn ToString| NodeError::Config(format!("{what}: {}", error.to_string()));
    let tcp = || tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let dns = |tcp| dns::tokio::Transport::system(tcp).map_err(|error| config("can't resolve names", &error));
    let mut websocket = websocket::Config::new(dns(tcp())?);
    websocket.set_max_data_size(WEBSOCKET_FRAME_BYTES_MAX);
    let websocket = ReloadingWebSocket::new(websocket, certificates)?;
    let noise = noise::Config::new(key).map_err(|error| config("the node key can't be used", &error))?;
    // WebSockets come first: TCP would accept their addresses too.
    let transport = websocket
        .or_transport(dns(tcp())?)
        .upgrade(Version::V1)
        .authenticate(noise)
        .multiplex(muxers(limits, metrics))
        .timeout(limits.handshake_timeout)
        .map(|(peer, muxer), _| (peer, StreamMuxerBox::new(CloseTimeout::new(muxer))));
    Ok(Gate::new(transport.boxed(), HalfOpen::new(limits, metrics.clone())).boxed())
}

/// Both muxers are offered: go-waku speaks only yamux and js-waku only mplex.
fn muxers(limits: &NodeLimits, metrics: &NodeMetrics) -> SelectUpgrade<Yamux, Mplex> {
    let streams_max = limits.streams_per_connection_max.get().saturating_add(STREAMS_SPARE);
    let unread = Limits {
        connections_max: limits.connections_max.get() as usize,
        connection_bytes_max: limits.unread_bytes_per_connection_max.get(),
        bytes_max: limits.unread_bytes_max.get(),
        advice: "see waku.limits.unread_bytes_per_connection_max and waku.limits.unread_bytes_max",
    };
    let budget = Budget::new(unread, metrics.muxers.clone());
    SelectUpgrade::new(Yamux::new(budget.clone(), streams_max), Mplex::new(budget, streams_max))
}
