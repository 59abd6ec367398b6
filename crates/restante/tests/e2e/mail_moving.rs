//! Mail is imported from files and other servers, and exported into files.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use restante_core::SystemClock;
use restante_mail::{EmailState, MailConfig, MailMetrics, email};
use restante_records::{AccountId, Get, Query, RecordId};
use serde_json::Value;

use crate::{
    mail::start_with,
    records::with_stores,
    support::{folder, free_address, said, say},
};

const ANNA: &str = "anna@example.org";

/// What a move must preserve of an email: mailboxes, keywords, when it was received, its bytes.
type Email = (Vec<String>, Vec<String>, u64, String);

fn make_accounts(folder: &Path, names: &[&str]) {
    fs::write(folder.join("password"), "correct horse").unwrap();
    said(folder, &["domain", "add", "example.org"]);
    for name in names {
        said(folder, &["account", "add", &format!("{name}@example.org"), "--password-file", "password"]);
    }
}

fn account(folder: &Path, address: &str) -> AccountId {
    let list: Value = serde_json::from_str(&said(folder, &["account", "list", "--format", "json"])).unwrap();
    let found = list.as_array().unwrap().iter().find(|account| account["address"] == address).unwrap();
    AccountId(u32::try_from(found["account"].as_u64().unwrap()).unwrap())
}

/// All emails of an account of a stopped server, and its mailboxes with their roles.
fn emails(folder: &Path, address: &str) -> (Vec<Email>, Vec<String>) {
    let account = account(folder, address);
    let (found, names) =
        (Arc::new(std::sync::Mutex::new(Vec::new())), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (to, names_to) = (found.clone(), names.clone());
    with_stores(folder, async move |records, blobs| {
        let (clock, limits, metrics) = (Arc::new(SystemClock), MailConfig::default(), MailMetrics::default());
        let mail =
            restante_mail::Mail::new(records.records.clone(), blobs.blobs.clone(), clock, limits, metrics);
        let (mailboxes, _) = mail.mailboxes(account).await.unwrap();
        let by_id: BTreeMap<RecordId, _> =
            mailboxes.iter().map(|mailbox| (mailbox.id, mailbox.clone())).collect();
        let path = |id: RecordId| {
            let mut path = by_id[&id].name.clone();
            let mut above = by_id[&id].parent;
            while let Some(id) = above {
                path = format!("{}/{path}", by_id[&id].name);
                above = by_id[&id].parent;
            }
            path
        };
        let roles = by_id.values().map(|mailbox| format!("{} {:?}", path(mailbox.id), mailbox.role));
        *names_to.lock().unwrap() = roles.collect();
        let ids = records
            .records
            .query(account, &Query::new(email::KIND, email::BY_RECEIVED).limit(1_000))
            .await
            .unwrap()
            .ids;
        let whole = records.records.get(account, &Get::whole(email::KIND, ids)).await.unwrap();
        for record in whole.into_iter().flatten() {
            let state = EmailState::of(&record).unwrap();
            let keywords = mail.keywords(account, &state.keywords).await.unwrap();
            let mut source = blobs.blobs.read(record.body.blobs[0], 0..u64::MAX).await.unwrap();
            let mut raw = Vec::new();
            while let Some(chunk) = source.next().await.unwrap() {
                raw.extend_from_slice(&chunk);
            }
            let mut keywords: Vec<String> = keywords.of_email(&state).map(str::to_owned).collect();
            keywords.sort();
            let mut paths: Vec<String> = state.mailboxes.iter().map(|id| path(*id)).collect();
            paths.sort();
            to.lock().unwrap().push((paths, keywords, state.received, raw.escape_ascii().to_string()));
        }
        assert_eq!(mail.check(account).await.unwrap(), []);
    });
    let mut found = std::mem::take(&mut *found.lock().unwrap());
    found.sort();
    let mut names = std::mem::take(&mut *names.lock().unwrap());
    names.sort();
    (found, names)
}

fn message(number: usize) -> String {
    format!(
        "From: Bob <bob@example.net>\nMessage-ID: <{number}@example.net>\nSubject: Letter {number}\n\nFrom here to {number}\n\n"
    )
}

/// Writes a file of a Maildir with this modification time.
fn put(path: &Path, text: impl AsRef<[u8]>, modified: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(modified)).unwrap();
}

/// A Maildir++ with 603 messages, one of them broken and one in two folders, and a file that is not a message.
fn make_maildir(path: &Path) {
    for number in 0..600 {
        let name = format!(
            "cur/{}.M{number}.host:2,{}",
            1_000_000 + number,
            if number % 2 == 0 { "S" } else { "FRa" }
        );
        put(&path.join(name), message(number), 900_000 + number as u64);
    }
    fs::write(path.join("dovecot-keywords"), "0 Later\n1 $Forwarded\n").unwrap();
    put(&path.join(".Sent/new/1.x"), message(1_000), 5_000);
    put(&path.join(".Work.Entw&APw-rfe/cur/2.x:2,D"), message(1_000), 5_000);
    put(&path.join(".Work.Entw&APw-rfe/cur/3.x:2,S"), b"\x00no header \xff\n\rat all", 6_000);
    put(&path.join(".Empty/cur/.keep"), "", 0);
    put(&path.join("cur/4.x:2,"), "", 0);
}

