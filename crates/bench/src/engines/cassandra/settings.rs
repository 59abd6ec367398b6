//! The settings of a node, and whether they are safe.

use std::collections::BTreeMap;

use scylla::client::session::Session;

use super::{super::setting::EngineSetting, NAME, process};

/// A node with less spends its time on garbage collection.
const HEAP_MIB_MIN: u64 = 1_024;
/// With this much, collections are hardly noticed.
const HEAP_MIB_GOOD: u64 = 4_096;

/// What one node reports about itself, in the form of its settings.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    version: String,
    /// By name; empty if the node doesn't report them (before Cassandra 4.0, or to a user without the right to read them).
    settings: BTreeMap<String, String>,
    heap_mib: Option<u64>,
    /// Whether the bench connected as a user.
    has_user: bool,
}

impl Facts {
    /// Queries the node that answers.
    pub(super) async fn ask(session: &Session, is_local: bool, has_user: bool) -> anyhow::Result<Self> {
        let query = "SELECT release_version FROM system.local";
        let answer = session.query_unpaged(query, ()).await?.into_rows_result()?;
        let (version,) = answer.first_row::<(String,)>()?;
        let settings = read_settings(session).await.unwrap_or_default();
        let mut facts = Self { version, settings, heap_mib: None, has_user };
        if is_local {
            facts.heap_mib = process::heap_mib(&process::command_lines(), facts.commit_log_folder());
        }
        Ok(facts)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    pub(super) fn commit_log_folder(&self) -> Option<&str> {
        self.get("commitlog_directory")
    }

    /// Whether a write is answered only after it is on disk.
    pub(super) fn writes_wait_for_sync(&self) -> bool {
        self.get("commitlog_sync").is_some_and(|mode| mode != "periodic")
    }

    /// Round trips of a conditional commit: that of the client; then Paxos v1 prepares, reads, proposes and commits, v2
    /// prepares and reads at once.
    pub(super) fn conditional_round_trips(&self) -> f64 {
        if self.has_new_paxos() { 4.0 } else { 5.0 }
    }

    fn has_new_paxos(&self) -> bool {
        self.get("paxos_variant").is_some_and(|variant| variant.starts_with("v2"))
    }

    /// Whether the nodes require a password.
    pub(super) fn asks_for_passwords(&self) -> bool {
        // With parameters, its name is `authenticator.class_name`.
        let mut authenticators = self.settings.iter().filter(|(name, _)| name.starts_with("authenticator"));
        self.has_user && !authenticators.any(|(_, value)| value.contains("AllowAll"))
    }

    /// The settings that matter for safety and speed.
    pub(super) fn judge(&self) -> Vec<EngineSetting> {
        let mut judged =
            vec![EngineSetting::safe(NAME, "version", &self.version), self.judge_heap(), self.judge_users()];
        if self.settings.is_empty() {
            let unknown =
                "unknown: the node doesn't report it (system_views.settings, from Cassandra 4.0 on)";
            judged.push(EngineSetting::safe(NAME, "commitlog_sync", unknown));
            return judged;
        }
        for name in ["commitlog_sync", "disk_failure_policy", "auto_snapshot", "paxos_variant"] {
            if let Some(value) = self.get(name) {
                judged.push(judge_setting(name, value));
            }
        }
        judged
    }

    fn judge_users(&self) -> EngineSetting {
        if self.asks_for_passwords() {
            return EngineSetting::safe(NAME, "users", "by password");
        }
        EngineSetting::safe(NAME, "users", "anybody").into_unsafe(
            "who reaches the port can read and delete all mail",
            "set authenticator: PasswordAuthenticator, and give the server a user of its own",
        )
    }

    fn judge_heap(&self) -> EngineSetting {
        let Some(heap) = self.heap_mib else {
            let unknown = "unknown: only the command line of the node has it (-Xmx)";
            return EngineSetting::safe(NAME, "heap", unknown);
        };
        let setting = EngineSetting::safe(NAME, "heap", format!("{heap} MiB"));
        let cure = "set -Xms and -Xmx in jvm-server.options to a quarter of the memory, from 4G to 31G";
        if heap < HEAP_MIB_MIN {
            let because = "the node stops to collect garbage, refuses work, and ends when memory is used up";
            return setting.into_unsafe(because, cure);
        }
        if heap < HEAP_MIB_GOOD {
            return setting
                .into_costly("garbage is collected often, which shows in the slowest answers", cure);
        }
        setting
    }
}

async fn read_settings(session: &Session) -> anyhow::Result<BTreeMap<String, String>> {
    let query = "SELECT name, value FROM system_views.settings";
    let answer = session.query_unpaged(query, ()).await?.into_rows_result()?;
    let mut settings = BTreeMap::new();
    for row in answer.rows::<(String, Option<String>)>()? {
        let (name, value) = row?;
        if let Some(value) = value {
            settings.insert(name, value);
        }
    }
    Ok(settings)
}

fn judge_setting(name: &str, value: &str) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, name, value);
    match name {
        "commitlog_sync" if value == "periodic" => setting.into_unsafe(
            "a write is answered before it is on the disk: a power cut of all replicas loses what was acknowledged in the \
             last seconds (commitlog_sync_period)",
            "set commitlog_sync: batch or group, or place the replicas where no power cut takes all of them",
        ),
        "disk_failure_policy" if value == "ignore" => setting.into_unsafe(
            "a node with a broken disk keeps running and answers without the rows that it can't read",
            "set disk_failure_policy: stop",
        ),
        "auto_snapshot" if value == "true" => setting.into_costly(
            "a dropped table keeps its space on the disk (from 4.1 on not where the table has allow_auto_snapshot = false, \
             as those of this run)",
            "remove old snapshots: nodetool listsnapshots, nodetool clearsnapshot",
        ),
        "paxos_variant" if !value.starts_with("v2") => setting.into_costly(
            "a conditional commit takes a round trip more between the nodes",
            "set paxos_variant: v2 and paxos_state_purging: repaired, and run nodetool repair --paxos-only every hour",
        ),
        _ => setting,
    }
}

