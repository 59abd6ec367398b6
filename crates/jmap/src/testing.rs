//! A server for tests: the door on in-memory engines, or on the ones that the environment names, called through its router as a client
//! would.

mod stores;

use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request as HttpRequest, Response, StatusCode, header, request::Parts},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use restante_core::{Clock, ManualClock, Timestamp};
use restante_directory::{
    Access, Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, EmailAddress, Login, NewToken,
    Operation, Role, Scope,
};
use restante_http::{
    AccessEnded, Admission, Caller, Credentials, Denied, Front, Guard, HttpMetrics, MemoryBudget,
    RefusalFormat, Sites,
};
use restante_mail::{Delivered, Delivery, Mail, MailConfig, MailMetrics, StoredMessage};
use restante_operate::{Door, Listener, Offer};
use restante_records::{AccountId, RecordId, Records, Schema};
use restante_search::Search;
use serde_json::{Value, json};
use tower::ServiceExt;

use stores::{Cleanup, Stores};

use crate::{
    JmapConfig, JmapDoor, JmapMetrics, JmapParts, OpenConnections,
    core::{
        Method,
        dispatch::{self, Methods},
        request::Request,
    },
    url_token,
};

/// All capabilities that have methods.
pub(crate) const USING: [&str; 6] = [
    "urn:ietf:params:jmap:core",
    "urn:ietf:params:jmap:mail",
    "urn:ietf:params:jmap:blob",
    "urn:ietf:params:jmap:quota",
    "urn:ietf:params:jmap:submission",
    "urn:ietf:params:jmap:vacationresponse",
];

/// A server with the domain example.org and the accounts `alice` and `bob`.
pub(crate) struct TestServer {
    pub(crate) door: JmapDoor,
    pub(crate) router: Router,
    pub(crate) mail: Mail,
    pub(crate) directory: Directory,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) alice: User,
    pub(crate) bob: User,
    pub(crate) records: restante_records::Opened,
    pub(crate) blobs: restante_blobs::Opened,
    pub(crate) config: JmapConfig,
    /// Removes the stores when it is dropped.
    _cleanup: Cleanup,
}

/// A user who sends requests.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) account: AccountId,
    /// The account id as clients use it.
    pub(crate) id: String,
    pub(crate) address: EmailAddress,
    pub(crate) token: String,
}

/// Accepts users by their tokens, like the guard of the binary.
struct TokenGuard(Directory);

impl fmt::Debug for TokenGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenGuard")
    }
}

#[async_trait]
impl Guard for TokenGuard {
    async fn check(&self, head: &mut Parts, _: Option<SocketAddr>) -> Result<Admission, Denied> {
        let denied = |is_wrong| {
            let challenge = HeaderValue::from_static("Basic realm=\"restante\", Bearer realm=\"restante\"");
            Denied::unauthorized("log in", challenge, is_wrong)
        };
        let login = match Credentials::of(&head.headers) {
            Some(Credentials::Bearer(token)) => {
                let token = String::from_utf8_lossy(&token).into_owned();
                self.0.check_token([127, 0, 0, 1].into(), &token).await
            }
            Some(Credentials::Basic { user, password }) => {
                self.0.check_password([127, 0, 0, 1].into(), &user, &password).await
            }
            None => match url_token(head) {
                Some(token) => self.0.check_url_token([127, 0, 0, 1].into(), token).await,
                None => return Err(denied(false)),
            },
        };
        let login = login.map_err(|_| denied(true))?;
        let caller = Caller::Account(login.account.0);
        head.extensions.insert(login.clone());
        let ended = AccessEnded::new(ended(self.0.clone(), login));
        Ok(Admission { caller, ended: Some(ended) })
    }
}

/// Completes when a log-in is no longer valid.
async fn ended(directory: Directory, login: Arc<Login>) {
    let mut changes = directory.changes();
    while directory.holds(&login).await.unwrap() {
        changes.next().await;
    }
}

fn new_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)))
}

fn schema() -> Schema {
    let mut kinds = restante_mail::kinds();
    kinds.extend(restante_directory::kinds());
    Schema::new(kinds).unwrap()
}

