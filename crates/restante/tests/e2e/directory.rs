//! Domains, accounts, aliases and tokens: on a stopped server, and by a running one.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Said, Server, exchange, free_address, request, restante, said, say, wait_until};

/// A folder in which a server was set up, and the password of its account.
fn set_up() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let report = said(folder.path(), &["setup", "example.org", "--user", "anna"]);
    let password = report.lines().find_map(|line| line.strip_prefix("password ")).unwrap().trim();
    (folder, password.to_owned())
}

fn json_of(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&said(folder, &[args, &["--format", "json"]].concat())).unwrap()
}

fn refused(folder: &Path, args: &[&str], why: &str) {
    let said = say(folder, args);
    assert_eq!(said.code, 1, "{args:?}: {}{}", said.out, said.err);
    assert!(said.err.contains(why), "{args:?}: {}", said.err);
    assert_eq!(said.err.lines().count(), 1, "{}", said.err);
}

/// Runs a command with something on stdin.
fn say_with(folder: &Path, args: &[&str], input: &str) -> Said {
    let mut command = restante(folder);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

/// A command whose settings have the listener for operators at this address.
fn with_operators(folder: &Path, operators: SocketAddr, args: &[&str]) -> Command {
    let mut command = restante(folder);
    command.args(args).env("RESTANTE_OPERATE__LISTEN", operators.to_string());
    command
}

/// Starts a server in a folder that was set up; returns where its listener for operators is.
fn serve(folder: &Path) -> (Server, SocketAddr) {
    let operators = free_address();
    (Server::spawn(with_operators(folder, operators, &["serve", "--rest-port", "0"])), operators)
}

#[test]
fn two_commands_make_a_server_with_an_account() {
    let folder = tempfile::tempdir().unwrap();
    let report = said(folder.path(), &["setup", "Example.ORG"]);
    for line in [
        "account      admin@example.org",
        "  example.org.  MX    10 mail.example.org.",
        "  _dmarc.example.org.  TXT   \"v=DMARC1; p=quarantine; rua=mailto:postmaster@example.org\"",
        "  _jmap._tcp.example.org.  SRV   0 1 443 mail.example.org.",
        "  restante serve",
    ] {
        assert!(report.lines().any(|printed| printed == line), "{line}\n{report}");
    }
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("data/tls/example.org.key"), mode("data/operator.token")), (0o600, 0o600));
    assert_eq!(mode("restante.toml") & 0o007, 0);
    let certificate = fs::read_to_string(folder.path().join("data/tls/example.org.crt")).unwrap();
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"), "{certificate}");

    let (server, operators) = serve(folder.path());
    let url = format!("http://{operators}");
    let token = ["--rest", &url, "--token-file", "data/operator.token"];
    let accounts = json_of(folder.path(), &[&["account", "list"][..], &token].concat());
    assert_eq!(accounts[0]["address"], "admin@example.org");
    assert_eq!((&accounts[0]["state"], &accounts[0]["role"]), (&json!("active"), &json!("operator")));
    let aliases = json_of(folder.path(), &[&["alias", "list"][..], &token].concat());
    let names: Vec<&str> =
        aliases.as_array().unwrap().iter().map(|alias| alias["address"].as_str().unwrap()).collect();
    assert_eq!(names, ["abuse@example.org", "postmaster@example.org"]);
    assert_eq!(server.metric("restante_directory_logins_total"), Some(0.0));
    for args in [&["sessions", "count"][..], &["backup", "backup"]] {
        let said: Said = with_operators(folder.path(), operators, args).output().unwrap().into();
        assert_eq!(said.code, 0, "{args:?} needs no token beside that of the settings: {}", said.err);
    }
    assert_eq!(server.stop().code(), Some(0));
}

#[test]
fn a_folder_that_was_set_up_is_sound() {
    let (folder, _) = set_up();
    let checked = said(folder.path(), &["check", "--all"]);
    assert!(checked.contains("sound"), "{checked}");
    assert!(said(folder.path(), &["search", "rebuild"]).starts_with("a server makes the search index again"));
}

