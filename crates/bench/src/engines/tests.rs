use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

pub(super) fn args() -> EnginesArgs {
    let output = OutputArgs { data: None, json: None, html: None, quick: true };
    EnginesArgs { small: true, ..EnginesArgs::of_environment(output) }
}

/// The error of connecting to an engine.
pub(super) async fn error_of(
    connecting: impl Future<Output = anyhow::Result<Option<Box<dyn Engine>>>>,
) -> String {
    match connecting.await {
        Ok(_) => panic!("it connected"),
        Err(error) => format!("{error:#}"),
    }
}

/// An HTTP server that gives every request the same answer.
#[cfg(feature = "http")]
pub(super) async fn server_that_answers(status: &'static str, body: &'static str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
            let _ = stream.read(&mut [0; 4_096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://{address}")
}

/// An engine that fails at a stage.
#[derive(Default)]
struct Failing {
    at_settings: bool,
    at_clean_up: bool,
    is_cleaned: AtomicBool,
}

#[async_trait]
impl Engine for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn created(&self) -> String {
        "drop keyspace restante_bench_1".to_owned()
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        if self.at_settings {
            bail!("connection reset");
        }
        Ok(vec![EngineSetting::safe("failing", "sync", "on")])
    }

    async fn measure(&self, _: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        results.lock().table("failing", "inserts").shown("inserts", "1/s", 1.0);
        bail!("the engine died")
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        self.is_cleaned.store(true, Ordering::Relaxed);
        if self.at_clean_up {
            bail!("connection refused");
        }
        Ok(())
    }
}

#[tokio::test]
async fn an_engine_that_dies_in_the_middle_keeps_its_figures_and_is_cleaned() {
    let engine = Failing::default();
    let results = Mutex::new(Results::default());
    run_engine(&engine, &args(), &results).await.unwrap();
    assert!(engine.is_cleaned.load(Ordering::Relaxed));
    let results = results.into_inner();
    assert!(!results.is_empty());
    assert_eq!(results.failures(), ["failing: the engine died"]);
}

#[tokio::test]
async fn what_can_not_be_removed_is_named_with_the_command_that_removes_it() {
    let engine = Failing { at_settings: true, at_clean_up: true, ..Failing::default() };
    let results = Mutex::new(Results::default());
    run_engine(&engine, &args(), &results).await.unwrap();
    let results = results.into_inner();
    let [settings, left] = results.failures() else { panic!("{:?}", results.failures()) };
    assert!(settings.contains("connection reset"), "{settings}");
    assert!(left.contains("drop keyspace") && left.contains("connection refused"), "{left}");
}

/// Held by a test that loads real servers: two at once would disturb each other.
pub(crate) static SERVERS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The rows that may be missing for a server with little processor time, by how the names of their tables begin: rates of
/// searches that it answers within a second, and messages that are received while two producers fill the queue as fast as they
/// can.
const MAY_BE_NONE: [(&str, &str); 2] =
    [("searches", "highest rate with a p99 latency of at most 1 s"), ("empty messages", "received")];

fn may_be_none(row: &serde_json::Value) -> bool {
    let is_in = |table: &str| row["table"].as_str().is_some_and(|name| name.starts_with(table));
    MAY_BE_NONE.iter().any(|(table, name)| is_in(table) && row["row"] == *name)
}

/// Against real engines, if dev/services has started them: every row exists, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn engines_of_the_environment_are_measured() {
    let _alone = SERVERS.lock().await;
    for (name, connect) in ENGINES {
        let Some(engine) = connect(&args()).await.unwrap() else {
            let is_required = std::env::var("RESTANTE_TEST_REQUIRE").is_ok_and(|names| names.contains(name));
            assert!(!is_required, "{name} is required and not there");
            continue;
        };
        let results = Mutex::new(Results::default());
        run_engine(&*engine, &args(), &results).await.unwrap();
        let results = results.into_inner();
        let failures = results.failures().to_vec();
        let mut report = Report::new("engines", "Engines.", Machine::look(std::path::Path::new(".")));
        results.fill(&mut report).unwrap();
        for row in &report.rows {
            println!("{row}");
        }
        assert!(failures.is_empty(), "{failures:?}");
        let has_value = |row: &serde_json::Value| row["value"] != 0.0 || may_be_none(row);
        assert!(report.rows.iter().all(has_value), "{:?}", report.rows);
        assert!(report.rows.iter().any(|row| row["table"] == "settings"), "{:?}", report.rows);
    }
}
