//! A proxy to Redis, which can close the connections of one node or make Redis hang for it.

use restante_fault_proxy::Direction;

pub(crate) struct Proxy {
    /// The URL of Redis behind the proxy.
    pub(crate) url: String,
    pub(crate) faults: restante_fault_proxy::Proxy,
}

impl Proxy {
    /// A proxy in front of the Redis at a URL of the form `redis://host:port/database`.
    pub(crate) async fn new(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (behind, database) = rest.split_once('/').unwrap_or((rest, "0"));
        let faults = restante_fault_proxy::Proxy::new(behind).await.unwrap();
        Self { url: format!("{scheme}://{}/{database}", faults.address()), faults }
    }

    /// Ends all faults.
    pub(crate) async fn open(&self) {
        self.faults.heal();
        self.faults.accept().await.unwrap();
    }

    /// Closes all connections and refuses new ones.
    pub(crate) async fn close(&self) {
        self.faults.refuse().await;
        self.faults.cut();
    }

    /// Connections stay open, but nothing is forwarded.
    pub(crate) fn hang(&self) {
        self.faults.silence(Direction::ToServer);
        self.faults.silence(Direction::ToClient);
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.faults.connections()
    }
}
