//! What each listener serves, with doors of the test.

use async_trait::async_trait;
use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use prometheus_client::registry::Registry;
use restante_core::SystemClock;
use restante_http::{Front, HttpMetrics, OperatorGuard, RefusalFormat, Sites};
use restante_sessions::{Config, EngineUrl, hub::HubConfig};
use tower::ServiceExt;

use super::*;
use crate::{Facts, Status};

/// A door with one route on one listener.
struct OneRoute {
    listener: Listener,
    path: &'static str,
    problem: Option<&'static str>,
}

#[async_trait]
impl Door for OneRoute {
    fn name(&self) -> &'static str {
        "OneRoute"
    }

    async fn health(&self) -> Vec<ComponentHealth> {
        let status = if self.problem.is_none() { Status::Ready } else { Status::NotReady };
        let description = self.problem.map(str::to_owned);
        vec![ComponentHealth { name: self.path, status, description, is_vital: true }]
    }

    fn facts(&self, _metrics: &str) -> Facts {
        Facts::default()
    }

    fn register(&self, _registry: &mut Registry) {}

    fn routes(&self, listener: Listener, _offer: Offer) -> Vec<Route> {
        let route = Route::get(self.path, "a test", async || "served");
        if listener == self.listener { vec![route] } else { Vec::new() }
    }

    async fn close(&self) {}
}

async fn operate(history: Option<&'static str>, mail: Option<&'static str>) -> Arc<Operate> {
    let live = Live::open(Config::new(EngineUrl::Memory), HubConfig::default()).await.unwrap();
    let records = RoleCheck { name: "Records", problem: Arc::new(|| Some("no disk".to_owned())) };
    Operate::new(Parts {
        doors: vec![
            Arc::new(OneRoute { listener: Listener::Rest, path: "/history", problem: history }),
            Arc::new(OneRoute { listener: Listener::Public, path: "/mail", problem: mail }),
        ],
        roles: vec![records],
        archive: None,
        live,
        addresses: Vec::new(),
        routes: Vec::new(),
        metrics_text: Arc::new(|| "# EOF\n".to_owned()),
        facts: Vec::new(),
        set_log_level: None,
        version: "1.2.3",
        clock: Arc::new(SystemClock),
        memory: Arc::default(),
        permits: Permits::new(1),
        request_timeout: Duration::from_secs(60),
    })
}

fn router(operate: &Arc<Operate>, listener: Listener) -> Router {
    let front = Front {
        metrics: HttpMetrics::default().of(listener.as_str()),
        memory: operate.parts.memory.clone(),
        operators: Arc::new(OperatorGuard::new(None, "127.0.0.1:1".parse().unwrap())),
        accounts: None,
        sites: Sites::default(),
        format: RefusalFormat::Text,
    };
    let offer = Offer { admin: listener == Listener::Operate, console: false };
    front.router(operate.routes(listener, offer))
}

async fn get(router: &Router, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn health_of_a_listener_is_that_of_what_it_serves() {
    const WELL: StatusCode = StatusCode::OK;
    const UNWELL: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
    for (history, mail, expected) in [
        (None, None, [WELL, WELL, WELL]),
        (Some("its archive is away"), None, [UNWELL, WELL, UNWELL]),
        (None, Some("its records are away"), [WELL, UNWELL, UNWELL]),
    ] {
        let operate = operate(history, mail).await;
        let listeners = [Listener::Rest, Listener::Public, Listener::Operate];
        for (listener, expected) in listeners.into_iter().zip(expected) {
            let (status, text) = get(&router(&operate, listener), "/health").await;
            assert_eq!(status, expected, "{listener:?}: {text}");
            assert_eq!(text.contains("/mail"), listener != Listener::Rest, "{listener:?}: {text}");
            assert_eq!(text.contains("/history"), listener != Listener::Public, "{listener:?}: {text}");
        }
    }
}

#[tokio::test]
async fn the_public_learns_no_internals() {
    let operate = operate(None, Some("can't read /var/lib/restante")).await;
    let public = router(&operate, Listener::Public);
    assert_eq!(get(&public, "/mail").await, (StatusCode::OK, "served".to_owned()));
    for path in ["/metrics", "/history", "/console", "/admin/v1/sessions"] {
        assert_eq!(get(&public, path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/health", "/"] {
        let (_, text) = get(&public, path).await;
        for internal in ["/var/lib", "no disk", "Records", "Sessions", "1.2.3", "metrics"] {
            assert!(!text.contains(internal), "{path}: {text}");
        }
    }
    let (_, text) = get(&router(&operate, Listener::Operate), "/health").await;
    assert!(text.contains("can't read /var/lib/restante") && text.contains("no disk"), "{text}");
}
