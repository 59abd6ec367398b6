//! Runs the calls of a request, one after the other.

use std::{collections::HashMap, panic::AssertUnwindSafe, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use serde_json::{Map, Value};
use tokio::{task::yield_now, time::Instant};
use tracing::error;

use super::{
    Answers, Args, Capability, Context, Creations, MethodError,
    ids::read_account_id,
    reference,
    request::{Call, Request},
    uploads::UsedUploads,
};
use crate::metrics::JmapMetrics;

/// What the calls of a request share.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) creations: Creations,
    pub(crate) answers: Answers,
    pub(crate) uploads: UsedUploads,
    /// The bytes that Blob/get has hashed; those with two digests count twice.
    pub(crate) hashed_bytes: u64,
}

/// Runs a call: writes its response, or several. An error replaces everything that the call has written, so a method that has already
/// changed something must not fail.
pub(crate) type Run =
    for<'c> fn(&'c Context, &'c mut Exchange, Args) -> BoxFuture<'c, Result<(), MethodError>>;

/// A method.
#[derive(Clone, Copy)]
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// Without this capability in `using` the method is unknown (RFC 8620 §3.3). Accounts without the capability are refused.
    pub(crate) capability: Capability,
    pub(crate) run: Run,
}

/// All methods by name.
pub(crate) struct Methods(HashMap<&'static str, Method>);

impl Methods {
    pub(crate) fn new(methods: &[&[Method]]) -> Self {
        Self(methods.iter().flat_map(|methods| methods.iter()).map(|method| (method.name, *method)).collect())
    }

    fn of(&self, name: &str, context: &Context) -> Option<&Method> {
        self.0.get(name).filter(|method| context.using.has(method.capability))
    }
}

/// How long the calls of a request run before they yield to other tasks.
const RUNNING_MAX: Duration = Duration::from_micros(500);
/// The name under which calls of unknown methods are counted.
const UNKNOWN: &str = "unknown";

/// Answers all calls of a request, appending the responses to `bytes`; returns the responses and the creation ids.
pub(crate) async fn run(
    methods: &Methods,
    metrics: &JmapMetrics,
    context: &Context,
    request: Request,
    bytes: Vec<u8>,
) -> Exchange {
    let Request { calls, created_ids, .. } = request;
    let mut exchange = Exchange {
        creations: Creations::new(created_ids),
        answers: Answers::behind(bytes),
        uploads: UsedUploads::default(),
        hashed_bytes: 0,
    };
    let mut readable = reference::Readable::default();
    let mut running_since = Instant::now();
    for Call { name, arguments, id } in calls {
        // Stores may return without waiting, again and again: let other tasks of the thread run between two calls.
        if running_since.elapsed() > RUNNING_MAX {
            yield_now().await;
            running_since = Instant::now();
        }
        let method = methods.of(&name, context);
        let counted = method.map_or(UNKNOWN, |method| method.name);
        exchange.answers.begin_call(counted, id);
        let result = match method {
            None => Err(MethodError::UnknownMethod),
            Some(_) if written_too_much(context, &exchange) => {
                let text = "earlier responses of the request are too large: make this call in another one";
                Err(MethodError::RequestTooLarge(text.to_owned()))
            }
            Some(method) => match reference::resolve(arguments, &exchange.answers, &mut readable) {
                // RFC 8620 §3.6.2: the account exists, but does not support the method.
                Ok(arguments) if !has_capability(context, &arguments, method.capability) => {
                    Err(MethodError::AccountNotSupportedByMethod)
                }
                Ok(arguments) => run_call(method, context, &mut exchange, Args::new(arguments)).await,
                Err(error) => Err(error),
            },
        };
        metrics.count(counted, result.as_ref().err());
        if let Err(error) = result {
            exchange.answers.fail_call(&error);
        }
    }
    exchange
}

/// Whether the calls so far have written so much that further ones are not run. Responses that were replaced by an error because they
/// were too large count, too, so that a request can't cause one after the other to be written for nothing.
fn written_too_much(context: &Context, exchange: &Exchange) -> bool {
    let bytes_max = context.config.response_bytes_max.get();
    exchange.answers.bytes() > bytes_max || exchange.answers.written_bytes() / 2 > bytes_max
}

/// Whether the account of a call has a capability in the session object. True for an unknown account: the method itself refuses it.
fn has_capability(context: &Context, arguments: &Map<String, Value>, capability: Capability) -> bool {
    let account = arguments.get("accountId").and_then(Value::as_str).and_then(read_account_id);
    account.is_none_or(|account| {
        context.access(account).is_none() || capability.is_of(context.login.account == account)
    })
}

/// Runs one call. A panic is an error of this call only.
async fn run_call(
    method: &Method,
    context: &Context,
    exchange: &mut Exchange,
    args: Args,
) -> Result<(), MethodError> {
    let running = AssertUnwindSafe((method.run)(context, exchange, args));
    running.catch_unwind().await.unwrap_or_else(|_| {
        error!(method = method.name, "a JMAP method panicked");
        Err(MethodError::ServerFail)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{JmapConfig, core::Members, testing::TestServer};

    const METHODS: &[Method] = &[
        Method {
            name: "Test/long",
            capability: Capability::Core,
            run: |_, exchange, _| {
                Box::pin(async move {
                    exchange.answers.begin().field("long", &"x".repeat(600));
                    Ok(())
                })
            },
        },
        Method {
            name: "Test/large",
            capability: Capability::Core,
            run: |_, exchange, _| {
                Box::pin(async move {
                    exchange.answers.begin().field("long", &"x".repeat(1_100));
                    Err(MethodError::StateMismatch)
                })
            },
        },
        Method {
            name: "Test/panic",
            capability: Capability::Core,
            run: |_, exchange, _| {
                Box::pin(async move {
                    exchange.answers.begin().field("half", &1);
                    panic!("a test")
                })
            },
        },
        Method {
            name: "Test/two",
            capability: Capability::Core,
            run: |_, exchange, args| {
                Box::pin(async move {
                    exchange.answers.begin().field("first", &true);
                    args.done()?;
                    exchange.answers.begin_as("Test/set").field("first", &false);
                    Ok(())
                })
            },
        },
    ];

    #[tokio::test]
    async fn m1_a_panic_is_the_error_of_its_call_alone() {
        let server = TestServer::new().await;
        let calls = json!([["Test/two", {}, "c0"], ["Test/panic", {}, "c1"], ["Test/two", {"x": 1}, "c2"]]);
        let responses = server.run_on(METHODS, calls).await;
        let expected = json!([
            ["Test/two", {"first": true}, "c0"],
            ["Test/set", {"first": false}, "c0"],
            ["error", {"type": "serverFail"}, "c1"],
            ["error", {"type": "invalidArguments", "description": "x: is not an argument of this method"}, "c2"],
        ]);
        assert_eq!(json!(responses), expected);
    }

    #[tokio::test]
    async fn r1_the_second_response_of_a_call_is_never_referred_to() {
        let server = TestServer::new().await;
        let reference = |name: &str| json!({"#x": {"resultOf": "c0", "name": name, "path": "/first"}});
        let calls = json!([
            ["Test/two", {}, "c0"],
            ["Test/two", reference("Test/two"), "c1"],
            ["Test/two", reference("Test/set"), "c2"]
        ]);
        let responses = server.run_on(METHODS, calls).await;
        // The first one is resolved, and is then an argument that the method does not know.
        assert_eq!(responses[2][1]["type"], "invalidArguments");
        assert_eq!(responses[3][1]["type"], "invalidResultReference");
    }

    /// Regression test: 63 calls that each read 60 MB of emails were all run, and all but the first failed.
    #[tokio::test]
    async fn m1_calls_behind_responses_that_are_too_large_are_not_run() {
        let response_bytes_max = 1_000.try_into().unwrap();
        let server = TestServer::with(JmapConfig { response_bytes_max, ..JmapConfig::default() }).await;
        let types = async |names: [&str; 4]| -> Vec<Value> {
            let calls: Vec<Value> = names.iter().map(|name| json!([name, {}, "c"])).collect();
            let responses = server.run_on(METHODS, json!(calls)).await;
            responses.iter().map(|response| response[1]["type"].clone()).collect()
        };
        let (done, failed, refused) = (Value::Null, json!("stateMismatch"), json!("requestTooLarge"));
        let found = types(["Test/long", "Test/long", "Test/long", "Test/unheard"]).await;
        assert_eq!(json!(found), json!([done, done, refused, "unknownMethod"]));
        let found = types(["Test/large", "Test/long", "Test/large", "Test/long"]).await;
        assert_eq!(json!(found), json!([failed, done, failed, refused]));
    }

    #[tokio::test]
    async fn m1_calls_are_counted_by_method_and_outcome() {
        let server = TestServer::new().await;
        server.calls(json!([["Core/echo", {}, "a"], ["Foo/get", {}, "b"], ["Bar/get", {}, "c"]])).await;
        let mut registry = prometheus_client::registry::Registry::default();
        restante_operate::Door::register(&server.door, &mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_jmap_calls_total{method=\"Core/echo\",outcome=\"ok\"} 1\n",
            "restante_jmap_calls_total{method=\"unknown\",outcome=\"unknownMethod\"} 2\n",
            "restante_jmap_request_seconds_count 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
