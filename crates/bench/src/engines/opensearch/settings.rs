//! Settings of the cluster, of its nodes, and of the existing indexes.

use serde_json::Value;

use super::{super::floors::is_local, EngineSetting, NAME, requests::Requests};

const GIB: f64 = 1_073_741_824.0;
/// A smaller heap refuses bulks of a few megabytes.
const HEAP_MIN: f64 = GIB;
/// A smaller heap refuses bulks of several clients at once.
const HEAP_GOOD: f64 = 4.0 * GIB;
/// From here on the JVM needs twice the memory for each pointer.
const HEAP_MAX: f64 = 32.0 * GIB;
/// Used shares of the disk above which no new shards are placed, and above which nothing is written, by default.
const LOW_WATERMARK: f64 = 0.85;
const FLOOD_STAGE: f64 = 0.95;
/// Seconds after which new mail should be found.
const REFRESH_MAX: f64 = 30.0;
/// Names of indexes that a value lists at most.
const NAMES_MAX: usize = 3;
const THRESHOLD: &str = "cluster.routing.allocation.disk.threshold_enabled";

/// Reads and judges what the engine reports; hosted ones hide some of it.
///
/// # Errors
/// When the engine is gone.
pub(super) async fn read(
    requests: &Requests,
    is_tls: bool,
    host: &str,
) -> anyhow::Result<Vec<EngineSetting>> {
    let mut settings = vec![judge_connection(is_tls, is_local(host))];
    let health = requests.get("/_cluster/health").await?;
    settings
        .push(judge_nodes(health.get("number_of_data_nodes").and_then(Value::as_u64).unwrap_or_default()));
    match requests.get("/_nodes/stats/jvm,fs").await {
        Ok(stats) => {
            let nodes: Vec<&Value> = stats
                .get("nodes")
                .and_then(Value::as_object)
                .into_iter()
                .flat_map(|nodes| nodes.values())
                .collect();
            let heaps = nodes.iter().filter_map(|node| node.pointer("/jvm/mem/heap_max_in_bytes")?.as_f64());
            settings.extend(heaps.clone().min_by(f64::total_cmp).map(judge_heap));
            let used = nodes.iter().filter_map(|node| used_share(node.pointer("/fs/total")?));
            settings.extend(used.max_by(f64::total_cmp).map(judge_disk));
        }
        Err(_) => settings.push(unknown("heap and disk")),
    }
    match requests.get("/_cluster/settings?include_defaults=true&flat_settings=true").await {
        Ok(cluster) => settings.push(judge_threshold(effective(&cluster, THRESHOLD))),
        Err(_) => settings.push(unknown(THRESHOLD)),
    }
    let names = "index.number_of_replicas,index.refresh_interval,index.translog.durability";
    match requests.get(&format!("/_all/_settings/{names}?include_defaults=true&flat_settings=true")).await {
        Ok(found) => settings.extend(judge_indexes(&indexes(&found))),
        Err(_) => settings.push(unknown("indexes")),
    }
    Ok(settings)
}

fn unknown(name: &str) -> EngineSetting {
    EngineSetting::safe(NAME, name, "unknown: the engine did not return it")
}

/// The value of a setting of the cluster: as set at run time, else as in its file or by default.
fn effective<'a>(cluster: &'a Value, name: &str) -> Option<&'a str> {
    ["transient", "persistent", "defaults"]
        .into_iter()
        .find_map(|layer| cluster.get(layer)?.get(name)?.as_str())
}

fn used_share(total: &Value) -> Option<f64> {
    let (all, left) = (total.get("total_in_bytes")?.as_f64()?, total.get("available_in_bytes")?.as_f64()?);
    (all > 0.0).then(|| 1.0 - left / all)
}

/// The settings of one index.
#[derive(Debug, PartialEq)]
struct Index {
    name: String,
    replicas: u64,
    refresh: String,
    durability: String,
}

