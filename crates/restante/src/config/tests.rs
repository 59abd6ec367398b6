use std::collections::BTreeSet;

use super::*;

fn set(file: &str, variables: &[(&str, &str)]) -> Result<Effective, ConfigError> {
    let mut effective = Effective::defaults();
    for setting in file::parse(file, Path::new("some.toml"))? {
        effective.set(setting)?;
    }
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    for setting in env::read(variables, &effective)? {
        effective.set(setting)?;
    }
    effective.check_together()?;
    Ok(effective)
}

fn error(file: &str, variables: &[(&str, &str)]) -> String {
    let error = set(file, variables).unwrap_err().to_string();
    assert!(!error.contains('\n'), "an error is one line: {error}");
    error
}

/// The file in the repository documents every key, so it must match the code.
#[test]
fn the_file_in_the_repository_has_every_key_at_its_default() {
    let text = include_str!("../../../../restante.toml");
    let effective = set(text, &[]).unwrap();
    assert_eq!(effective.config, Config::default());
    let set: Vec<&str> = effective.iter().map(|(key, ..)| key).filter(|key| effective.is_set(key)).collect();
    assert_eq!(set, Vec::<&str>::new(), "a server without the file behaves the same");

    let in_file = file::parse(text, Path::new("restante.toml")).unwrap();
    let in_file: BTreeSet<String> = in_file.into_iter().map(|setting| setting.key).collect();
    let known: BTreeSet<String> = Effective::defaults().values.into_keys().collect();
    assert_eq!(in_file, known);
}

#[test]
fn stronger_sources_win_and_origins_are_kept() {
    let file = "[rest]\nport = 1\naddress = \"::1\"\n\n[log]\nlevel = \"warn\"\n";
    let mut effective =
        set(file, &[("RESTANTE_REST__PORT", "2"), ("RESTANTE_WAKU__CLUSTER_ID", "16")]).unwrap();
    effective
        .set(Setting { key: "log.level".into(), value: "debug".into(), origin: Origin::Flag("--log-level") })
        .unwrap();

    assert_eq!(effective.config.rest.port, 2);
    assert_eq!(effective.config.waku.rules.cluster_id, Some(16));
    let origin = |key: &str| effective.values[key].1.to_string();
    assert_eq!(origin("rest.address"), "some.toml:3");
    assert_eq!(origin("rest.port"), "environment RESTANTE_REST__PORT");
    assert_eq!(origin("log.level"), "flag --log-level");
    assert_eq!(origin("log.format"), "default");
}

