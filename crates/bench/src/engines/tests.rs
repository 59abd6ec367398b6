use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn args() -> EnginesArgs {
    EnginesArgs {
        redis: None,
        redis_password_file: None,
        ca_file: None,
        small: true,
        baseline: None,
        data: None,
        json: None,
        html: None,
    }
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
