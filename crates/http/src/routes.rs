//! Routes, and the router of a listener: the layers in front of each route's handlers.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    handler::Handler,
    http::{StatusCode, Uri},
    middleware::from_fn_with_state,
    routing::{self, MethodRouter},
};
use restante_net::SharedMemory;

use crate::{
    Guard, HttpMetrics, OperatorGuard, Refusal, RefusalFormat, Sites, guard,
    metrics::{Observer, observe},
    sites::{self, SitePolicy},
};

/// Whose requests reach a route's handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Everybody's.
    Everyone,
    /// Those of accounts, as [`Front::accounts`] decides.
    Accounts,
    /// Those of operators, as [`Front::operators`] decides.
    Operators,
}

/// One method of one path.
#[derive(Clone, Debug)]
pub struct Route<S = ()> {
    /// The method, in lower case.
    pub method: &'static str,
    /// The path, as axum writes it.
    pub path: &'static str,
    /// What it is for, in a few words.
    pub what: &'static str,
    /// Whose requests reach the handler.
    pub audience: Audience,
    /// Whether this is a live stream, which pages of [`Sites::stream_origins`] may read.
    pub is_stream: bool,
    /// Whether links of other sites may lead here, because the page shows nothing without further requests.
    pub is_linked: bool,
    /// The handler of this method.
    pub handler: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> Route<S> {
    /// A GET that everybody may send.
    pub fn get<T: 'static>(path: &'static str, what: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("get", path, what, routing::get(handler))
    }

    /// A POST that everybody may send.
    pub fn post<T: 'static>(path: &'static str, what: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("post", path, what, routing::post(handler))
    }

    /// A PUT that everybody may send.
    pub fn put<T: 'static>(path: &'static str, what: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("put", path, what, routing::put(handler))
    }

    /// A DELETE that everybody may send.
    pub fn delete<T: 'static>(path: &'static str, what: &'static str, handler: impl Handler<T, S>) -> Self {
        Self::new("delete", path, what, routing::delete(handler))
    }

    /// A route that everybody may use.
    fn new(method: &'static str, path: &'static str, what: &'static str, handler: MethodRouter<S>) -> Self {
        let audience = Audience::Everyone;
        Self { method, path, what, audience, is_stream: false, is_linked: false, handler }
    }

    /// The same route with the state for its handler.
    pub fn with_state(self, state: S) -> Route {
        let Self { method, path, what, audience, is_stream, is_linked, handler } = self;
        Route { method, path, what, audience, is_stream, is_linked, handler: handler.with_state(state) }
    }

    /// The same route for another audience.
    #[must_use]
    pub fn with_audience(self, audience: Audience) -> Self {
        Self { audience, ..self }
    }

    /// The same route as a live stream.
    #[must_use]
    pub fn as_stream(self) -> Self {
        Self { is_stream: true, ..self }
    }

    /// The same route as a page that other sites may link to.
    #[must_use]
    pub fn as_linked_page(self) -> Self {
        Self { is_linked: true, ..self }
    }
}

/// The routes as a text for people, one per line.
pub fn describe(routes: &[Route]) -> String {
    let line =
        |route: &Route| format!("{:6} {:48} {}\n", route.method.to_uppercase(), route.path, route.what);
    routes.iter().map(line).collect()
}

/// What the routes of one listener share.
#[derive(Clone, Debug)]
pub struct Front {
    /// The metrics of requests.
    pub metrics: HttpMetrics,
    /// The memory of answers: clients that read slowly are disconnected sooner while requests wait for it.
    pub memory: Arc<dyn SharedMemory>,
    /// Who is an operator.
    pub operators: Arc<OperatorGuard>,
    /// Who is an account; without this guard the routes of accounts do not exist.
    pub accounts: Option<Arc<dyn Guard>>,
    /// Which web pages may use the listener.
    pub sites: Sites,
    /// How refusals are written.
    pub format: RefusalFormat,
}

impl Front {
    /// The router of a listener with these routes. Other paths are answered 404, other methods of a known path 405.
    pub fn router(&self, routes: Vec<Route>) -> Router {
        let mut by_path: BTreeMap<&'static str, Vec<Route>> = BTreeMap::new();
        for route in routes {
            by_path.entry(route.path).or_default().push(route);
        }
        let mut router = Router::new();
        for (path, routes) in by_path {
            if let Some(methods) = self.methods(path, routes) {
                router = router.route(path, methods);
            }
        }
        let unknown = routing::any(unknown_path);
        router.fallback_service(self.observed("other", self.checked(None, unknown)).with_state(()))
    }

