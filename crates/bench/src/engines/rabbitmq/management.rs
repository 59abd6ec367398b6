//! What the management plugin reports about the broker: alarms, limits, queues.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, header::AUTHORIZATION};
use lapin::uri::AMQPUserInfo;
use serde_json::Value;
use tokio::time::timeout;

use super::{
    super::{
        EnginesArgs,
        http_client::{Address, HttpClient},
        setting::EngineSetting,
    },
    NAME,
};

const ANSWER_MAX: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// The most queues that are read.
const QUEUES_MAX: u64 = 500;
/// With less, a little waiting mail blocks all publishers.
const MEMORY_MIN: f64 = 1e9;
/// With less, the disk is full before the broker stops accepting messages.
const DISK_MIN: f64 = 2e8;
/// Nodes of a cluster that keeps its queues when one of them stops.
const NODES: usize = 3;

pub(super) struct Management {
    base: String,
    authorization: String,
    client: HttpClient<Empty<Bytes>>,
}

impl Management {
    /// A client for the plugin at that URL. Its user is that of the URL, or that of the broker.
    pub(super) fn new(url: &str, user: &AMQPUserInfo, args: &EnginesArgs) -> anyhow::Result<Self> {
        let address = Address::parse(url, "--rabbitmq-management")?;
        let of_broker = || format!("{}:{}", user.username, user.password);
        let credentials = match args.rabbitmq.rabbitmq_credentials {
            Some(_) => of_broker(),
            None => address.credentials.clone().unwrap_or_else(of_broker),
        };
        let authorization = format!("Basic {}", base64_simd::STANDARD.encode_to_string(credentials));
        Ok(Self { client: address.client(args)?, base: address.base, authorization })
    }

    async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let advice =
            || format!("can't ask the management of RabbitMQ for {path}: look at --rabbitmq-management");
        let request = Request::get(format!("{}{path}", self.base))
            .header(AUTHORIZATION, &self.authorization)
            .body(Empty::new())
            .with_context(advice)?;
        let asking = async {
            let answer = self.client.request(request).await?;
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    bail!("the user needs the tag 'monitoring': rabbitmqctl set_user_tags <user> monitoring")
                }
                other => bail!("it answers {other}"),
            }
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| anyhow!("{error}"))?.to_bytes();
            Ok(serde_json::from_slice(&body)?)
        };
        timeout(ANSWER_MAX, asking)
            .await
            .map_err(|_| anyhow!("no answer within {} s", ANSWER_MAX.as_secs()))
            .and_then(|answered| answered)
            .with_context(advice)
    }

    /// The settings and alarms of all nodes, judged.
    pub(super) async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let overview = self.get("/api/overview").await?;
        let version = overview.get("rabbitmq_version").and_then(Value::as_str).unwrap_or("unknown");
        let nodes = self.get("/api/nodes").await?;
        let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
        let queues =
            self.get(&format!("/api/queues?page=1&page_size={QUEUES_MAX}&disable_stats=true")).await?;
        let mut settings = vec![EngineSetting::safe(NAME, "version", version), judge_nodes(nodes)];
        settings.extend(nodes.iter().flat_map(judge_node));
        settings.push(judge_queues(&queues, nodes.len()));
        Ok(settings)
    }

    /// The folder with the queues of the first node.
    pub(super) async fn folder(&self) -> anyhow::Result<Option<PathBuf>> {
        let nodes = self.get("/api/nodes").await?;
        Ok(nodes.pointer("/0/db_dir").and_then(Value::as_str).map(PathBuf::from))
    }
}

/// The setting of a broker whose management plugin is not named.
pub(super) fn unknown() -> EngineSetting {
    EngineSetting::safe(NAME, "alarms and limits", "unknown: name the management with --rabbitmq-management")
}

fn number(node: &Value, name: &str) -> Option<f64> {
    node.get(name).and_then(Value::as_f64)
}

