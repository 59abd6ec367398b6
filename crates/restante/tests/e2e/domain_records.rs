//! DKIM keys and DNS records of a domain, on a stopped server and by a running one, against a name server on loopback.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::Path};

use hickory_server::{
    Server as NameServer,
    net::runtime::Time,
    proto::{
        op::{Metadata, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, MX, SOA, SRV, TXT},
        },
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UdpSocket, runtime::Runtime};

use crate::support::{Server, free_address, restante, said, say, wait_until};

/// Records by name and type; for other names in example.org it answers that they don't exist.
struct Zone(BTreeMap<(String, RecordType), Vec<RData>>);

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

impl Zone {
    /// The zone that a file with these lines describes.
    fn read(lines: &str) -> Self {
        let mut records: BTreeMap<(String, RecordType), Vec<RData>> = BTreeMap::new();
        for line in lines.lines().filter(|line| !line.starts_with(';')) {
            let mut words = line.splitn(5, ' ');
            let mut word = || words.next().unwrap();
            let (owner, _, _, record_type, content) = (word(), word(), word(), word(), word());
            let parts: Vec<&str> = content.split(' ').collect();
            let number = |at: usize| parts[at].parse().unwrap();
            let (record_type, data) = match record_type {
                "MX" => (RecordType::MX, RData::MX(MX::new(number(0), name(parts[1])))),
                "SRV" => {
                    let srv = SRV::new(number(0), number(1), number(2), name(parts[3]));
                    (RecordType::SRV, RData::SRV(srv))
                }
                "TXT" => {
                    let strings = content.trim_matches('"').split("\" \"").map(str::to_owned).collect();
                    (RecordType::TXT, RData::TXT(TXT::new(strings)))
                }
                "A" => (RecordType::A, RData::A(A(content.parse().unwrap()))),
                other => panic!("{other}"),
            };
            records.entry((owner.to_owned(), record_type)).or_default().push(data);
        }
        Self(records)
    }
}

#[async_trait::async_trait]
impl RequestHandler for Zone {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut responses: R,
    ) -> ResponseInfo {
        let info = request.request_info().unwrap();
        let asked: Name = info.query.name().into();
        let found = self.0.get(&(asked.to_ascii().to_ascii_lowercase(), info.query.query_type()));
        let record = |data: &RData| Record::from_rdata(asked.clone(), 60, data.clone());
        let answers: Vec<Record> = found.into_iter().flatten().map(record).collect();
        let exists = self.0.keys().any(|(known, _)| *known == asked.to_ascii().to_ascii_lowercase());
        let soa = SOA::new(name("ns.example.org."), name("admin.example.org."), 1, 60, 60, 60, 60);
        let soa = Record::from_rdata(name("example.org."), 60, RData::SOA(soa));
        let authority: Vec<Record> = if answers.is_empty() { vec![soa] } else { Vec::new() };
        let mut metadata = Metadata::response_from_request(info.metadata);
        metadata.response_code = if exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
        metadata.recursion_available = true;
        let response = MessageResponseBuilder::from_message_request(request);
        responses.send_response(response.build(metadata, &answers, &authority, [], [])).await.unwrap()
    }
}

fn serve_zone(runtime: &Runtime, lines: &str) -> (SocketAddr, NameServer<Zone>) {
    runtime.block_on(async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let mut server = NameServer::new(Zone::read(lines));
        server.register_socket(socket);
        (address, server)
    })
}

fn set_up() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    said(folder.path(), &["setup", "example.org", "--user", "anna"]);
    folder
}