/// The indexes of the operator: not those of the engine itself, and not those of this bench.
fn indexes(found: &Value) -> Vec<Index> {
    let of = |(name, index): (&String, &Value)| {
        let text = |setting: &str| {
            let layers = ["settings", "defaults"].into_iter();
            layers
                .filter_map(|layer| index.get(layer)?.get(setting)?.as_str())
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        Index {
            name: name.clone(),
            replicas: text("index.number_of_replicas").parse().unwrap_or_default(),
            refresh: text("index.refresh_interval"),
            durability: text("index.translog.durability").to_lowercase(),
        }
    };
    let is_theirs = |name: &str| !name.starts_with('.') && !name.starts_with("restante_bench_");
    let all = found.as_object().into_iter().flatten();
    all.filter(|(name, _)| is_theirs(name)).map(of).collect()
}

fn judge_connection(is_tls: bool, is_local: bool) -> EngineSetting {
    match (is_tls, is_local) {
        (true, _) => EngineSetting::safe(NAME, "connection", "TLS"),
        (false, true) => EngineSetting::safe(NAME, "connection", "plain, within this machine"),
        (false, false) => EngineSetting::safe(NAME, "connection", "plain").into_unsafe(
            "everybody on the way can read and change the mail",
            "set plugins.security.ssl.http.enabled: true and use https://",
        ),
    }
}

fn judge_nodes(nodes: u64) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, "data nodes", nodes.to_string());
    match nodes {
        0 | 1 => setting.into_unsafe(
            "while the node restarts nothing is found or indexed, and with its disk the index is gone",
            "run three nodes",
        ),
        2 => setting.into_unsafe(
            "when one of two nodes is gone, the other one can't become leader alone",
            "run three nodes; the third may be without data",
        ),
        _ => setting,
    }
}

/// The smallest heap of all nodes.
fn judge_heap(bytes: f64) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, "heap", format!("{:.2} GiB", bytes / GIB));
    let cure = "set -Xms and -Xmx to half of the machine's memory, at most 31g";
    match bytes {
        bytes if bytes < HEAP_MIN => setting
            .into_unsafe("bulks and searches are refused with 429, or end the node for want of memory", cure),
        bytes if bytes < HEAP_GOOD => setting
            .into_costly("a tenth of it bounds all bulks under way: clients have to send small ones", cure),
        bytes if bytes >= HEAP_MAX => {
            setting.into_costly("from 32 GiB on pointers take twice the memory", "set -Xms and -Xmx to 31g")
        }
        _ => setting,
    }
}

/// The fullest disk of all nodes.
fn judge_disk(used: f64) -> EngineSetting {
    let setting =
        EngineSetting::safe(NAME, "used share of the fullest disk", format!("{:.0} %", used * 100.0));
    let cure = "add disk or nodes, or delete old indexes";
    match used {
        used if used >= FLOOD_STAGE => {
            setting.into_unsafe("above the flood stage of 95 % indexes refuse all writes", cure)
        }
        used if used >= LOW_WATERMARK => {
            setting.into_costly("above the low watermark of 85 % no shard is placed on the node", cure)
        }
        _ => setting,
    }
}

fn judge_threshold(value: Option<&str>) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, THRESHOLD, value.unwrap_or("unknown"));
    match value {
        Some("false") => setting.into_unsafe(
            "nothing stops writes before the disk is full, and a full disk can damage shards",
            "set cluster.routing.allocation.disk.threshold_enabled: true",
        ),
        _ => setting,
    }
}

fn judge_indexes(indexes: &[Index]) -> Vec<EngineSetting> {
    let judge = |name: &str, is_bad: &dyn Fn(&Index) -> bool, value: &dyn Fn(&Index) -> String| {
        let bad: Vec<&Index> = indexes.iter().filter(|index| is_bad(index)).collect();
        let text = match (indexes.first(), bad.first()) {
            (None, _) => "no index yet".to_owned(),
            (Some(first), None) => format!("{} and the like in {} indexes", value(first), indexes.len()),
            (_, Some(first)) => {
                let names: Vec<&str> = bad.iter().take(NAMES_MAX).map(|index| index.name.as_str()).collect();
                let more = if bad.len() > NAMES_MAX { " and more" } else { "" };
                format!(
                    "{} in {} of {} indexes: {}{more}",
                    value(first),
                    bad.len(),
                    indexes.len(),
                    names.join(", ")
                )
            }
        };
        (EngineSetting::safe(NAME, name, text), !bad.is_empty())
    };
    let mut judged = Vec::new();
    let (replicas, is_bad) =
        judge("index.number_of_replicas", &|index| index.replicas == 0, &|index| index.replicas.to_string());
    judged.push(match is_bad {
        true => replicas.into_unsafe(
            "the loss of a node loses its part of these indexes",
            "set index.number_of_replicas to 1",
        ),
        false => replicas,
    });
    let (durability, is_bad) =
        judge("index.translog.durability", &|index| index.durability == "async", &|index| {
            index.durability.clone()
        });
    judged.push(match is_bad {
        true => durability.into_unsafe(
            "a crash loses the documents of the last seconds, which were acknowledged",
            "set index.translog.durability to request",
        ),
        false => durability,
    });
    let (refresh, is_bad) = judge(
        "index.refresh_interval",
        &|index| !seconds(&index.refresh).is_some_and(|seconds| (1.0..=REFRESH_MAX).contains(&seconds)),
        &|index| index.refresh.clone(),
    );
    judged.push(match is_bad {
        true => refresh.into_costly(
            "below a second it writes many small segments; above half a minute, or with -1, new mail is found late or never",
            "set index.refresh_interval to 1s",
        ),
        false => refresh,
    });
    judged
}