#[test]
fn a_default_counts_as_set_where_it_is_not_in_a_file() {
    let of_file = |text: &str| set(text, &[]).unwrap().is_set("rest.port");
    assert!(!of_file("") && !of_file("rest.port = 8645") && of_file("rest.port = 9000"));
    assert!(set("", &[("RESTANTE_REST__PORT", "8645")]).unwrap().is_set("rest.port"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    let effective = Effective::defaults();
    for (key, value, _) in effective.iter() {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Array(items) => {
                let text = |item: &Value| item.as_str().map_or_else(|| item.to_string(), str::to_owned);
                items.iter().map(text).collect::<Vec<_>>().join(",")
            }
            other => other.to_string(),
        };
        let name = env::variable(key);
        let set = set("", &[(&name, &text)]).unwrap();
        assert_eq!(set.config, Config::default(), "{name}={text}");
        assert_eq!(set.values[key].1, Origin::Environment(name));
    }
}

#[test]
fn lists_are_written_with_commas_in_the_environment() {
    let variables = [("RESTANTE_WAKU__SHARDS", "0, 3"), ("RESTANTE_WAKU__CLUSTER_ID", "1")];
    assert_eq!(set("", &variables).unwrap().config.waku.rules.shards, [0, 3]);
}

#[test]
fn unknown_keys_are_errors_that_name_the_nearest() {
    assert_eq!(
        error("[rest]\nprot = 1\n", &[]),
        "some.toml:2: there is no setting 'rest.prot': did you mean 'rest.port'?"
    );
    assert_eq!(error("\n\n[tls]\ncert = 1", &[]), "some.toml:4: there is no setting 'tls.cert'");
    assert_eq!(error("rest = 5", &[]), "some.toml:1: 'rest' is a section and takes no value");
    assert_eq!(
        error("", &[("RESTANTE_ARCHIVE_URL", "x")]),
        "there is no setting for the environment variable 'RESTANTE_ARCHIVE_URL': did you mean 'RESTANTE_ARCHIVE__URL'?"
    );
    assert!(error("", &[("RESTANTE_TLS__CERT", "x")]).contains("RESTANTE_TLS__CERT"));
}

#[test]
fn variables_of_others_are_left_alone() {
    let variables = [
        ("RESTANTE_TEST_REQUIRE", "log"),
        ("RESTANTE_SERVICES__DIR", "x"),
        ("RESTANTE_PORT", "tcp://1"),
        ("HOME", "/"),
    ];
    assert_eq!(set("", &variables).unwrap().config, Config::default());
}

/// Checks settings files, each with the beginning of the expected error.
fn assert_errors(files: &[(&str, &str)]) {
    for (file, expected) in files {
        let error = error(file, &[]);
        assert!(error.starts_with(expected), "{file}\n  got      {error}\n  expected {expected}");
    }
}

#[test]
fn wrong_values_name_the_key_and_the_place() {
    assert_errors(&[
        ("rest.port = 70000", "some.toml:1: rest.port: it must be a whole number"),
        ("rest.port = \"http\"", "some.toml:1: rest.port: it must be a whole number"),
        ("rest.address = \"localhost\"", "some.toml:1: rest.address: it must be an IP address"),
        ("server.grace_seconds = 0", "some.toml:1: server.grace_seconds: it must be a whole number"),
        (
            "rest.enabled = false\nwaku.node.enabled = false\nmail.enabled = false",
            "some.toml:1: rest.enabled: a server has a door",
        ),
        (
            "rest.live_origins = [\"chat.example\"]",
            "some.toml:1: rest.live_origins: 'chat.example' is no origin: write it as https://<host>",
        ),
        (
            "operate.listen = \"0.0.0.0:8646\"",
            "some.toml:1: operate.listen: beyond loopback operators need a token",
        ),
        (
            "operate.listen = \"127.0.0.1:8645\"",
            "some.toml:1: operate.listen: 8645 is the port of rest.port, too",
        ),
        ("log.level = \"loud\"", "some.toml:1: log.level: log level 'loud' is not understood"),
        ("log.format = \"xml\"", "some.toml:1: log.format: it must be one of"),
        ("\n[rest\n", "some.toml:2: "),
        ("a = 1\na = 2", "some.toml:2: duplicate key"),
        (
            "rest.requests_max = 0",
            "some.toml:1: rest.requests_max: it must be a whole number of at least 1, and is 0",
        ),
        ("rest.console = \"on\"", "some.toml:1: rest.console: it must be one of auto, off, and is \"on\""),
        ("rest.hosts = [\"a:1\"]", "some.toml:1: rest.hosts: 'a:1' is no host"),
    ]);
    let error = error("", &[("RESTANTE_REST__PORT", "http")]);
    assert!(
        error.starts_with(
            "environment RESTANTE_REST__PORT: rest.port: it must be a whole number from 0 to 65535"
        ),
        "{error}"
    );
}

#[test]
fn wrong_values_of_roles_name_the_key_and_the_place() {
    assert_errors(&[
        ("archive.url = \"tape:1\"", "some.toml:1: archive.url: archive URL 'tape:1' is not understood"),
        (
            "archive.retention = \"age:1\"",
            "some.toml:1: archive.retention: retention rule 'age:1' is not understood",
        ),
        (
            "archive.tandem = \"log:data/archive\"",
            "some.toml:1: archive.tandem: an archive can't follow itself",
        ),
        (
            "archive.tandem = \"memory:\"\narchive.spool.bytes_max = 0",
            "some.toml:1: archive.tandem: what the second archive does not have yet waits in a spool",
        ),
        ("sessions.url = \"rabbit:\"", "some.toml:1: sessions.url: sessions URL 'rabbit:' is not understood"),
        (
            "records.url = \"log:data\"",
            "some.toml:1: records.url: records URL 'log:data' is not understood: use memory:, lmdb:<folder>, postgres:",
        ),
        (
            "blobs.url = \"lmdb:data\"",
            "some.toml:1: blobs.url: blobs URL 'lmdb:data' is not understood: use memory:, files:<folder> or",
        ),
        ("records.keep_destroyed_seconds = 0", "some.toml:1: records.keep_destroyed_seconds: it must be"),
        (
            "blobs.sweep_grace_seconds = 3599",
            "some.toml:1: blobs.sweep_grace_seconds: who has uploaded a blob may refer to it for an hour",
        ),
        (
            "blobs.s3.endpoint = \"https://key:Secret@host\"",
            "some.toml:1: blobs.s3.endpoint: name a host and a port alone",
        ),
        (
            "records.url = \"postgres://u@h/db?sslmode=foo\"",
            "some.toml:1: records.url: records URL postgres://u@h/db?sslmode=foo has the unknown sslmode 'foo'",
        ),
        (
            "archive.url = \"postgres://u@h/db?nope=1\"",
            "some.toml:1: archive.url: archive URL postgres://u@h/db?nope=1 has the unknown parameter 'nope'",
        ),
        (
            "records.url = \"postgres://u@h:99999/db\"",
            "some.toml:1: records.url: records URL postgres://u@h:99999/db has a port that can't be used",
        ),
        ("archive.url = \"postgres://\"", "some.toml:1: archive.url: archive URL postgres:// names no host"),
        (
            "records.url = \"postgres:foo\"",
            "some.toml:1: records.url: records URL 'postgres:foo' is not understood: use postgres://<user>@<host>/<database>",
        ),
        (
            "queue.url = \"http://h\"",
            "some.toml:1: queue.url: queue URL 'http://h' is not understood: use local: or amqp://",
        ),
        (
            "search.opensearch.prefix = \"-x\"",
            "some.toml:1: search.opensearch.prefix: '-x' is no name for an index: ",
        ),
        (
            "blobs.files.pack_bytes = 1000",
            "some.toml:1: blobs.files.pack_bytes: a blob that lies in a pack file must fit into one",
        ),
        ("[sessions]\nper_user_max = 0", "some.toml:2: sessions.per_user_max: "),
        (
            "[sessions.redis]\nlease_ms = 2999\ntimeout_ms = 1000",
            "some.toml:2: sessions.redis.lease_ms: a lease is renewed 3 times in its length",
        ),
        ("sessions.redis.prefix = \"a:u\"", "some.toml:1: sessions.redis.prefix: it has a colon"),
        (
            "archive.log.segment_bytes = 0",
            "some.toml:1: archive.log.segment_bytes: it must be a whole number of at least 1, and is 0",
        ),
        (
            "archive.postgres.read_connections = 0",
            "some.toml:1: archive.postgres.read_connections: it must be a whole number of at least 1, and is 0",
        ),
        (
            "sessions.redis.timeout_ms = \"long\"",
            "some.toml:1: sessions.redis.timeout_ms: it must be a whole number of at least 1, and is \"long\"",
        ),
    ]);
}

#[test]
fn wrong_values_of_the_waku_door_name_the_key_and_the_place() {
    assert_errors(&[
        (
            "waku.cluster_id = 65536",
            "some.toml:1: waku.cluster_id: 65536 is neither -1 (any) nor from 0 to 65535",
        ),
        ("waku.shards = [1]", "some.toml:1: waku.shards: a shard belongs to a cluster"),
        (
            "waku.shards_in_network = 2000",
            "some.toml:1: waku.shards_in_network: a network has at most 1024 shards",
        ),
        (
            "waku.node.static_peers = [\"/ip4/10.0.0.1/tcp/60000\"]",
            "some.toml:1: waku.node.static_peers: '/ip4/10.0.0.1/tcp/60000' is no peer's address: write it as",
        ),
        (
            "waku.node.external_addresses = [\"here\"]",
            "some.toml:1: waku.node.external_addresses: 'here' is no",
        ),
        (
            "waku.node.websocket_secure = true",
            "some.toml:1: waku.node.websocket_secure: secure WebSockets need",
        ),
        (
            "waku.node.certificate_file = \"cert.pem\"",
            "some.toml:1: waku.node.certificate_file: a certificate is for secure WebSockets",
        ),
        (
            "waku.node.key = \"0102030405060708090a0b0c0d0e0f1011\"",
            "some.toml:1: waku.node.key: a node key has 64",
        ),
        ("waku.rates.store = \"many\"", "some.toml:1: waku.rates.store: not a rate: \"many\""),
        (
            "waku.max_message_bytes = 0",
            "some.toml:1: waku.max_message_bytes: it must be a whole number of at least 1, and is 0",
        ),
        (
            "waku.shards = [70000]",
            "some.toml:1: waku.shards: it must be a whole number from 0 to 65535, and is 70000",
        ),
        ("waku.protocols.store = 1", "some.toml:1: waku.protocols.store: it must be true or false, and is 1"),
        (
            "waku.limits.idle_timeout_seconds = 0",
            "some.toml:1: waku.limits.idle_timeout_seconds: it must be a whole number of at least 1, and is 0",
        ),
    ]);
}

#[test]
fn wrong_settings_of_the_public_listener_are_named() {
    for (file, expected) in [
        (
            "public.listen = [\"127.0.0.1:443\", \"0.0.0.0:8646\"]",
            "some.toml:1: public.listen: 8646 is the port of operate.listen, too",
        ),
        (
            "public.listen = \"localhost:443\"",
            "some.toml:1: public.listen: expected an IP address with a port",
        ),
        ("public.url = \"example.org\"", "some.toml:1: public.url: 'example.org' is no URL for clients"),
        (
            "public = { listen = \"127.0.0.1:443\", tls = true }",
            "some.toml:1: public.tls: TLS needs a certificate",
        ),
    ] {
        let error = error(file, &[]);
        assert!(error.starts_with(expected), "{file}: {error}");
    }
}

#[test]
fn a_named_file_must_be_there_and_the_default_one_need_not() {
    let missing = Path::new("no-such-folder/restante.toml");
    assert_eq!(file::read(None, missing).unwrap(), (None, Vec::new()));
    let error = file::read(Some(missing), missing).unwrap_err().to_string();
    assert!(error.starts_with("can't read the configuration no-such-folder/restante.toml: "), "{error}");
}

#[test]
fn an_archive_on_a_network_has_a_spool_and_others_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    let spool = |settings: &str| {
        set(&format!("server.data_dir = \"{data}\"\n[archive]\n{settings}"), &[]).unwrap().config.spool()
    };
    let below = |path: &str| Some(folder.path().join(path));
    assert_eq!(spool("url = \"postgres://db/x\"").map(|spool| spool.folder), below("spool/archive"));
    assert_eq!(spool("url = \"postgres://db/x\"\nspool.bytes_max = 0"), None);
    assert_eq!(spool("url = \"sqlite:x\""), None);
    assert_eq!(spool(""), None);
    let asked_for = spool("spool = { dir = \"elsewhere\", bytes_max = 5, timeout_ms = 7 }").unwrap();
    assert_eq!(asked_for.folder, Path::new("elsewhere/archive"));
    assert_eq!((asked_for.bytes_max, asked_for.timeout_ms.get()), (5, 7));

    // Messages that were left in the spool by a replaced engine are not forgotten.
    std::fs::create_dir_all(folder.path().join("spool/archive/00000001")).unwrap();
    assert_eq!(spool("").map(|spool| spool.folder), below("spool/archive"));
    let off = format!("server.data_dir = \"{data}\"\narchive.spool.bytes_max = 0");
    assert_eq!(set(&off, &[]).unwrap().config.spool_left_behind(), below("spool/archive"));
}