/// The settings of a server elsewhere name another place when read here: the operator saw no error, and the server no domain.
#[test]
fn new_records_are_reported() {
    let (folder, _) = set_up();
    let settings = folder.path().join("restante.toml");
    let elsewhere = tempfile::tempdir().unwrap();
    let add = ["domain", "add", "oops.org", "--config", settings.to_str().unwrap()];
    let made = say(elsewhere.path(), &add);
    assert_eq!(made.code, 0, "{}", made.err);
    let folder = elsewhere.path().canonicalize().unwrap().join("data");
    assert!(made.err.contains(&format!("new ones are made below {}", folder.display())), "{}", made.err);
    assert_eq!(say(elsewhere.path(), &["domain", "add", "more.org"]).err, "");
}

/// The user of the server can't read files that root has created.
#[test]
fn root_is_warned_on_the_folder_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        return; // only root may change the owner of a folder
    }
    let (folder, _) = set_up();
    assert_eq!(say(folder.path(), &["domain", "list"]).err, "");
    std::os::unix::fs::chown(folder.path().join("data"), Some(1_000), None).unwrap();
    let warned = say(folder.path(), &["domain", "list"]);
    assert_eq!(warned.code, 0, "{}", warned.err);
    assert!(warned.err.contains("data belongs to the user 1000"), "{}", warned.err);
}

