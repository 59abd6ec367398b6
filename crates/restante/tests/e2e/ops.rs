//! What is shipped for operators fits the server: alerts and dashboard name existing metrics, and each alert is
//! explained.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

use crate::{
    certificates::renew,
    mail,
    support::{Server, folder, free_address, wait_until},
};

fn shipped(path: &str) -> String {
    let path = Path::new("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: &str) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&shipped(path)).unwrap();
    assert_eq!(documents.len(), 1, "{path} is one document");
    documents.remove(0)
}

/// The metrics of servers, as Prometheus names their series. A metric with labels is shown after its first event, so these
/// servers were queried by a peer, have synced, one has an archive that fails, and one has received mail that was read.
fn exported() -> BTreeSet<String> {
    let (_guard_one, one_folder) = folder();
    let (_guard_two, two_folder) = folder();
    let cluster = ["--cluster-id=1", "--archive=memory:"];
    renew(&one_folder, "own");
    let secure = [
        "--websocket-secure-support",
        "--websocket-port=0",
        "--websocket-secure-cert-path=own.pem",
        "--websocket-secure-key-path=own.key",
    ];
    let one = Server::start_with(&one_folder, &[&cluster[..], &secure].concat());
    let storenode = ["--storenode", &one.peer_address()];
    let two = Server::start_with(&two_folder, &[&cluster[..], &storenode].concat());
    one.publish("kept");
    wait_until("a peer was answered", || one.metric("restante_waku_requests_total") > Some(0.0));
    let (_guard_three, three_folder) = folder();
    let away = Server::start_with(&three_folder, &["--archive=postgres://me@127.0.0.1:1/nowhere"]);
    assert_eq!(away.get("/store/v3/messages").status, 503);
    let (_guard_four, four_folder) = folder();
    mail::make_account(&four_folder);
    let with_mail = mail::start(&four_folder);
    with_mail.deliver(&mail::message("Tea", "with milk"));
    assert_eq!(with_mail.subjects(json!({})), ["Tea"]);
    [one, two, away, with_mail.server].iter().flat_map(series).collect()
}

fn series(server: &Server) -> Vec<String> {
    let text = server.get("/metrics").body;
    let mut series = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let endings: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "info" => &["_info"],
            "gauge" => &[""],
            other => panic!("{name} is a {other}, of which this test knows nothing"),
        };
        series.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    series
}

/// The command of the unit that a timer starts, as shipped, next to a server that runs as in its unit.
#[test]
fn the_backup_unit_backs_up_the_server_of_the_server_unit() {
    let (_guard, folder) = folder();
    std::fs::create_dir(folder.join("backups")).unwrap();
    let placed = |line: &str| {
        let line = line.replace("/usr/local/bin/restante", env!("CARGO_BIN_EXE_restante"));
        let line =
            line.replace("/etc/restante/restante.toml", folder.join("restante.toml").to_str().unwrap());
        let line = line.replace("/var/lib/restante-backups", folder.join("backups").to_str().unwrap());
        line.replace("/var/lib/restante", folder.join("state").to_str().unwrap()).replace("$$", "$")
    };
    let line_of = |unit: &str| {
        let unit = shipped(unit);
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        placed(line)
    };
    let (rest, operators) = (free_address().port(), free_address());
    let settings =
        format!("[rest]\nport = {rest}\n[operate]\nlisten = \"{operators}\"\n[waku.node]\ntcp_port = 0\n");
    std::fs::write(folder.join("restante.toml"), settings).unwrap();
    let mut server = std::process::Command::new("/bin/sh");
    server
        .args(["-c", &format!("exec {}", line_of("ops/restante.service"))])
        .env("RESTANTE_LOG__LEVEL", "warn");
    let server = Server::spawn(server);
    server.publish("kept");
    // systemd splits the line as a shell does.
    let elsewhere = folder.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mut backup = std::process::Command::new("/bin/sh");
    let taken = backup.args(["-c", &line_of("ops/restante-backup.service")]).current_dir(elsewhere).output();
    let taken = taken.unwrap();
    assert!(taken.status.success(), "{}", String::from_utf8_lossy(&taken.stderr));
    let made: Vec<_> =
        std::fs::read_dir(folder.join("backups")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(made[0].join("backup.json").is_file());
    let name = made[0].file_name().unwrap().to_str().unwrap();
    assert_eq!(name.split('-').map(str::len).collect::<Vec<_>>(), [4, 2, 2], "{name} is a date");
    // The page shows the command of the unit.
    let page = shipped("docs/operators.md");
    assert!(page.contains("restante-backup.timer") && page.contains("restante-backup.service"));
}

/// All words of a text that look like metrics of restante.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c));
    words
        .filter(|word| word.starts_with("restante_") && word.len() > "restante_".len())
        .map(str::to_owned)
        .collect()
}