#[test]
fn records_and_blobs_are_below_the_data_folder_unless_they_are_elsewhere() {
    let config = set("server.data_dir = \"there\"", &[]).unwrap().config;
    assert_eq!(config.records_url().to_string(), "lmdb:there/records");
    assert_eq!(config.blobs_url().to_string(), "files:there/blobs");
    let variables = [("RESTANTE_RECORDS__URL", "memory:"), ("RESTANTE_BLOBS__URL", "files:x")];
    let config = set("", &variables).unwrap().config;
    assert_eq!((config.records_url().engine(), config.blobs_url().engine()), ("memory", "files"));
}

#[test]
fn a_second_archive_has_a_spool_of_its_own() {
    let config = set("archive.tandem = \"sqlite:x.db\"", &[]).unwrap().config;
    let tandem = config.tandem().unwrap();
    assert_eq!(tandem.url.to_string(), "sqlite:x.db");
    assert_eq!(tandem.spool.folder, Path::new("data/spool/tandem"));
    assert_eq!(Config::default().tandem(), None);
}

#[test]
fn the_nodes_key_is_not_shown() {
    let digits = "01".repeat(32);
    let effective = set("", &[("RESTANTE_WAKU__NODE__KEY", &digits)]).unwrap();
    let shown = effective.shown().find(|(key, ..)| *key == "waku.node.key").unwrap().1;
    assert_eq!(shown.as_str(), Some("***"));
    assert!(!format!("{:?}", effective.config).contains(&digits));
    assert!(!effective.has_secret_flag(), "the environment is no command line");
    let mut effective = Effective::defaults();
    let origin = Origin::Flag("--nodekey");
    effective
        .set(Setting { key: "waku.node.key".into(), value: digits.into(), origin: origin.clone() })
        .unwrap();
    assert!(effective.has_secret_flag());
    effective.set(Setting { key: "waku.node.key".into(), value: "node.key".into(), origin }).unwrap();
    assert!(!effective.has_secret_flag(), "a file's name is no secret");
}

