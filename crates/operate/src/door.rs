//! What a door reports to the server.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_http::Route;
use serde_json::{Map, Value};

use crate::ComponentHealth;

/// A listener that speaks HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// nwaku's REST interface.
    Rest,
    /// For operators: console, administration, metrics, health.
    Operate,
    /// For the users of mail.
    Public,
}

impl Listener {
    /// The value of the label `listener` of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Operate => "operate",
            Self::Public => "public",
        }
    }

    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rest => "REST",
            Self::Operate => "Operators",
            Self::Public => "Public",
        }
    }
}

/// What a listener has for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Routes below `/admin`.
    pub admin: bool,
    /// The console page.
    pub console: bool,
}

/// What the console shows of a door.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Rows of the table of doors: objects with `name`, `isOn` and, where there are some, `addresses`.
    pub services: Vec<Value>,
    /// Its own fields in the state of the server, for its own plots and tables.
    pub fields: Map<String, Value>,
    /// What an operator should know first.
    pub problems: Vec<String>,
}

/// Computes what the console shows of roles, from the text of `GET /metrics`. Runs where [`Door::facts`] runs.
pub type ShowFacts = Arc<dyn Fn(&str) -> Facts + Send + Sync>;

/// A protocol towards the outside. The binary starts each door that is enabled and holds them in a list.
#[async_trait]
pub trait Door: Send + Sync {
    /// Its name for people.
    fn name(&self) -> &'static str;

    /// Whether it works: its own components and the roles that it needs. Called for each `GET /health`.
    async fn health(&self) -> Vec<ComponentHealth>;

    /// What the console shows. `metrics` is the text of `GET /metrics`. Runs on the blocking pool, at most every half second.
    fn facts(&self, metrics: &str) -> Facts;

    /// Registers its metrics in the registry of the server.
    fn register(&self, registry: &mut Registry);

    /// Its routes on a listener; none if it has nothing to serve there.
    fn routes(&self, listener: Listener, offer: Offer) -> Vec<Route>;

    /// The server has been asked to stop: connections of the door's own listeners that have no work are closed now, and others
    /// within their stop timeout. Requests of the shared listeners are still served until [`Door::close`].
    fn stop(&self) {}

    /// Ends its connections and waits for work that was accepted.
    async fn close(&self);
}