fn rules() -> Vec<Yaml> {
    let rules = yaml("ops/prometheus-alerts.yml");
    let groups = rules["groups"].as_vec().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_vec().unwrap().clone()).collect()
}

#[test]
fn alerts_and_dashboard_name_metrics_that_there_are() {
    let exported = exported();
    for (path, metrics_min) in [("ops/prometheus-alerts.yml", 15), ("ops/grafana-dashboard.json", 40)] {
        let named = named(&shipped(path));
        assert!(named.len() >= metrics_min, "{path} names {} metrics: {named:?}", named.len());
        let unknown: Vec<&String> = named.difference(&exported).collect();
        assert!(unknown.is_empty(), "{path} names {unknown:?}, but there are {exported:#?}");
    }
}

#[test]
fn each_alert_is_whole_and_explained() {
    let page = shipped("docs/operators.md");
    let explained: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut alerts = BTreeSet::new();
    for rule in rules() {
        let text = |yaml: &Yaml| yaml.as_str().unwrap_or_default().to_owned();
        let name = text(&rule["alert"]);
        assert!(name.starts_with("Restante"), "{rule:?}");
        for (key, value) in [
            ("expr", &rule["expr"]),
            ("labels.severity", &rule["labels"]["severity"]),
            ("annotations.summary", &rule["annotations"]["summary"]),
            ("annotations.runbook", &rule["annotations"]["runbook"]),
        ] {
            assert!(!text(value).is_empty(), "{name} has no {key}");
        }
        assert!(["critical", "warning"].contains(&text(&rule["labels"]["severity"]).as_str()), "{name}");
        let runbook = format!("docs/operators.md#{}", name.to_ascii_lowercase());
        assert_eq!(text(&rule["annotations"]["runbook"]), runbook);
        let expression = text(&rule["expr"]);
        let depth =
            |open, close| expression.matches(open).count() as i64 - expression.matches(close).count() as i64;
        assert_eq!((depth('(', ')'), depth('[', ']'), depth('{', '}')), (0, 0, 0), "{name}: {expression}");
        assert!(alerts.insert(name.clone()), "{name} is there twice");
        assert!(explained.contains(name.as_str()), "docs/operators.md does not explain {name}");
    }
    let orphans: Vec<&&str> =
        explained.iter().filter(|name| name.starts_with("Restante") && !alerts.contains(**name)).collect();
    assert!(orphans.is_empty(), "docs/operators.md explains {orphans:?}, which are no alerts");
}

#[test]
fn the_dashboards_panels_are_whole() {
    let dashboard: Value = serde_json::from_str(&shipped("ops/grafana-dashboard.json")).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["type"] == "datasource"), "{variables:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 20);
    let mut taken: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has another panel's id");
        let place =
            |key: &str| panel["gridPos"][key].as_u64().unwrap_or_else(|| panic!("{title} has no {key}"));
        assert!(place("x") + place("w") <= 24, "{title} leaves the grid");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                let before = taken.insert((x, y), title);
                assert_eq!(before, None, "{title} lies upon another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            assert!(
                expression.contains("instance=~\"$instance\""),
                "{title} does not choose the server: {expression}"
            );
            assert!(!named(expression).is_empty(), "{title}: {expression}");
        }
    }
}

/// The parts of the compose file that can be checked without an engine that runs it.
#[test]
fn the_compose_file_starts_the_server_with_settings_that_there_are() {
    let compose = yaml("ops/compose.yaml");
    let service = &compose["services"]["restante"];
    let dockerfile = service["build"]["dockerfile"].as_str().unwrap();
    assert!(shipped(dockerfile).contains("ENTRYPOINT [\"restante\"]"));
    let (_guard, folder) = folder();
    let mut command = crate::support::restante(&folder);
    for (name, value) in service["environment"].as_hash().unwrap() {
        command.env(name.as_str().unwrap(), value.as_str().unwrap());
    }
    let flags = shipped(dockerfile);
    let flags = flags.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let flags: Vec<String> = serde_json::from_str(flags).unwrap();
    assert_eq!(flags[0], "serve");
    let checked = command.args(["config", "check"]).args(&flags[1..]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_units_command_is_one_that_there_is() {
    let unit = shipped("ops/restante.service");
    let command =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/restante ")).unwrap();
    let mut words: Vec<&str> = command.split_whitespace().collect();
    assert_eq!(words.remove(0), "serve");
    let (_guard, folder) = folder();
    // The configuration as installed: the file in the repository.
    fs::write(folder.join("restante.toml"), shipped("restante.toml")).unwrap();
    let words: Vec<&str> =
        words.into_iter().map(|word| word.strip_prefix("/etc/restante/").unwrap_or(word)).collect();
    crate::support::said(&folder, &[&["config", "check"], &words[..]].concat());
}
