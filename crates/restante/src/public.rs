//! The listener for the users of mail: its address, and its bounds.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use restante_http::{ServerLimits, Sites};
use restante_net::Limits;
use restante_operate::{Door, Listener, Offer, PublicConfig};
use tokio::net::TcpListener;
use tracing::{info, warn};

/// Binds the sockets of the public listener if a door has routes on it.
///
/// # Errors
/// When a port is in use.
pub(crate) async fn bind(
    config: &PublicConfig,
    doors: &[Arc<dyn Door>],
) -> anyhow::Result<Vec<(Listener, TcpListener)>> {
    let is_used = doors.iter().any(|door| !door.routes(Listener::Public, Offer::default()).is_empty());
    let mut sockets = Vec::new();
    for address in config.listen.iter().filter(|_| is_used) {
        let socket = TcpListener::bind(address).await.with_context(|| {
            format!(
                "can't listen on {address}: stop the program that holds the port, or choose another with --jmap-listen"
            )
        })?;
        sockets.push((Listener::Public, socket));
    }
    Ok(sockets)
}

/// The limits for its connections.
pub(crate) fn limits(config: &PublicConfig, stop_timeout: Duration) -> Limits {
    Limits {
        connections_max: config.connections_max.get(),
        connections_per_address_max: config.connections_per_address_max.get(),
        stall_timeout: Duration::from_millis(config.stall_timeout_ms.get()),
        handshake_timeout: Duration::from_millis(config.header_timeout_ms.get()),
        stop_timeout,
    }
}

/// The limits for its requests.
pub(crate) fn server_limits(config: &PublicConfig) -> ServerLimits {
    ServerLimits {
        header_timeout: Duration::from_millis(config.header_timeout_ms.get()),
        stall_timeout: Duration::from_millis(config.stall_timeout_ms.get()),
        requests_max: config.connections_max.get(),
        requests_per_address_max: config.connections_per_address_max.get(),
    }
}

/// Which pages may use it. Any host name is accepted in requests: what needs protection there requires credentials anyway.
pub(crate) fn sites(config: &PublicConfig) -> Sites {
    let origins = config.origins.iter().map(ToString::to_string).collect();
    Sites { hosts: vec!["*".to_owned()], origins, is_public: true, ..Sites::default() }
}

/// Logs the address, and warns when passwords would be sent over a network without encryption.
pub(crate) fn announce(config: &PublicConfig, address: SocketAddr, is_on_stdout: bool) {
    if !is_on_stdout {
        info!(url = config.url(address), %address, "users of mail are served");
    }
    if !address.ip().is_loopback() && !config.tls {
        let advice = "set public.tls, or listen on loopback behind a proxy that speaks TLS";
        warn!(%address, advice, "passwords of users cross the network unencrypted");
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use axum::{
        body::Body,
        http::{Request, StatusCode, header},
    };
    use http_body_util::BodyExt;
    use prometheus_client::registry::Registry;
    use restante_http::{Front, HttpMetrics, MemoryBudget, RefusalFormat, Route};
    use restante_operate::{ComponentHealth, Facts};
    use tower::ServiceExt;

    use super::*;

    /// A door that has a route on one listener.
    struct OneRoute(Listener);

    #[async_trait]
    impl Door for OneRoute {
        fn name(&self) -> &'static str {
            "OneRoute"
        }

        async fn health(&self) -> Vec<ComponentHealth> {
            Vec::new()
        }

        fn facts(&self, _metrics: &str) -> Facts {
            Facts::default()
        }

        fn register(&self, _registry: &mut Registry) {}

        fn routes(&self, listener: Listener, _offer: Offer) -> Vec<Route> {
            let route = Route::get("/mail", "a test", async || "served");
            if listener == self.0 { vec![route] } else { Vec::new() }
        }

        async fn close(&self) {}
    }

    /// Regression test: no setting allowed pages of other sites.
    #[tokio::test]
    async fn h7_pages_of_the_origins_in_the_settings_may_use_it_and_others_learn_which_setting_allows_them() {
        let origins = vec!["https://webmail.example".parse().unwrap()];
        let config = PublicConfig { origins, ..PublicConfig::default() };
        let front = Front {
            metrics: HttpMetrics::default().of("public"),
            memory: Arc::<MemoryBudget>::default(),
            operators: Arc::default(),
            accounts: None,
            sites: sites(&config),
            format: RefusalFormat::Text,
        };
        let router = front.router(OneRoute(Listener::Public).routes(Listener::Public, Offer::default()));
        let ask = async |method: &str, origin: &str| {
            let request = Request::builder().method(method).uri("/mail").header(header::ORIGIN, origin);
            let request = request.header(header::ACCESS_CONTROL_REQUEST_METHOD, "GET");
            let request = request.header(header::HOST, "mail.example.org");
            let (head, body) =
                router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().into_parts();
            let allowed = head.headers.get(header::ACCESS_CONTROL_ALLOW_ORIGIN).cloned();
            let text = body.collect().await.unwrap().to_bytes();
            (head.status, allowed, String::from_utf8_lossy(&text).into_owned())
        };
        for (method, expected) in [("GET", StatusCode::OK), ("OPTIONS", StatusCode::NO_CONTENT)] {
            let (status, allowed, text) = ask(method, "https://webmail.example").await;
            assert_eq!(
                (status, allowed.unwrap()),
                (expected, "https://webmail.example".parse().unwrap()),
                "{text}"
            );
            let (status, allowed, text) = ask(method, "https://other.example").await;
            assert_eq!((status, allowed), (StatusCode::FORBIDDEN, None));
            assert!(text.contains("public.origins") && !text.contains("rest."), "{text}");
        }
    }

    #[tokio::test]
    async fn it_is_open_while_a_door_has_routes_there() {
        let free = "127.0.0.1:0".parse().unwrap();
        let config = PublicConfig { listen: vec![free, free], ..PublicConfig::default() };
        let door = |listener| -> Arc<dyn Door> { Arc::new(OneRoute(listener)) };
        assert!(bind(&config, &[]).await.unwrap().is_empty());
        let elsewhere = [door(Listener::Rest), door(Listener::Operate)];
        assert!(bind(&config, &elsewhere).await.unwrap().is_empty());
        let open = bind(&config, &[door(Listener::Rest), door(Listener::Public)]).await.unwrap();
        assert_eq!(open.len(), 2);
        let taken = open[0].1.local_addr().unwrap();
        let config = PublicConfig { listen: vec![taken], ..PublicConfig::default() };
        let error = format!("{:#}", bind(&config, &[door(Listener::Public)]).await.unwrap_err());
        assert!(error.starts_with(&format!("can't listen on {taken}: stop the program")), "{error}");
        assert!(bind(&config, &[]).await.unwrap().is_empty(), "what is not used is not taken");
    }
}