/// The selectors and states of the keys of example.org.
fn keys(folder: &Path, more: &[&str]) -> Vec<(String, String)> {
    let args = [&["domain", "dkim", "list", "example.org", "--format", "json"][..], more].concat();
    let keys: Value = serde_json::from_str(&said(folder, &args)).unwrap();
    let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
    keys.as_array().unwrap().iter().map(|key| (text(key, "selector"), text(key, "state"))).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(selector, state)| ((*selector).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn dkim_keys_of_a_stopped_server_are_created_rotated_and_removed() {
    let guard = set_up();
    let folder = guard.path();
    assert_eq!(said(folder, &["domain", "dkim", "list", "example.org"]), "");
    let created = said(folder, &["domain", "dkim", "create", "example.org"]);
    let records: Vec<&str> = created.lines().filter(|line| !line.starts_with(';')).collect();
    assert_eq!(records.len(), 2, "{created}");
    assert!(records[0].contains("._domainkey.example.org. 3600 IN TXT \"v=DKIM1; k=rsa; p="), "{created}");
    assert!(
        records[1].contains("._domainkey.example.org. 3600 IN TXT \"v=DKIM1; k=ed25519; p="),
        "{created}"
    );
    assert!(created.contains(";       restante domain dkim activate example.org "), "{created}");
    let waiting = keys(folder, &[]);
    assert!(waiting.iter().all(|(_, state)| state == "waiting"), "{waiting:?}");
    let one = ["domain", "dkim", "create", "example.org", "--algorithm", "ed25519", "--selector"];
    said(folder, &[&one[..], &["mail"]].concat());
    let act = |verb: &str, selector: &str| say(folder, &["domain", "dkim", verb, "example.org", selector]);
    assert_eq!(act("activate", &waiting[1].0).code, 0);
    let listed = act("activate", "mail").out;
    assert!(listed.lines().any(|line| line.starts_with("mail ") && line.contains("active")), "{listed}");
    let states = keys(folder, &[]);
    assert_eq!(states[1..], pairs(&[(waiting[1].0.as_str(), "retired"), ("mail", "active")]));
    let refused = act("remove", "mail");
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("restante domain dkim retire example.org mail"), "{}", refused.err);
    assert_eq!((act("retire", "mail").code, act("remove", "mail").code), (0, 0));
    assert_eq!(keys(folder, &[]).len(), 2);
    assert!(act("activate", "none").err.contains("restante domain dkim list example.org"));
    let unknown = say(folder, &["domain", "dkim", "create", "example.net"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("restante domain add example.net"), "{}", unknown.err);
    let wrong = say(folder, &["domain", "dkim", "create", "example.org", "--selector", "mail"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    let log = said(folder, &["log", "--limit", "100"]);
    assert!(log.contains("removed DKIM key mail of example.org"), "{log}");
    let secrets = folder.join("data/secrets.key");
    assert!(secrets.exists());
    // Backups leave it out, and report that.
    let backup = say(folder, &["backup", "copy"]);
    assert!(backup.code == 0 && backup.err.contains("secrets.key, without which"), "{}", backup.err);
    assert!(!folder.join("copy/files/secrets.key").exists());
    let restored = say(folder, &["restore", "copy", "--data", "elsewhere"]);
    assert!(
        restored.code == 0 && restored.err.contains("elsewhere/secrets.key is missing"),
        "{}",
        restored.err
    );
    let restored = say(folder, &["restore", "copy", "--force"]);
    assert!(restored.code == 0 && !restored.err.contains("secrets.key"), "{}", restored.err);
    assert!(secrets.exists(), "it stays where it is");
}

#[test]
fn a_running_server_manages_dkim_keys() {
    let guard = set_up();
    let folder = guard.path();
    let operators = free_address().to_string();
    let with = |args: &[&str]| {
        let mut command = restante(folder);
        command.args(args).env("RESTANTE_OPERATE__LISTEN", &operators);
        command
    };
    let server = Server::spawn(with(&["serve", "--rest-port", "0"]));
    let url = format!("http://{operators}");
    let token = ["--rest", url.as_str(), "--token-file", "data/operator.token"];
    let act = |args: &[&str]| said(folder, &[args, &token[..]].concat());
    act(&["domain", "dkim", "create", "example.org", "--algorithm", "ed25519", "--selector", "mail"]);
    act(&["domain", "dkim", "activate", "example.org", "mail"]);
    assert_eq!(keys(folder, &token), pairs(&[("mail", "active")]));
    assert!(act(&["domain", "records", "example.org"]).contains("mail._domainkey.example.org. "));
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(keys(folder, &[]), pairs(&[("mail", "active")]), "they are kept");
    a_missing_key_file_is_named_by_health(folder);
}

/// Mail of the domains stood still, and nothing but the log said why.
fn a_missing_key_file_is_named_by_health(folder: &Path) {
    let file = folder.join("data/secrets.key");
    let key = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let mut command = restante(folder);
    command.args(["serve", "--rest-port", "0", "--lmtp-listen", &free_address().to_string()]);
    let server = Server::spawn(command);
    let delivery = || {
        let health: Value = serde_json::from_str(&server.get("/health").body).unwrap();
        let parts = health["protocolsHealth"].as_array().unwrap();
        parts.iter().find(|part| part.get("delivery").is_some()).unwrap().clone()
    };
    let is_named = |part: Value| {
        part["delivery"] == "Not Ready"
            && part["desc"].as_str().is_some_and(|desc| desc.contains("secrets.key is missing"))
    };
    wait_until("the missing key file is named", || is_named(delivery()));
    fs::write(&file, key).unwrap();
    wait_until("the key file is back", || delivery() == json!({"delivery": "Ready"}));
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn dns2_records_that_are_published_as_printed_pass_the_check_and_others_don_t() {
    let guard = set_up();
    let folder = guard.path();
    said(folder, &["domain", "dkim", "create", "example.org"]);
    let printed = said(folder, &["domain", "records", "example.org"]);
    assert!(printed.starts_with("example.org. 3600 IN MX 10 mail.example.org.\n"), "{printed}");
    let runtime = Runtime::new().unwrap();
    let complete = format!("{printed}mail.example.org. 60 IN A 192.0.2.1\n");
    let (address, _server) = serve_zone(&runtime, &complete);
    let check = |address: SocketAddr, format: &str| {
        let address = address.to_string();
        say(folder, &["domain", "check", "example.org", "--resolver", &address, "--format", format])
    };
    let checked = check(address, "text");
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    assert!(checked.out.lines().filter(|line| !line.starts_with(' ')).all(|line| line.starts_with("ok ")));
    assert!(checked.out.contains("the key can be activated"), "{}", checked.out);
    let wrong = complete.replace("v=spf1 mx -all", "v=spf1 -all").replace("_dmarc", "_other");
    let (address, _server) = serve_zone(&runtime, &wrong);
    let checked = check(address, "json");
    assert_eq!(checked.code, 1, "{}", checked.err);
    let findings: Value = serde_json::from_str(&checked.out).unwrap();
    let status = |purpose: &str| {
        let found = findings.as_array().unwrap().iter().find(|finding| finding["purpose"] == purpose);
        found.unwrap()["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (status("spf"), status("dmarc"), status("mx")),
        ("differs".into(), "missing".into(), "ok".into())
    );
}