/// An interval such as `500ms`, `1s` or `2m`; `None` for "never".
fn seconds(interval: &str) -> Option<f64> {
    let digits = interval.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match interval.get(digits.len()..)? {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().filter(|number| *number >= 0.0).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::setting::Judgement, *};

    fn is_unsafe(setting: &EngineSetting) -> bool {
        matches!(setting.judgement, Judgement::Unsafe { .. })
    }

    fn is_costly(setting: &EngineSetting) -> bool {
        matches!(setting.judgement, Judgement::Costly { .. })
    }

    #[test]
    fn heaps_nodes_and_disks_are_judged() {
        assert!(is_unsafe(&judge_heap(0.25 * GIB)));
        assert!(is_costly(&judge_heap(GIB)));
        assert_eq!(judge_heap(8.0 * GIB).judgement, Judgement::Safe);
        assert!(is_costly(&judge_heap(40.0 * GIB)));
        assert!(is_unsafe(&judge_nodes(1)) && is_unsafe(&judge_nodes(2)));
        assert_eq!(judge_nodes(3).judgement, Judgement::Safe);
        assert_eq!(judge_disk(0.5).judgement, Judgement::Safe);
        assert!(is_costly(&judge_disk(0.9)) && is_unsafe(&judge_disk(0.96)));
        assert!(is_unsafe(&judge_threshold(Some("false"))));
        assert_eq!(judge_threshold(Some("true")).judgement, Judgement::Safe);
        assert!(is_unsafe(&judge_connection(false, false)));
    }

    #[test]
    fn what_was_set_at_run_time_counts_before_the_file() {
        let cluster = json!({"persistent": {THRESHOLD: "true"}, "defaults": {THRESHOLD: "false"}});
        assert_eq!(effective(&cluster, THRESHOLD), Some("true"));
        assert_eq!(effective(&json!({}), THRESHOLD), None);
    }

    #[test]
    fn indexes_with_unsafe_settings_are_named() {
        let index = |replicas: &str, durability: &str, refresh: &str| {
            json!({
                "settings": {"index.number_of_replicas": replicas, "index.translog.durability": durability},
                "defaults": {"index.refresh_interval": refresh, "index.translog.durability": "REQUEST"},
            })
        };
        let found = json!({
            "mail-1": index("1", "REQUEST", "1s"),
            "mail-2": index("0", "async", "-1"),
            ".security": index("0", "async", "-1"),
            "restante_bench_01234567": index("0", "async", "-1"),
        });
        let judged = judge_indexes(&indexes(&found));
        let [replicas, durability, refresh] = judged.as_slice() else { panic!("{judged:?}") };
        assert!(is_unsafe(replicas) && is_unsafe(durability) && is_costly(refresh), "{judged:?}");
        assert_eq!(replicas.value, "0 in 1 of 2 indexes: mail-2");
        let healthy = json!({"mail-1": index("1", "REQUEST", "1s")});
        assert!(judge_indexes(&indexes(&healthy)).iter().all(|setting| setting.judgement == Judgement::Safe));
        assert_eq!(judge_indexes(&[])[0].value, "no index yet");
    }

    #[test]
    fn intervals_are_read() {
        assert_eq!(seconds("500ms"), Some(0.5));
        assert_eq!(seconds("2m"), Some(120.0));
        assert_eq!((seconds("-1"), seconds("")), (None, None));
    }
}
