//! A quick run of the bench of floods: it starts a server as operators do, and finds that known senders are served and nothing of
//! a flood is stored.

use std::fs;

use serde_json::Value;

use crate::support::{folder, said};

#[test]
fn a_quick_bench_of_floods_finds_all_mails_of_known_senders_and_nothing_else() {
    let (_guard, folder) = folder();
    let shown = said(&folder, &["bench", "mail-in", "--flood", "--quick", "--json", "floods.json"]);
    let report: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("floods.json")).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let mut seen = Vec::new();
    for row in rows {
        seen.push((row["op"].as_str().unwrap(), row["known"].as_str().unwrap()));
        assert!(row["attempts"].as_u64() > Some(0), "{row}");
        assert!(row["refused"].as_u64() <= row["attempts"].as_u64(), "{row}");
        for time in ["known_alone_p50_ms", "known_beside_p99_ms", "ratio"] {
            assert!(row[time].as_f64() > Some(0.0), "{time} of {row}");
        }
        assert!(row["private_mb_peak"].as_f64() > Some(1.0), "{row}");
    }
    let floods = ["connections", "slow_talkers", "unknown_recipients", "password_guessing", "all_at_once"];
    let expected: Vec<_> = floods.iter().flat_map(|op| [(*op, "smtp"), (*op, "submission")]).collect();
    assert_eq!(seen, expected);
    for goal in ["not accepted", "beside those of known senders", "of floods that were accepted"] {
        let line =
            shown.lines().find(|line| line.contains(goal)).unwrap_or_else(|| panic!("{goal}: {shown}"));
        assert!(line.trim_end().ends_with("yes"), "{shown}");
    }
    assert!(shown.contains("  attempts: "), "columns are explained: {shown}");
}