/// A URL that was printed and read back would have lost its password.
#[test]
fn passwords_are_kept_and_not_shown() {
    let file =
        "[archive]\nurl = \"postgres://me:secret@db/x\"\n[sessions]\nurl = \"redis://me:secret@db/0\"\n";
    let variables =
        [("RESTANTE_ARCHIVE__TANDEM", "postgres://me@db/y?password=secret"), ("RESTANTE_REST__PORT", "1")];
    let effective = set(file, &variables).unwrap();
    for (key, value, origin) in effective.shown() {
        assert!(!format!("{value} # {origin}").contains("secret"), "{key} = {value}");
    }
    let shown = effective.shown().find(|(key, ..)| *key == "archive.url").unwrap().1;
    assert_eq!(shown.as_str(), Some("postgres://me:***@db/x"));
    for url in [effective.config.archive_url(), effective.config.archive.tandem.unwrap()] {
        let restante_archive::EngineUrl::Postgres(url) = url else { panic!("{url} is no database") };
        assert!(url.connection().contains("secret"), "{url}");
    }
    for wrong in ["archive.url = \"postgrse://me:secret@db/x\"", "sessions.url = \"redsi://me:secret@db/0\""]
    {
        let error = error(wrong, &[]);
        assert!(!error.contains("secret"), "{error}");
    }
}

/// A list of tables can't be written as comma-separated items.
#[test]
fn a_list_in_the_environment_may_be_written_as_in_a_file() {
    let listen = |text: &str| set("", &[("RESTANTE_PUBLIC__LISTEN", text)]).unwrap().config.public.listen;
    assert_eq!(listen("[::1]:1, 127.0.0.1:2"), listen("['[::1]:1', '127.0.0.1:2']"));
    assert_eq!(listen("[]"), []);
    let lists = r#"[{ zone = "zen.example.org", action = "refuse" }]"#;
    let of_environment = set("", &[("RESTANTE_CHECKS__BLOCK_LISTS", lists)]).unwrap().config;
    assert_eq!(of_environment.checks.block_lists.len(), 1);
    assert_eq!(of_environment, set(&format!("checks.block_lists = {lists}"), &[]).unwrap().config);
}
