use std::num::NonZero;

use axum::{
    Extension, Router,
    body::{Body, to_bytes},
    http::{Method, Request, StatusCode},
    response::Response,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use restante_core::SystemClock;
use restante_directory::{
    Actor, Answer, DirectoryConfig, DirectoryMetrics, EmailAddress, NewPassword, NewToken, Operation, Role,
    State,
};
use restante_http::{
    Audience, Front, HttpMetrics, OperatorGuard, RefusalFormat, Route, Sites, Token, event_stream,
};
use restante_records::EngineUrl;
use tower::ServiceExt;

use super::*;
use crate::doors::mail::records;

const SERVER_TOKEN: &str = "the-token-of-the-server";
/// Longer than anything takes that is awaited here, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Fixture {
    directory: Directory,
    router: Router,
    _follower: tokio::task::JoinHandle<()>,
}

fn anna() -> EmailAddress {
    "anna@example.org".parse().unwrap()
}

fn olga() -> EmailAddress {
    "olga@example.org".parse().unwrap()
}

/// A server with the user Anna and the operator Olga.
async fn fixture() -> Fixture {
    let records = restante_records::Config::new(EngineUrl::Memory, records::schema());
    let opened = restante_records::open(records).await.unwrap();
    let rounds = NonZero::new(DirectoryConfig::ROUNDS_MIN).unwrap();
    let config = DirectoryConfig { rounds, ..DirectoryConfig::default() };
    let clock = Arc::new(SystemClock);
    let metrics = DirectoryMetrics::default();
    let (directory, follower) = Directory::open(&opened, config, clock.clone(), metrics).await.unwrap();
    let follower = tokio::spawn(follower.run());
    let token = Some(Token::new(SERVER_TOKEN).unwrap());
    let operators = OperatorGuard::new(token, "127.0.0.1:1".parse().unwrap())
        .with_logins(Arc::new(LoginGuard::of_operators(directory.clone(), clock.clone())));
    let front = Front {
        metrics: HttpMetrics::default().of("test"),
        memory: Arc::<restante_http::MemoryBudget>::default(),
        operators: Arc::new(operators),
        accounts: Some(Arc::new(LoginGuard::of_accounts(directory.clone(), clock))),
        sites: Sites { origins: vec!["https://other.example".to_owned()], ..Sites::default() },
        format: RefusalFormat::Text,
    };
    let who = async |Extension(login): Extension<Arc<Login>>| login.address.to_string();
    let events = async || {
        event_stream::response(stream::iter([Bytes::from_static(b"event: one\n\n")]).chain(stream::pending()))
    };
    let router = front.router(vec![
        Route::get("/mine", "who logs in", who).with_audience(Audience::Accounts),
        Route::get("/events", "events", events).with_audience(Audience::Accounts),
        Route::get("/jmap/events", "events of JMAP", events).with_audience(Audience::Accounts),
        Route::get("/jmap/ws", "for operators", async || "done").with_audience(Audience::Operators),
        Route::get("/admin", "for operators", async || "done").with_audience(Audience::Operators),
        Route::post("/admin", "for operators", async || "done").with_audience(Audience::Operators),
    ]);
    let fixture = Fixture { directory, router, _follower: follower };
    let domain = "example.org".parse().unwrap();
    fixture.done(Operation::AddDomain { domain, separator: None, catch_all: None }).await;
    for (address, role) in [(anna(), Role::User), (olga(), Role::Operator)] {
        let password = Some(NewPassword::Given("secret".to_owned()));
        fixture.done(Operation::AddAccount { address, password, role, quota_bytes: None }).await;
    }
    fixture
}

fn basic(address: &EmailAddress, password: &str) -> String {
    format!("Basic {}", base64_simd::STANDARD.encode_to_string(format!("{address}:{password}")))
}

impl Fixture {
    async fn done(&self, operation: Operation) -> Answer {
        self.directory.operate(&Actor("a test".to_owned()), operation).await.unwrap()
    }

    async fn token(&self, address: EmailAddress, scope: Scope, expires_in: Option<u64>) -> (String, String) {
        let token = NewToken { name: "test".to_owned(), scopes: vec![scope], expires_in };
        match self.done(Operation::CreateToken { address, token }).await {
            Answer::Token { token, info } => (format!("Bearer {token}"), info.id),
            _ => panic!("no token was made"),
        }
    }

    async fn set_password(&self, address: EmailAddress, password: &str) {
        let password = NewPassword::Given(password.to_owned());
        self.done(Operation::SetPassword { address, application: None, password }).await;
    }