#[test]
fn setup_changes_nothing_that_is_there() {
    let (folder, _) = set_up();
    let settings = fs::read_to_string(folder.path().join("restante.toml")).unwrap();
    refused(folder.path(), &["setup", "example.com"], "restante.toml is there already");
    assert_eq!(fs::read_to_string(folder.path().join("restante.toml")).unwrap(), settings);
    fs::remove_file(folder.path().join("restante.toml")).unwrap();
    refused(folder.path(), &["setup", "example.com"], "data is not empty");
    let wrong = say(folder.path(), &["setup", "example.com", "--user", "a b", "--data", "other"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
    assert!(!folder.path().join("other").exists());
    let wrong = say(folder.path(), &["setup", "no domain"]);
    assert_eq!(wrong.code, 2, "{}", wrong.err);
}

#[test]
fn a_stopped_server_is_looked_after_by_commands() {
    let (folder, password) = set_up();
    let folder = folder.path();
    assert_eq!(password.len(), 23, "{password}");
    assert_eq!(said(folder, &["domain", "add", "Example.com", "--catch-all", "anna@example.org"]), "");
    assert_eq!(
        said(folder, &["domain", "list"]),
        "domain       separator  catch-all\nexample.com  +          anna@example.org\nexample.org  +          none\n"
    );
    said(folder, &["domain", "set", "example.com", "--catch-all", "none", "--separator", "-"]);
    let nothing = say(folder, &["domain", "set", "example.com"]);
    assert!(nothing.code == 2 && nothing.err.contains("name what to change"), "{}", nothing.err);
    assert_eq!(json_of(folder, &["domain", "list"])[0]["separator"], "-");

    let generated = said(folder, &["account", "add", "bert@example.com", "--generate", "--quota", "5GB"]);
    assert_eq!((generated.len(), generated.lines().count()), (24, 1), "{generated}");
    let added = say_with(folder, &["account", "add", "carl@example.com", "--password-file", "-"], "secret\n");
    assert_eq!((added.code, added.out.as_str()), (0, ""), "{}", added.err);
    fs::write(folder.join("password"), "another\n").unwrap();
    said(folder, &["account", "password", "carl@example.com", "--password-file", "password"]);
    let phone = ["account", "password", "carl@example.com", "--application", "phone"];
    said(folder, &[&phone[..], &["--generate"]].concat());
    said(folder, &["account", "grant", "anna@example.org", "carl@example.com", "read"]);
    said(folder, &["account", "disable", "bert@example.com"]);
    said(folder, &["account", "role", "bert@example.com", "operator"]);
    let list = said(folder, &["account", "list"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 4, "{list}");
    assert!(lines[0].starts_with("address           number  state     role      quota"), "{list}");
    assert!(
        lines[1].starts_with("bert@example.com") && lines[1].ends_with("disabled  operator  5.00 GB"),
        "{list}"
    );
    assert!(lines[3].starts_with("anna@example.org"), "by domain and name: {list}");
    assert_eq!(json_of(folder, &["account", "list", "--domain", "example.org"]).as_array().unwrap().len(), 1);

    let shown = said(folder, &["account", "show", "carl@example.com"]);
    for line in [
        "password   its own, set ",
        "password   for phone, set ",
        "grant      reads the mail of anna@example.org",
    ] {
        assert!(shown.lines().any(|shown| shown.starts_with(line)), "{line}\n{shown}");
    }
    let shown = said(folder, &["account", "show", "anna@example.org"]);
    assert!(shown.contains("carl@example.com reads this mail"), "{shown}");
    said(folder, &[&phone[..], &["--remove"]].concat());
    said(folder, &["account", "revoke", "anna@example.org", "carl@example.com"]);

    let token =
        said(folder, &["token", "create", "carl@example.com", "--name", "a script", "--expires", "90d"]);
    assert!(token.starts_with("rst_") && token.lines().count() == 1, "{token}");
    let tokens = json_of(folder, &["token", "list", "carl@example.com"]);
    assert_eq!(
        (&tokens[0]["name"], &tokens[0]["scopes"]),
        (&json!("a script"), &json!(["mail", "send", "chat"]))
    );
    said(folder, &["token", "revoke", "carl@example.com", tokens[0]["id"].as_str().unwrap()]);
    assert_eq!(said(folder, &["token", "list", "carl@example.com"]), "");

    said(folder, &["alias", "add", "team@example.com", "bert@example.com", "x@example.net"]);
    said(folder, &["alias", "remove", "team@example.com", "bert@example.com"]);
    let aliases = said(folder, &["alias", "list", "--domain", "example.com"]);
    assert_eq!(aliases, "alias             targets\nteam@example.com  x@example.net\n");
    said(folder, &["alias", "remove", "team@example.com"]);
    said(folder, &["account", "remove", "bert@example.com"]);
    said(folder, &["account", "remove", "carl@example.com"]);
    said(folder, &["domain", "remove", "example.com"]);

    let log = json_of(folder, &["log", "--limit", "3"]);
    assert_eq!(log[0]["what"], "removed domain example.com");
    assert!(log[0]["who"].as_str().unwrap().ends_with(" on the command line"), "{log}");
    let log = said(folder, &["log", "--limit", "1000"]);
    assert!(!log.contains("secret") && log.contains("added account carl@example.com"), "{log}");
}

#[test]
fn errors_say_what_to_do() {
    let (guard, _) = set_up();
    let folder = guard.path();
    let generate = |address| ["account", "add", address, "--generate"];
    refused(folder, &generate("anna@example.com"), "restante domain add example.com");
    refused(folder, &generate("anna@example.org"), "there is an account anna@example.org already");
    refused(folder, &generate("abuse@example.org"), "restante alias remove abuse@example.org");
    refused(folder, &["account", "show", "nobody@example.org"], "restante account list");
    refused(folder, &["domain", "remove", "example.org"], "remove them first");
    refused(folder, &["token", "revoke", "anna@example.org", "x"], "restante token list anna@example.org");
    refused(folder, &["alias", "add", "a@example.org", "a@example.org"], "in a circle");
    let operate = ["token", "create", "abuse@example.org", "--name", "x", "--scope", "operate"];
    refused(folder, &operate, "there is no account");
    for args in [
        &["account", "add", "anna@@example.org"][..],
        &["account", "add", "carl@example.org"], // without a terminal nobody can be asked for a password
        &["account", "quota", "anna@example.org", "much"],
        &["domain", "add", "example_org"],
        &["token", "create", "anna@example.org", "--name", "x", "--expires", "90"],
    ] {
        let wrong = say(folder, args);
        assert_eq!(wrong.code, 2, "{args:?}: {}", wrong.err);
    }
    let empty = tempfile::tempdir().unwrap();
    refused(empty.path(), &["account", "list"], "restante setup DOMAIN");
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
}

#[test]
fn a_running_server_is_found_by_its_settings() {
    let (guard, _) = set_up();
    let folder = guard.path();
    let (server, operators) = serve(folder);
    let run = |args: &[&str]| -> Said { with_operators(folder, operators, args).output().unwrap().into() };
    // The settings name this token.
    let added = run(&["account", "add", "bert@example.org", "--generate"]);
    assert_eq!((added.code, added.out.trim().len()), (0, 23), "{}", added.err);
    let again = run(&["account", "add", "bert@example.org", "--generate"]);
    assert_eq!(again.code, 1);
    assert_eq!(again.err, "restante: there is an account bert@example.org already\n");
    let list = run(&["account", "list", "--format", "json"]);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    let log = run(&["log", "--limit", "1"]);
    assert!(log.out.contains(" over HTTP  added account bert@example.org with number "), "{}", log.out);

    let mut stranger = with_operators(folder, operators, &["account", "list"]);
    stranger.env("RESTANTE_OPERATE__TOKEN_FILE", "");
    let stranger = Said::from(stranger.output().unwrap());
    assert_eq!(stranger.code, 1);
    assert!(stranger.err.contains("--token-file"), "{}", stranger.err);
    let log = json!({"by": "x", "operation": {"do": "log", "limit": 1}}).to_string();
    let answer = request(operators, "POST", "/admin/v1/directory", &log).unwrap();
    assert_eq!(answer.status, 401, "{}", answer.body);
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(json_of(folder, &["account", "list"]), list, "what the server did is there without it");
}

#[test]
fn a_request_that_is_not_understood_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(folder.path(), &["--rest-admin"]);
    let post = |body: Value| server.post("/admin/v1/directory", &body);
    for body in [
        json!({}),
        json!({"by": "x", "operation": {"do": "fly"}}),
        json!({"by": "", "operation": {"do": "log", "limit": 1}}),
        json!({"by": "x".repeat(65), "operation": {"do": "log", "limit": 1}}),
        json!({"by": "x", "operation": {"do": "remove_domain", "domain": "no domain"}}),
    ] {
        assert_eq!(post(body.clone()).status, 400, "{body}");
    }
    let elsewhere = json!({"by": "x", "data": "/elsewhere", "operation": {"do": "log", "limit": 1}});
    assert_eq!(post(elsewhere).status, 409);
    let remove = json!({"by": "x", "operation": {"do": "remove_domain", "domain": "example.org"}});
    let answer = post(remove);
    assert_eq!(answer.status, 404, "{}", answer.body);
    let answer = post(json!({"by": "x", "operation": {"do": "add_domain", "domain": "example.org"}}));
    assert_eq!((answer.status, answer.body.as_str()), (200, "\"done\""));
}

#[test]
fn operators_log_in_with_their_own_password_or_token() {
    let (guard, password) = set_up();
    let folder = guard.path();
    let (server, operators) = serve(folder);
    let run = |args: &[&str]| -> Said { with_operators(folder, operators, args).output().unwrap().into() };
    let ask = |authorization: &str| {
        let head = format!(
            "GET /admin/v1/operations?limit=1 HTTP/1.1\r\nhost: {operators}\r\nconnection: close\r\n\
             authorization: {authorization}\r\n\r\n"
        );
        exchange(operators, head.as_bytes()).unwrap()
    };
    let basic = |password: &str| {
        let credentials = format!("anna@example.org:{password}");
        format!("Basic {}", base64_simd::STANDARD.encode_to_string(credentials))
    };
    assert_eq!(ask(&basic("something else")).status, 401);
    assert_eq!(ask(&basic(&password)).status, 200);

    let create = ["token", "create", "anna@example.org", "--name", "console", "--scope", "operate"];
    let token = run(&create).out;
    fs::write(folder.join("anna.token"), &token).unwrap();
    let url = format!("http://{operators}");
    let by_token = ["--rest", &url, "--token-file", "anna.token"];
    said(folder, &[&["account", "add", "bert@example.org", "--generate"][..], &by_token].concat());
    let answer = ask(&format!("Bearer {}", token.trim()));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let shown: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(shown["operations"][0]["who"], "anna@example.org over HTTP", "{shown}");
    let what = shown["operations"][0]["what"].as_str().unwrap();
    assert!(what.starts_with("added account bert@example.org"), "{what}");

    let disabled = run(&["account", "disable", "anna@example.org"]);
    assert_eq!(disabled.code, 0, "{}", disabled.err);
    wait_until("both log-ins end", || {
        [basic(&password), format!("Bearer {}", token.trim())].iter().all(|login| ask(login).status == 401)
    });
    assert_eq!(run(&["account", "enable", "anna@example.org"]).code, 0, "the server's token goes on");
    assert_eq!(server.stop().code(), Some(0));
}