pub(super) fn judge_nodes(reachable: usize, nodes: usize) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, "nodes reachable", format!("{reachable} of {nodes}"));
    if reachable == nodes {
        return setting;
    }
    setting.into_unsafe(
        "what is written meanwhile has fewer copies",
        "look at nodetool status, and whether this machine reaches all nodes",
    )
}

/// Judges how many copies the rows of this run have.
pub(super) fn judge_replicas(replicas: usize) -> EngineSetting {
    let setting = EngineSetting::safe(NAME, "replicas in this run", replicas.to_string());
    if replicas >= super::REPLICAS {
        return setting;
    }
    setting.into_unsafe(
        "when one node stops, mail can't be read or written; when its disk breaks, mail is lost",
        "run three nodes or more, and keep three replicas of each keyspace",
    )
}

/// A keyspace of the operator.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    pub(super) name: String,
    pub(super) durable_writes: bool,
    pub(super) replication: BTreeMap<String, String>,
}

impl Keyspace {
    /// What is unsafe in it; empty for most.
    pub(super) fn judge(
        &self,
        datacenter: &str,
        nodes: usize,
        asks_for_passwords: bool,
    ) -> Vec<EngineSetting> {
        let has_users = self.name == "system_auth" && asks_for_passwords;
        let is_of_operator = !self.name.starts_with("system");
        let mut judged = Vec::new();
        if is_of_operator && !self.durable_writes {
            let setting = EngineSetting::safe(NAME, &format!("durable_writes of {}", self.name), "false");
            judged.push(setting.into_unsafe(
                "writes to this keyspace leave out the commit log: a crash loses them",
                &format!("ALTER KEYSPACE {} WITH durable_writes = true", self.name),
            ));
        }
        let wanted = nodes.min(super::REPLICAS);
        let replicas = self.replicas(datacenter);
        if let Some(replicas) =
            replicas.filter(|replicas| *replicas < wanted && (is_of_operator || has_users))
        {
            let setting =
                EngineSetting::safe(NAME, &format!("replicas of {}", self.name), replicas.to_string());
            let because = if has_users {
                "when the node with a user's password stops, that user can't connect to any node"
            } else {
                "when one node stops, some rows can't be read or written"
            };
            let cure = format!(
                "ALTER KEYSPACE {} WITH replication = {{'class': 'NetworkTopologyStrategy', '{datacenter}': {wanted}}}, \
                 then nodetool repair {}",
                self.name, self.name
            );
            judged.push(setting.into_unsafe(because, &cure));
        }
        judged
    }