    async fn ask(&self, request: Request<Body>) -> Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, path: &str, authorization: &str) -> Response {
        self.ask(Request::get(path).header("authorization", authorization).body(Body::empty()).unwrap()).await
    }

    async fn status(&self, path: &str, authorization: &str) -> u16 {
        self.get(path, authorization).await.status().as_u16()
    }

    async fn until_status(&self, path: &str, authorization: &str, status: u16) {
        let waiting = async {
            while self.status(path, authorization).await != status {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the status changes");
    }
}

async fn text(response: Response) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn accounts_log_in_by_a_password_and_by_a_token() {
    let fixture = fixture().await;
    let password = basic(&anna(), "secret");
    let (token, id) = fixture.token(anna(), Scope::Mail, None).await;
    for credentials in [&password, &token] {
        let answer = fixture.get("/mine", credentials).await;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(text(answer).await, "anna@example.org");
    }
    for wrong in ["", "Digest x", &basic(&anna(), "other"), "Bearer rst_other", "Bearer \u{e4}"] {
        let answer = fixture.get("/mine", wrong).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{wrong}");
        let challenge = answer.headers()["www-authenticate"].to_str().unwrap();
        assert!(challenge.contains("Basic realm=") && challenge.contains("Bearer realm="), "{challenge}");
    }
    fixture.done(Operation::RevokeToken { address: anna(), id }).await;
    fixture.until_status("/mine", &token, 401).await;
    fixture.set_password(anna(), "changed").await;
    fixture.until_status("/mine", &password, 401).await;
    assert_eq!(fixture.status("/mine", &basic(&anna(), "changed")).await, 200);
    fixture.done(Operation::SetState { address: anna(), state: State::Disabled }).await;
    fixture.until_status("/mine", &basic(&anna(), "changed"), 401).await;
}

#[tokio::test]
async fn h7_a_token_in_the_url_is_for_the_routes_of_jmap_and_not_for_operators() {
    let fixture = fixture().await;
    let login = fixture.directory.check_password(NO_CLIENT, "olga@example.org", "secret").await.unwrap();
    let (token, _) = fixture.directory.make_url_token(&login, 60);
    for (path, status) in [("/jmap/events", 200), ("/mine", 401), ("/jmap/ws", 401), ("/admin", 401)] {
        let request = Request::get(format!("{path}?access_token={token}")).body(Body::empty()).unwrap();
        assert_eq!(fixture.ask(request).await.status().as_u16(), status, "{path}");
    }
    assert_eq!(fixture.status("/mine", &format!("Bearer {token}")).await, 401);
}

#[tokio::test]
async fn too_many_failed_log_ins_are_refused_with_the_time_to_wait() {
    let fixture = fixture().await;
    let mut last = StatusCode::UNAUTHORIZED;
    for _ in 0..100 {
        let answer = fixture.get("/mine", &basic(&anna(), "wrong")).await;
        last = answer.status();
        if last == StatusCode::TOO_MANY_REQUESTS {
            let seconds: u64 = answer.headers()["retry-after"].to_str().unwrap().parse().unwrap();
            assert!(seconds > 0);
            break;
        }
    }
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn operators_log_in_beside_the_server_s_token() {
    let fixture = fixture().await;
    let (mail, _) = fixture.token(olga(), Scope::Mail, None).await;
    let (operate, _) = fixture.token(olga(), Scope::Operate, None).await;
    let password = basic(&olga(), "secret");
    for (credentials, status) in [
        (format!("Bearer {SERVER_TOKEN}"), 200),
        (password.clone(), 200),
        (operate.clone(), 200),
        (mail, 403),
        (basic(&anna(), "secret"), 403),
        (basic(&olga(), "other"), 401),
        ("Bearer another-token-of-somebody".to_owned(), 401),
        (String::new(), 401),
    ] {
        let answer = fixture.get("/admin", &credentials).await;
        assert_eq!(answer.status().as_u16(), status, "{credentials}");
        let challenge = answer.headers().get("www-authenticate").map(|value| value.to_str().unwrap());
        assert_eq!(challenge, (status == 401).then_some("Bearer realm=\"restante\""), "{credentials}");
    }
    fixture.done(Operation::SetRole { address: olga(), role: Role::User }).await;
    for credentials in [&password, &operate] {
        fixture.until_status("/admin", credentials, 403).await;
    }
    assert_eq!(fixture.status("/mine", &password).await, 200, "the account stays");
}

/// Browsers send a remembered password with the requests of every page; a token is only sent by a page that knows it.
#[tokio::test]
async fn pages_of_others_change_nothing_by_a_remembered_password() {
    let fixture = fixture().await;
    let (token, _) = fixture.token(olga(), Scope::Operate, None).await;
    let password = basic(&olga(), "secret");
    for (credentials, origin, status) in [
        (&password, "https://own.example", 200),
        (&password, "https://other.example", 403),
        (&token, "https://other.example", 200),
    ] {
        let request = Request::builder().method(Method::POST).uri("/admin").header("host", "own.example");
        let request = request.header("origin", origin).header("authorization", credentials);
        let answer = fixture.ask(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status().as_u16(), status, "{origin}");
    }
}

#[tokio::test]
async fn a_stream_breaks_off_when_its_log_in_holds_no_more() {
    let fixture = fixture().await;
    let open = async |credentials: &str| {
        let mut body = fixture.get("/events", credentials).await.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "event: one\n\n");
        body
    };
    let cut = async |mut body: Body| {
        let next = tokio::time::timeout(PATIENCE, body.frame()).await.expect("the stream ends");
        next.unwrap().expect_err("it breaks off");
    };
    let (token, id) = fixture.token(anna(), Scope::Mail, None).await;
    let (by_token, other) = (open(&token).await, open(&basic(&olga(), "secret")).await);
    fixture.done(Operation::RevokeToken { address: anna(), id }).await;
    cut(by_token).await;
    let by_password = open(&basic(&anna(), "secret")).await;
    fixture.set_password(anna(), "changed").await;
    cut(by_password).await;
    let (expiring, _) = fixture.token(anna(), Scope::Mail, Some(5)).await;
    cut(open(&expiring).await).await;
    let disabled = open(&basic(&anna(), "changed")).await;
    fixture.done(Operation::SetState { address: anna(), state: State::Disabled }).await;
    cut(disabled).await;
    fixture.done(Operation::RemoveAccount { address: olga() }).await;
    cut(other).await;
}
