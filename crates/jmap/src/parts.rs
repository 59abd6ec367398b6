//! The dependencies of the door.

use std::sync::Arc;

use restante_directory::Directory;
use restante_http::MemoryBudget;
use restante_mail::{Mail, sending::SendingLimits};
use restante_operate::RoleCheck;
use restante_search::Search;

use crate::{JmapMetrics, OpenConnections};

/// The stores of the door, and what it shares with the rest of the server.
pub struct JmapParts {
    /// Mail, with its records, its blobs and its clock.
    pub mail: Mail,
    /// Searches texts; without it, filters on texts are refused as unsupported.
    pub search: Option<Arc<dyn Search>>,
    /// The log-ins, and which accounts they may use.
    pub directory: Directory,
    /// Checks whether the stores work.
    pub stores: Vec<RoleCheck>,
    /// How much an account may send; `None` for no limit.
    pub sending: Option<SendingLimits>,
    /// The memory of requests, decoded parts and unread answers.
    pub memory: Arc<MemoryBudget>,
    /// Metrics.
    pub metrics: JmapMetrics,
    /// The open streams and sockets of users.
    pub connections: OpenConnections,
    /// The URL by which clients reach the listener, such as `https://mail.example.org`; `None` to take the host that each request names.
    pub public_url: Option<String>,
    /// Whether the listener speaks HTTPS.
    pub is_tls: bool,
    /// The MTA-STS policy of the domains of this server; `None` to serve none.
    pub mta_sts_policy: Option<String>,
}