    /// The methods of one path with all layers in front of them. The first route of a path decides who may use all of them.
    fn methods(&self, path: &'static str, routes: Vec<Route>) -> Option<MethodRouter> {
        let first = routes.first()?.clone();
        let mut methods = MethodRouter::new();
        for route in routes {
            methods = methods.merge(route.handler);
        }
        methods = methods.fallback(wrong_method);
        let guard: Option<Arc<dyn Guard>> = match first.audience {
            Audience::Everyone => None,
            Audience::Operators => Some(self.operators.clone()),
            Audience::Accounts => Some(self.accounts.clone()?),
        };
        if let Some(guard) = guard {
            methods = methods.layer(from_fn_with_state(guard, guard::layer));
        }
        Some(self.observed(path, self.checked(Some(&first), methods)))
    }

    fn checked(&self, route: Option<&Route>, methods: MethodRouter) -> MethodRouter {
        let policy = Arc::new(SitePolicy::new(&self.sites, &self.operators, route));
        methods.layer(from_fn_with_state(policy, sites::check))
    }

    fn observed(&self, path: &'static str, methods: MethodRouter) -> MethodRouter {
        let observer = Observer::new(self.metrics.route(path), self.memory.clone(), self.format);
        methods.layer(from_fn_with_state(Arc::new(observer), observe))
    }
}

async fn wrong_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take this method: GET / names those it takes",
    )
}

/// Paths of operators exist only where the settings enable them; on such a listener a wrong path below them is as unknown as any other.
async fn unknown_path(uri: Uri) -> Refusal {
    let text = match uri.path().starts_with("/admin/") {
        true => {
            "no such path: GET / names all; those below /admin are where operate.listen says, and here with --rest-admin"
        }
        false => "no such path: GET / names all",
    };
    Refusal::new(StatusCode::NOT_FOUND, text)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use async_trait::async_trait;
    use axum::{
        Extension,
        body::Body,
        http::{Request, request::Parts},
    };
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;
    use crate::{Admission, Caller, Credentials, Denied, MemoryBudget};

    /// Knows one account, by password and by token.
    #[derive(Debug)]
    struct OneAccount;

    #[async_trait]
    impl Guard for OneAccount {
        async fn check(&self, head: &mut Parts, _: Option<SocketAddr>) -> Result<Admission, Denied> {
            let challenge = "Basic realm=\"restante\"".parse().unwrap();
            match Credentials::of(&head.headers) {
                Some(Credentials::Basic { user, password })
                    if user == "Aladdin" && password == "open sesame" =>
                {
                    Ok(Caller::Account(7).into())
                }
                Some(Credentials::Bearer(token)) if &*token == b"lamp" => Ok(Caller::Account(7).into()),
                credentials => Err(Denied::unauthorized("log in", challenge, credentials.is_some())),
            }
        }
    }

    fn front(accounts: Option<Arc<dyn Guard>>) -> Router {
        let front = Front {
            metrics: HttpMetrics::default().of("public"),
            memory: Arc::<MemoryBudget>::default(),
            operators: Arc::default(),
            accounts,
            sites: Sites::default(),
            format: RefusalFormat::Problem,
        };
        let who = async |Extension(caller): Extension<Caller>| format!("{caller:?}");
        front.router(vec![
            Route::get("/open", "for everybody", async || "open"),
            Route::get("/mine", "for accounts", who).with_audience(Audience::Accounts),
        ])
    }

    async fn ask(router: &Router, path: &str, authorization: &str) -> (u16, String, String) {
        let request = Request::get(path).header("authorization", authorization).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let challenge = answer.headers().get("www-authenticate");
        let challenge = challenge.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, challenge, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn routes_of_accounts_need_credentials_and_know_the_account() {
        let router = front(Some(Arc::new(OneAccount)));
        for credentials in ["Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "Bearer lamp"] {
            assert_eq!(
                ask(&router, "/mine", credentials).await,
                (200, String::new(), "Account(7)".to_owned())
            );
        }
        for credentials in ["", "Basic YTpi", "Bearer other"] {
            let (status, challenge, body) = ask(&router, "/mine", credentials).await;
            assert_eq!((status, &*challenge), (401, "Basic realm=\"restante\""), "{credentials}");
            assert!(body.contains(r#""detail":"log in""#) && body.contains(r#""status":401"#), "{body}");
        }
        assert_eq!(ask(&router, "/open", "").await.2, "open");
    }

    #[tokio::test]
    async fn without_a_guard_there_are_no_routes_of_accounts() {
        let (status, _, body) = ask(&front(None), "/mine", "Bearer lamp").await;
        assert_eq!(status, 404, "{body}");
    }
}
