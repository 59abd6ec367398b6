//! Who may import whom: the rooms of the house and the doors between them.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// What a crate is. A new crate takes its place here before anything else.
const ROOMS: &[(&str, Room)] = &[
    ("restante-core", Room::Core),
    ("restante-disk", Room::Ground),
    ("restante-lmdb", Room::Ground),
    ("restante-net", Room::Ground),
    ("restante-archive", Room::Role),
    ("restante-sessions", Room::Role),
    ("restante-records", Room::Role),
    ("restante-blobs", Room::Role),
    ("restante-follow", Room::Follower),
    ("restante-waku-wire", Room::Wire),
    ("restante-waku", Room::Door),
    ("restante-import", Room::Reader),
    ("restante-power-cut", Room::Testing),
    ("futures-timer", Room::StandIn),
    ("restante-bench", Room::Whole),
    ("restante", Room::Whole),
];

/// What the crates of a room may import. A role never imports a role, nor a door a door; nobody imports the whole. A reader
/// is imported by the whole alone, and so is what reads change feeds.
const MAY_IMPORT: &[(Room, &[Room])] = &[
    (Room::Core, &[]),
    (Room::Wire, &[Room::Core]),
    (Room::Ground, &[Room::Core, Room::Ground]),
    (Room::Role, &[Room::Core, Room::Ground]),
    (Room::Follower, &[Room::Core, Room::Role]),
    (Room::Door, &[Room::Core, Room::Ground, Room::Role, Room::Wire]),
    (Room::Reader, &[Room::Core, Room::Role, Room::Wire]),
    (Room::StandIn, &[]),
    (Room::Testing, &[]),
    (
        Room::Whole,
        &[Room::Core, Room::Ground, Room::Role, Room::Follower, Room::Wire, Room::Door, Room::Reader],
    ),
];

/// The one exception: the binary hands `restante bench` on to the crate that measures.
const EXCEPTIONS: &[(&str, &str)] = &[("restante", "restante-bench")];

/// What a crate that is pure computation must not reach, not even through others.
const NO_IO: &[&str] = &["tokio", "hyper", "axum", "mio", "socket2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    /// Words that everybody shares.
    Core,
    /// A format: parse and encode, no I/O.
    Wire,
    /// What engines of several roles stand on.
    Ground,
    /// What is kept, and its engines.
    Role,
    /// Reads what has changed in a role, from a checkpoint of its own.
    Follower,
    /// A protocol towards the outside.
    Door,
    /// Reads what other programs have kept, for a role: it names the role's types and asks nothing of it.
    Reader,
    /// Takes the place of a library's dependency: imports nothing of ours, and nobody of ours names it.
    StandIn,
    /// What only tests use: it imports nothing of ours.
    Testing,
    /// What puts everything together.
    Whole,
}

fn packages() -> Vec<Package> {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let mut command = MetadataCommand::new();
    command.manifest_path(manifest).no_deps().other_options(["--offline".to_owned()]);
    command.exec().unwrap().packages
}

#[test]
fn every_crate_has_a_room() {
    let known: BTreeSet<&str> = ROOMS.iter().map(|(name, _)| *name).collect();
    let packages = packages();
    let there: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(there, known, "the table ROOMS and the workspace differ");
}

#[test]
fn crates_import_only_what_their_room_may() {
    let rooms: BTreeMap<&str, Room> = ROOMS.iter().copied().collect();
    let may_import: BTreeMap<Room, &[Room]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let importer = package.name.as_str();
        let allowed = may_import[&rooms[importer]];
        for dependency in &package.dependencies {
            let imported = dependency.name.as_str();
            let Some(room) = rooms.get(imported) else { continue };
            let is_exception = EXCEPTIONS.contains(&(importer, imported));
            // Tests may look further than the code, but nobody's tests may need the whole.
            let is_for_tests = dependency.kind == DependencyKind::Development && *room != Room::Whole;
            if !allowed.contains(room) && !is_exception && !is_for_tests {
                wrong.push(format!("{importer} ({:?}) imports {imported} ({room:?})", rooms[importer]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn core_and_wire_crates_know_no_runtime() {
    for (name, room) in ROOMS {
        if !matches!(room, Room::Core | Room::Wire) {
            continue;
        }
        let tree = Command::new(env!("CARGO"))
            .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", name])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8(tree.stdout).unwrap();
        let reached: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(reached.contains(name), "the tree of {name} begins with it:\n{tree}");
        for runtime in NO_IO {
            assert!(!reached.contains(runtime), "{name} reaches {runtime}");
        }
    }
}