impl TestServer {
    /// A server with the default settings, except that changes are pushed after a millisecond.
    pub(crate) async fn new() -> Self {
        Self::with(JmapConfig { push_delay_ms: 1, ..JmapConfig::default() }).await
    }

    pub(crate) async fn with(config: JmapConfig) -> Self {
        Self::open(config, MailConfig::default(), None).await
    }

    /// A server in memory, regardless of the environment, for tests that pause the runtime's time, or in which one request must arrive
    /// before another.
    pub(crate) async fn in_memory(config: JmapConfig) -> Self {
        let clock = new_clock();
        let stores = Stores::in_memory(schema(), clock.clone()).await;
        Self::on(stores, clock, config, MailConfig::default(), None, None).await
    }

    /// A server in memory whose records are wrapped.
    pub(crate) async fn with_records(
        config: JmapConfig,
        wrap: impl FnOnce(Arc<dyn Records>) -> Arc<dyn Records>,
    ) -> Self {
        let clock = new_clock();
        let mut stores = Stores::in_memory(schema(), clock.clone()).await;
        stores.records.records = wrap(stores.records.records);
        Self::on(stores, clock, config, MailConfig::default(), None, None).await
    }

    pub(crate) async fn open(config: JmapConfig, mail: MailConfig, public_url: Option<&str>) -> Self {
        Self::open_with(config, mail, public_url, None).await
    }

    /// A server that searches texts in an index.
    pub(crate) async fn open_with(
        config: JmapConfig,
        mail: MailConfig,
        public_url: Option<&str>,
        search: Option<Arc<dyn Search>>,
    ) -> Self {
        let clock = new_clock();
        let stores = Stores::open(schema(), clock.clone()).await;
        Self::on(stores, clock, config, mail, public_url, search).await
    }