    /// Copies of a row in that data center; `None` if the keyspace has no copies there, or has one on every node.
    fn replicas(&self, datacenter: &str) -> Option<usize> {
        let factor =
            self.replication.get(datacenter).or_else(|| self.replication.get("replication_factor"))?;
        factor.split('/').next()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::setting::Judgement, *};

    fn facts(settings: &[(&str, &str)]) -> Facts {
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Facts { version: "5.0.9".into(), settings, heap_mib: Some(8_192), has_user: true }
    }

    fn is_unsafe(setting: &EngineSetting) -> bool {
        matches!(setting.judgement, Judgement::Unsafe { .. })
    }

    #[test]
    fn what_loses_acknowledged_rows_is_unsafe() {
        let all = facts(&[
            ("commitlog_sync", "periodic"),
            ("disk_failure_policy", "ignore"),
            ("authenticator.class_name", "AllowAllAuthenticator"),
        ]);
        assert!(!all.writes_wait_for_sync());
        let unsafe_ones: Vec<_> =
            all.judge().into_iter().filter(is_unsafe).map(|setting| setting.name).collect();
        assert_eq!(unsafe_ones, ["users", "commitlog_sync", "disk_failure_policy"]);
        let good = facts(&[
            ("commitlog_sync", "group"),
            ("disk_failure_policy", "stop"),
            ("authenticator", "org.apache.cassandra.auth.PasswordAuthenticator"),
            ("auto_snapshot", "false"),
            ("paxos_variant", "v2_without_linearizable_reads"),
        ]);
        assert!(good.writes_wait_for_sync() && good.asks_for_passwords());
        for setting in good.judge() {
            assert_eq!(setting.judgement, Judgement::Safe, "{}", setting.name);
        }
        assert!(!Facts { has_user: false, ..good }.asks_for_passwords());
        for (name, value) in [("auto_snapshot", "true"), ("paxos_variant", "v1")] {
            assert!(matches!(judge_setting(name, value).judgement, Judgement::Costly { .. }), "{name}");
        }
    }

    #[test]
    fn heaps_are_judged_by_their_size() {
        let of = |heap_mib| Facts { heap_mib, ..facts(&[]) }.judge_heap();
        assert!(is_unsafe(&of(Some(256))));
        assert!(matches!(of(Some(1_024)).judgement, Judgement::Costly { .. }));
        assert_eq!(of(Some(8_192)).judgement, Judgement::Safe);
        assert!(of(None).value.starts_with("unknown"));
    }

    #[test]
    fn a_node_that_tells_nothing_is_judged_all_the_same() {
        let settings = facts(&[]).judge();
        assert!(settings.iter().any(|setting| setting.value.starts_with("unknown")), "{settings:?}");
    }

    #[test]
    fn few_replicas_and_lost_nodes_are_unsafe() {
        for (replicas, expected) in [(1, true), (2, true), (3, false)] {
            assert_eq!(is_unsafe(&judge_replicas(replicas)), expected, "{replicas}");
        }
        assert!(is_unsafe(&judge_nodes(2, 3)) && !is_unsafe(&judge_nodes(3, 3)));
    }

    #[test]
    fn keyspaces_are_named_when_a_node_or_a_crash_takes_their_rows() {
        let keyspace = |name: &str, factor: &str, durable_writes| Keyspace {
            name: name.to_owned(),
            durable_writes,
            replication: [("dc1".to_owned(), factor.to_owned())].into(),
        };
        let names = |keyspace: Keyspace, nodes| -> Vec<String> {
            keyspace.judge("dc1", nodes, true).into_iter().map(|setting| setting.name).collect()
        };
        assert_eq!(names(keyspace("mail", "2", false), 3), ["durable_writes of mail", "replicas of mail"]);
        assert_eq!(names(keyspace("mail", "1", true), 1), [""; 0]);
        assert_eq!(names(keyspace("system_auth", "1", true), 3), ["replicas of system_auth"]);
        assert_eq!(names(keyspace("system_traces", "1", false), 3), [""; 0]);
        assert_eq!(keyspace("system_auth", "1", true).judge("dc1", 3, false), []);
        assert_eq!(keyspace("mail", "1", true).judge("dc2", 3, true), []);
        let everywhere = Keyspace { replication: BTreeMap::new(), ..keyspace("mail", "1", true) };
        assert_eq!(everywhere.judge("dc1", 3, true), []);
    }
}