fn is_set(node: &Value, name: &str) -> bool {
    node.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn judge_nodes(nodes: &[Value]) -> EngineSetting {
    let running = nodes.iter().filter(|node| is_set(node, "running")).count();
    let is_parted = |node: &Value| {
        node.get("partitions").and_then(Value::as_array).is_some_and(|other| !other.is_empty())
    };
    let setting = EngineSetting::safe(NAME, "nodes running", format!("{running} of {}", nodes.len()));
    if nodes.iter().any(is_parted) {
        return setting.into_unsafe(
            "nodes lost each other and continued separately: their queues differ",
            "restart the nodes of the smaller part, and set cluster_partition_handling = pause_minority",
        );
    }
    if running < nodes.len() {
        return setting
            .into_unsafe("queues have fewer copies", "start the missing node: rabbitmqctl cluster_status");
    }
    if nodes.len() < NODES {
        return setting.into_unsafe(
            "a queue has one copy: when this node stops, no mail moves; when its disk breaks, waiting mail is lost",
            "run three nodes, with quorum queues",
        );
    }
    setting
}

/// The alarms and limits of one node.
fn judge_node(node: &Value) -> Vec<EngineSetting> {
    let name = node.get("name").and_then(Value::as_str).unwrap_or("a node");
    let mut judged = Vec::new();
    for (field, alarm, cure) in [
        (
            "mem_alarm",
            "memory alarm",
            "let consumers drain the queues (rabbitmqctl list_queues name messages consumers memory), give the node more memory",
        ),
        ("disk_free_alarm", "disk alarm", "free space on the disk below its queues"),
    ] {
        let is_on = is_set(node, field);
        let setting =
            EngineSetting::safe(NAME, &format!("{alarm} of {name}"), if is_on { "ON" } else { "off" });
        judged.push(match is_on {
            true => {
                setting.into_unsafe("the broker takes no messages from anybody until the alarm is over", cure)
            }
            false => setting,
        });
    }
    let memory = number(node, "mem_limit");
    if let Some(limit) = memory {
        let setting =
            EngineSetting::safe(NAME, &format!("vm_memory_high_watermark of {name}"), megabytes(limit));
        judged.push(if limit < MEMORY_MIN {
            setting.into_costly(
                "little mail that waits is enough to stop all who send",
                "set vm_memory_high_watermark.relative = 0.6, on a node with 2 GB or more",
            )
        } else {
            setting
        });
    }
    if let Some(limit) = number(node, "disk_free_limit") {
        let setting = EngineSetting::safe(NAME, &format!("disk_free_limit of {name}"), megabytes(limit));
        let cure = "set disk_free_limit.relative = 1.0: as much as the memory";
        judged.push(if limit < DISK_MIN {
            setting.into_unsafe(
                "the disk can be full before the broker stops to take messages: it ends, and may lose them",
                cure,
            )
        } else if memory.is_some_and(|memory| limit < memory) {
            setting
                .into_costly("the queues in memory may not fit when the broker writes them to the disk", cure)
        } else {
            setting
        });
    }
    judged
}

/// Judges how the operator's durable queues are replicated.
fn judge_queues(queues: &Value, nodes: usize) -> EngineSetting {
    let items = queues.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let count = |kind: &str| {
        let is_kind = |queue: &&Value| {
            is_set(queue, "durable") && queue.get("type").and_then(Value::as_str) == Some(kind)
        };
        items.iter().filter(is_kind).count()
    };
    let (classic, quorum, stream) = (count("classic"), count("quorum"), count("stream"));
    let value = format!("{classic} classic, {quorum} quorum, {stream} stream");
    let setting = EngineSetting::safe(NAME, "durable queues", value);
    if classic == 0 || nodes < 2 {
        return setting;
    }
    setting.into_unsafe(
        "a classic queue is on one node: while that node is away its mail is stuck, and lost with its disk",
        "declare these queues anew with x-queue-type = quorum",
    )
}

fn megabytes(bytes: f64) -> String {
    format!("{:.0} MB", bytes / 1e6)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::super::setting::Judgement, *};

    fn node(mem_alarm: bool, mem_limit: f64, disk_free_limit: f64) -> Value {
        json!({"name": "rabbit@a", "running": true, "partitions": [], "mem_alarm": mem_alarm, "disk_free_alarm": false,
               "mem_limit": mem_limit, "disk_free_limit": disk_free_limit})
    }

    fn is_unsafe(setting: &EngineSetting) -> bool {
        matches!(setting.judgement, Judgement::Unsafe { .. })
    }

    fn is_costly(setting: &EngineSetting) -> bool {
        matches!(setting.judgement, Judgement::Costly { .. })
    }

    #[test]
    fn alarms_and_low_limits_are_named() {
        let names = |node: &Value, wanted: fn(&EngineSetting) -> bool| -> Vec<String> {
            judge_node(node).into_iter().filter(wanted).map(|setting| setting.name).collect()
        };
        let good = node(false, 2e9, 2e9);
        assert!(names(&good, is_unsafe).is_empty() && names(&good, is_costly).is_empty());
        assert_eq!(names(&node(true, 2e9, 2e9), is_unsafe), ["memory alarm of rabbit@a"]);
        let low = node(false, 5e8, 5e7);
        assert_eq!(names(&low, is_unsafe), ["disk_free_limit of rabbit@a"]);
        assert_eq!(names(&low, is_costly), ["vm_memory_high_watermark of rabbit@a"]);
        assert_eq!(names(&node(false, 2e9, 1e9), is_costly), ["disk_free_limit of rabbit@a"]);
        // For a node that is down, only its name is reported.
        assert!(!judge_node(&json!({"name": "rabbit@b"})).iter().any(is_unsafe));
    }

    #[test]
    fn few_parted_or_stopped_nodes_are_unsafe() {
        let up = node(false, 2e9, 2e9);
        let down = json!({"name": "rabbit@b", "running": false});
        let parted = json!({"name": "rabbit@c", "running": true, "partitions": ["rabbit@a"]});
        assert!(!is_unsafe(&judge_nodes(&[up.clone(), up.clone(), up.clone()])));
        for nodes in [vec![up.clone()], vec![up.clone(), up.clone(), down], vec![up.clone(), up, parted]] {
            assert!(is_unsafe(&judge_nodes(&nodes)), "{nodes:?}");
        }
    }

    #[test]
    fn durable_classic_queues_of_a_cluster_are_unsafe() {
        let queues = json!({"items": [
            {"name": "a", "type": "classic", "durable": true},
            {"name": "b", "type": "classic", "durable": false},
            {"name": "c", "type": "quorum", "durable": true},
        ]});
        let setting = judge_queues(&queues, 3);
        assert_eq!(setting.value, "1 classic, 1 quorum, 0 stream");
        assert!(is_unsafe(&setting) && !is_unsafe(&judge_queues(&queues, 1)));
        assert!(!is_unsafe(&judge_queues(&json!({"items": []}), 3)));
    }
}