fn report(folder: &Path, args: &[&str], code: i32) -> Value {
    let said = say(folder, &[&["mail"], args, &["--format", "json"]].concat());
    assert_eq!(said.code, code, "{args:?}: {} {}", said.out, said.err);
    serde_json::from_str(&said.out).unwrap()
}

fn counts(report: &Value) -> [u64; 4] {
    ["imported", "placed", "known", "mailboxes"].map(|name| report[name].as_u64().unwrap())
}

#[test]
fn mail_moves_in_from_a_maildir_and_out_and_in_again_unchanged() {
    let (_guard, folder) = folder();
    make_accounts(&folder, &["anna", "bob", "carol", "dave"]);
    make_maildir(&folder.join("Maildir"));
    let import = |name: &str, source: &str, code| {
        report(&folder, &["import", "--account", &format!("{name}@example.org"), source], code)
    };
    let dry = report(&folder, &["import", "--account", ANNA, "maildir:Maildir", "--dry-run"], 1);
    assert_eq!(counts(&dry), [603, 0, 0, 0]);
    let first = import("anna", "maildir:Maildir", 1);
    assert_eq!(counts(&first), [602, 1, 0, 3]);
    let listed = first["problems"]["listed"][0].as_str().unwrap();
    assert_eq!(
        (&first["problems"]["count"], listed),
        (&1.into(), "not imported: Maildir/cur/4.x:2,: it is empty")
    );
    assert_eq!(counts(&import("anna", "maildir:Maildir", 1)), [0, 0, 603, 0], "nothing is imported twice");

    let (anna, mailboxes) = emails(&folder, ANNA);
    assert_eq!(anna.len(), 602);
    let has = |name: &str| mailboxes.iter().any(|mailbox| mailbox == name);
    assert!(has("Empty None") && has("Work/Entwürfe None") && has("Sent Some(Sent)"), "{mailboxes:?}");
    let both = ["Sent", "Work/Entwürfe"].map(str::to_owned).to_vec();
    let raw = message(1_000).replace('\n', "\r\n").escape_default().to_string();
    assert!(
        anna.iter().any(|email| email.0 == both
            && email.1 == ["$draft"]
            && email.2 == 1
            && email.3.len() == raw.len())
    );
    let broken = anna.iter().find(|email| email.3.contains("no header")).unwrap();
    assert_eq!((&broken.1[..], broken.2), (&["$seen".to_owned()][..], 3));
    let flagged = anna.iter().find(|email| email.3.contains("Letter 7\\r")).unwrap();
    assert_eq!(
        (&flagged.1[..], flagged.2),
        (&["$answered", "$flagged", "later"].map(str::to_owned)[..], 900_007)
    );

    for (name, target) in
        [("bob", "maildir:out-maildir"), ("carol", "mbox:out.mbox"), ("dave", "mbox:out-folders/")]
    {
        let exported = report(&folder, &["export", "--account", ANNA, target], 0);
        assert_eq!(exported["exported"], 602);
        let again = say(&folder, &["mail", "export", "--account", ANNA, target]);
        assert_eq!(again.code, 1, "{}", again.err);
        assert!(again.err.contains("exists: remove it"), "{}", again.err);
        let imported = import(name, target, 0);
        assert_eq!(imported["imported"], 602, "{target}: {imported}");
        let (emails, own) = emails(&folder, &format!("{name}@example.org"));
        assert!(emails == anna, "{target}");
        if name != "carol" {
            assert_eq!(own, mailboxes, "{target}");
        }
        assert_eq!(import(name, target, 0)["imported"], 0);
        // The account that it was exported from has all of it, from one source or the other.
        let own = import("anna", target, 0);
        assert_eq!((&own["imported"], &own["placed"]), (&0.into(), &0.into()), "{target}: {own}");
    }
    assert!(emails(&folder, ANNA).0 == anna);
    let partials = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!partials.into_iter().any(|name| name.to_string_lossy().contains(".partial")));
    let one =
        report(&folder, &["export", "--account", ANNA, "mbox:work.mbox", "--mailbox", "Work/Entwürfe"], 0);
    assert_eq!((&one["exported"], &one["mailboxes"]), (&2.into(), &1.into()));
}