    async fn on(
        stores: Stores,
        clock: Arc<ManualClock>,
        config: JmapConfig,
        mail: MailConfig,
        public_url: Option<&str>,
        search: Option<Arc<dyn Search>>,
    ) -> Self {
        let Stores { records, blobs, cleanup } = stores;
        let (settings, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
        let opened = Directory::open(&records, settings, clock.clone(), metrics).await;
        let (directory, follower) = opened.unwrap();
        tokio::spawn(follower.run());
        let stores = (records.records.clone(), blobs.blobs.clone());
        let mail = Mail::new(stores.0, stores.1, clock.clone(), mail, MailMetrics::default());
        let domain = "example.org".parse().unwrap();
        let add = Operation::AddDomain { domain, separator: Some('+'), catch_all: None };
        directory.operate(&actor(), add).await.unwrap();
        let (alice, bob) =
            (add_user(&directory, "alice@example.org").await, add_user(&directory, "bob@example.org").await);
        let parts =
            JmapParts { search, public_url: public_url.map(str::to_owned), ..parts(&mail, &directory) };
        let door = JmapDoor::new(parts, config.clone());
        let front = Front {
            metrics: HttpMetrics::default().of("public"),
            memory: Arc::<MemoryBudget>::default(),
            operators: Arc::default(),
            accounts: Some(Arc::new(TokenGuard(directory.clone()))),
            sites: Sites { origins: vec!["https://client.example".to_owned()], ..Sites::default() },
            format: RefusalFormat::Problem,
        };
        let router = front.router(door.routes(Listener::Public, Offer::default()));
        Self { door, router, mail, directory, clock, alice, bob, records, blobs, config, _cleanup: cleanup }
    }

    /// Another door on the same stores, like after a restart.
    pub(crate) fn restarted(&self) -> JmapDoor {
        JmapDoor::new(parts(&self.mail, &self.directory), self.config.clone())
    }

    /// Another door on the same stores, with other parts.
    pub(crate) fn restarted_with(&self, change: impl FnOnce(&mut JmapParts)) -> JmapDoor {
        let mut parts = parts(&self.mail, &self.directory);
        change(&mut parts);
        JmapDoor::new(parts, self.config.clone())
    }

    /// Runs calls on another door, as alice; returns the responses.
    pub(crate) async fn run_with(&self, door: &JmapDoor, calls: Value) -> Vec<Value> {
        self.run(door, &Methods::new(crate::methods::ALL), calls).await
    }

    /// Does an operation of the directory as an operator.
    pub(crate) async fn operate(&self, operation: Operation) -> Answer {
        self.directory.operate(&actor(), operation).await.unwrap()
    }

    /// Runs calls on a table of methods, as alice; returns the responses.
    pub(crate) async fn run_on(&self, methods: &[Method], calls: Value) -> Vec<Value> {
        self.run(&self.door, &Methods::new(&[methods]), calls).await
    }

    async fn run(&self, door: &JmapDoor, methods: &Methods, calls: Value) -> Vec<Value> {
        let login = self.directory.check_token([127, 0, 0, 1].into(), &self.alice.token).await.unwrap();
        let request = json!({"using": USING, "methodCalls": calls});
        let request = Request::of(request, &self.config).unwrap();
        let context = door.app().context(login, request.using);
        let metrics = JmapMetrics::default();
        let exchange = dispatch::run(methods, &metrics, &context, request, vec![b'[']).await;
        let mut written = exchange.answers.into_bytes();
        written.push(b']');
        serde_json::from_slice(&written).unwrap()
    }

    /// Lets `user` use the mail of `owner`.
    pub(crate) async fn grant(&self, owner: &User, user: &User, access: Access) {
        let (owner, user) = (owner.address.clone(), user.address.clone());
        self.operate(Operation::Grant { owner, user, access }).await;
    }

    /// Sends any request as a user; it names the host `mail.example.org`.
    pub(crate) async fn send(&self, user: &User, mut request: HttpRequest<Body>) -> Response<Body> {
        let bearer = HeaderValue::from_str(&format!("Bearer {}", user.token)).unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        request.headers_mut().entry(header::HOST).or_insert(HeaderValue::from_static("localhost:8080"));
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn get(&self, user: &User, uri: &str) -> Response<Body> {
        self.send(user, HttpRequest::get(uri).body(Body::empty()).unwrap()).await
    }

    /// Sends the bytes of a request; returns the status and the JSON of the answer.
    pub(crate) async fn post(&self, user: &User, bytes: impl Into<Body>) -> (StatusCode, Value) {
        let request = HttpRequest::post("/jmap/api").header(header::CONTENT_TYPE, "application/json");
        let response = self.send(user, request.body(bytes.into()).unwrap()).await;
        let status = response.status();
        (status, serde_json::from_slice(&body_of(response).await).unwrap())
    }

    /// Sends calls as a user, with all capabilities; returns the responses.
    pub(crate) async fn calls_as(&self, user: &User, calls: Value) -> Vec<Value> {
        let request = json!({"using": USING, "methodCalls": calls});
        let (status, mut answer) = self.post(user, request.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        serde_json::from_value(answer["methodResponses"].take()).unwrap()
    }

    /// Sends calls as alice.
    pub(crate) async fn calls(&self, calls: Value) -> Vec<Value> {
        self.calls_as(&self.alice, calls).await
    }

    /// Sends one call as alice; returns the arguments of its response, those of an error, too.
    pub(crate) async fn call(&self, name: &str, arguments: Value) -> Value {
        self.call_as(&self.alice, name, arguments).await
    }

    pub(crate) async fn call_as(&self, user: &User, name: &str, arguments: Value) -> Value {
        let mut responses = self.calls_as(user, json!([[name, arguments, "c0"]])).await;
        assert_eq!(responses.len(), 1, "{responses:?}");
        let answered = responses[0][0].as_str().unwrap().to_owned();
        assert!(answered == name || answered == "error", "{answered}");
        responses[0][1].take()
    }

    /// Delivers a message to alice's inbox like LMTP; `raw` has LF line ends, the delivered message CRLF. Returns its id.
    pub(crate) async fn deliver(&self, raw: &str) -> RecordId {
        static DELIVERIES: AtomicU64 = AtomicU64::new(0);
        let raw = Bytes::from(raw.replace('\n', "\r\n"));
        let message = restante_mail::message::read(&raw);
        let blob = self.blobs.blobs.put(&mut raw.clone()).await.unwrap().id;
        let (row, size, thread_keys) = (message.row(), raw.len() as u64, message.thread_keys.clone());
        let mut key = [0; 32];
        key[..8].copy_from_slice(&DELIVERIES.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        let message = StoredMessage { row, size, thread_keys, blob };
        let received = self.clock.now().seconds();
        let delivery = Delivery { message, key, to_junk: false, received, quota: None };
        match self.mail.deliver(self.alice.account, delivery).await.unwrap() {
            Delivered::New(id) => id,
            Delivered::Repeated => panic!("each delivery has a key of its own"),
        }
    }

    /// Uploads bytes as a user to an account; returns the blob id.
    pub(crate) async fn upload_as(&self, user: &User, account: &str, bytes: impl Into<Body>) -> String {
        let request = HttpRequest::post(format!("/jmap/upload/{account}")).body(bytes.into()).unwrap();
        let response = self.send(user, request).await;
        assert_eq!(response.status(), StatusCode::CREATED);
        let answer: Value = serde_json::from_slice(&body_of(response).await).unwrap();
        answer["blobId"].as_str().unwrap().to_owned()
    }

    /// Uploads bytes as alice to her account.
    pub(crate) async fn upload(&self, bytes: impl Into<Body>) -> String {
        self.upload_as(&self.alice, &self.alice.id, bytes).await
    }

    /// Downloads a blob as a user; `None` when there is none.
    pub(crate) async fn download_as(&self, user: &User, account: &str, blob: &str) -> Option<Bytes> {
        let uri = format!("/jmap/download/{account}/{blob}/name?type=text%2Fplain");
        let response = self.get(user, &uri).await;
        match response.status() {
            StatusCode::OK => Some(body_of(response).await),
            StatusCode::NOT_FOUND => None,
            other => panic!("{other}"),
        }
    }

    /// Downloads a blob of alice.
    pub(crate) async fn download(&self, blob: &str) -> Option<Bytes> {
        self.download_as(&self.alice, &self.alice.id, blob).await
    }
}

/// The policy that the server serves.
pub(crate) const MTA_STS_POLICY: &str = "version: STSv1\r\nmode: testing\r\n";

pub(crate) fn parts(mail: &Mail, directory: &Directory) -> JmapParts {
    JmapParts {
        mail: mail.clone(),
        search: None,
        directory: directory.clone(),
        stores: Vec::new(),
        sending: None,
        memory: Arc::<MemoryBudget>::default(),
        metrics: JmapMetrics::default(),
        connections: OpenConnections::default(),
        public_url: None,
        is_tls: false,
        mta_sts_policy: Some(MTA_STS_POLICY.to_owned()),
    }
}

/// The whole body of a response.
pub(crate) async fn body_of(response: Response<Body>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

fn actor() -> Actor {
    Actor("a test".to_owned())
}

async fn add_user(directory: &Directory, address: &str) -> User {
    let address: EmailAddress = address.parse().unwrap();
    let add = Operation::AddAccount {
        address: address.clone(),
        password: None,
        role: Role::User,
        quota_bytes: None,
    };
    let Answer::Password { account: Some(number), .. } = directory.operate(&actor(), add).await.unwrap()
    else {
        unreachable!("a new account has a number")
    };
    let token = token_of(directory, &address, Scope::Mail).await;
    User { account: AccountId(number), id: format!("a{number}"), address, token }
}

/// A new token of an account; one for mail can send, too.
pub(crate) async fn token_of(directory: &Directory, address: &EmailAddress, scope: Scope) -> String {
    let scopes = if scope == Scope::Mail { vec![Scope::Mail, Scope::Send] } else { vec![scope] };
    let token = NewToken { name: "test".to_owned(), scopes, expires_in: None };
    let create = Operation::CreateToken { address: address.clone(), token };
    let Answer::Token { token, .. } = directory.operate(&actor(), create).await.unwrap() else {
        unreachable!("a token is made")
    };
    token
}