#[test]
fn folders_below_the_inbox_and_deep_ones_have_mailboxes() {
    let (_guard, folder) = folder();
    make_accounts(&folder, &["anna"]);
    let deep: String = (1..=12).map(|number| format!(".d{number}")).collect();
    for (number, place) in
        ["cur/1.x:2,", ".INBOX.Old/cur/2.x:2,", &format!("{deep}/cur/3.x:2,")].iter().enumerate()
    {
        put(&folder.join("Maildir").join(place), message(number), 5_000);
    }
    let imported = report(&folder, &["import", "--account", ANNA, "maildir:Maildir"], 0);
    assert_eq!(counts(&imported), [3, 0, 0, 11]);
    let places: Vec<String> = emails(&folder, ANNA).0.into_iter().flat_map(|email| email.0).collect();
    assert_eq!(places, ["Inbox", "Inbox/Old", "d1/d2/d3/d4/d5/d6/d7/d8/d9/d10-d11-d12"]);
}

#[test]
fn mail_moves_through_running_servers() {
    let (_old_guard, old) = folder();
    make_accounts(&old, &["anna"]);
    make_maildir(&old.join("Maildir"));
    let operators = free_address();
    let server = start_with(&old, Some(operators));
    let url = format!("http://{operators}");
    // Into a running server, and out of it again.
    let imported = report(&old, &["import", "--account", ANNA, "maildir:Maildir", "--rest", &url], 1);
    assert_eq!(counts(&imported), [602, 1, 0, 3]);
    let known = report(&old, &["import", "--account", ANNA, "maildir:Maildir", "--rest", &url], 1);
    assert_eq!(counts(&known), [0, 0, 603, 0]);
    let exported = report(&old, &["export", "--account", ANNA, "mbox:all.mbox", "--rest", &url], 0);
    assert_eq!(exported["exported"], 602);
    let unknown =
        say(&old, &["mail", "import", "--account", "bob@example.org", "mbox:all.mbox", "--rest", &url]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("bob@example.org"), "{}", unknown.err);

    // By JMAP into another server.
    let (_new_guard, new) = folder();
    make_accounts(&new, &["anna"]);
    let source = format!("jmap:http://{}", server.jmap);
    let args =
        ["import", "--account", ANNA, &source, "--source-user", ANNA, "--source-password-file", "password"];
    let moved = report(&new, &args, 0);
    assert_eq!(counts(&moved), [602, 0, 0, 3]);
    assert_eq!(counts(&report(&new, &args, 0)), [0, 0, 602, 0]);
    fs::write(new.join("wrong"), "wrong").unwrap();
    let args = [
        "mail",
        "import",
        "--account",
        ANNA,
        &source,
        "--source-user",
        ANNA,
        "--source-password-file",
        "wrong",
    ];
    let wrong = say(&new, &args);
    assert_eq!(wrong.code, 1);
    assert!(wrong.err.contains("refuses the log-in"), "{}", wrong.err);
    assert_eq!(server.server.stop().code(), Some(0));
    let (before, after) = (emails(&old, ANNA), emails(&new, ANNA));
    assert!(before == after, "{:?} {:?}", before.1, after.1);
}

#[test]
fn an_import_ends_at_the_quota_and_goes_on_when_it_is_raised() {
    let (_guard, folder) = folder();
    make_accounts(&folder, &["anna"]);
    let letters: String = (0..10)
        .map(|number| format!("From a Thu Aug 22 12:36:23 2002\nStatus: R\n{}\n", message(number)))
        .collect();
    fs::write(folder.join("letters.mbox"), letters).unwrap();
    said(&folder, &["account", "quota", ANNA, "700"]);
    let args = ["import", "--account", ANNA, "mbox:letters.mbox", "--mailbox", "Old/2002"];
    let full = report(&folder, &args, 1);
    let imported = full["imported"].as_u64().unwrap();
    assert!((1..10).contains(&imported), "{full}");
    assert_eq!((&full["stopped"], &full["mailboxes"]), (&"overQuota".into(), &2.into()));
    said(&folder, &["account", "quota", ANNA, "none"]);
    assert_eq!(counts(&report(&folder, &args, 0)), [10 - imported, 0, imported, 0]);
    let (emails, _) = emails(&folder, ANNA);
    let old = ["Old/2002".to_owned()];
    assert!(
        emails.iter().all(|email| email.0 == old && email.1 == ["$seen"] && email.2 == 1_030_019_783),
        "{emails:?}"
    );

    for (args, code, why) in [
        (&["import", "--account", ANNA, "letters.mbox"][..], 2, "expected mbox:FILE"),
        (&["import", "--account", ANNA, "mbox:none"], 1, "none"),
        (&["import", "--account", ANNA, "maildir:."], 1, "has no Maildir"),
        (&["import", "--account", ANNA, "jmap:https://localhost"], 2, "name a log-in"),
        (&["export", "--account", ANNA, "mbox:x", "--mailbox", "None"], 1, "no mailbox 'None'; it has"),
    ] {
        let said = say(&folder, &[&["mail"], args].concat());
        assert_eq!(said.code, code, "{args:?}: {}", said.err);
        assert!(said.err.contains(why), "{args:?}: {}", said.err);
    }
}
