//! Which crate may import which: the table of `ARCHITECTURE.md`, checked against the manifests.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::features::tree;

/// The kind of each crate. A new crate is added here before it imports anything.
const CRATES: &[(&str, Kind)] = &[
    ("restante-core", Kind::Core),
    ("restante-waku-wire", Kind::Wire),
    ("restante-mail-wire", Kind::Wire),
    ("restante-disk", Kind::Ground),
    ("restante-lmdb", Kind::Ground),
    ("restante-net", Kind::Ground),
    ("restante-muxers", Kind::Ground),
    ("restante-http", Kind::Front),
    ("restante-operate", Kind::Front),
    ("restante-archive", Kind::Role),
    ("restante-sessions", Kind::Role),
    ("restante-records", Kind::Role),
    ("restante-blobs", Kind::Role),
    ("restante-search", Kind::Role),
    ("restante-queue", Kind::Role),
    ("restante-directory", Kind::Model),
    ("restante-mail", Kind::Model),
    ("restante-checks", Kind::Model),
    ("restante-follow", Kind::Loop),
    ("restante-delivery", Kind::Follower),
    ("restante-indexer", Kind::Follower),
    ("restante-waku", Kind::Door),
    ("restante-jmap", Kind::Door),
    ("restante-smtp", Kind::Door),
    ("restante-import", Kind::Reader),
    ("restante-mail-files", Kind::Reader),
    ("restante-power-cut", Kind::Testing),
    ("restante-fault-proxy", Kind::Testing),
    ("restante-tidy", Kind::Testing),
    ("restante-backup", Kind::Whole),
    ("restante-bench", Kind::Whole),
    ("restante", Kind::Whole),
    ("futures-timer", Kind::Replacement),
];

/// What crates of a kind may import. A role never imports a role, and a door never a door; nothing imports a whole crate.
const MAY_IMPORT: &[(Kind, &[Kind])] = &[
    (Kind::Core, &[]),
    (Kind::Wire, &[Kind::Core]),
    (Kind::Ground, &[Kind::Core, Kind::Ground]),
    (Kind::Role, &[Kind::Core, Kind::Ground]),
    (Kind::Model, &[Kind::Core, Kind::Ground, Kind::Role, Kind::Wire]),
    (Kind::Loop, &[Kind::Core, Kind::Role]),
    // Of the fronts, operate imports http and the directory.
    (Kind::Front, &[Kind::Core, Kind::Ground, Kind::Role, Kind::Model, Kind::Front]),
    (Kind::Follower, &[Kind::Core, Kind::Ground, Kind::Role, Kind::Wire, Kind::Model, Kind::Loop]),
    (Kind::Door, &[Kind::Core, Kind::Ground, Kind::Role, Kind::Wire, Kind::Model, Kind::Front]),
    (Kind::Reader, &[Kind::Core, Kind::Ground, Kind::Role, Kind::Wire, Kind::Model]),
    (Kind::Testing, &[]),
    (Kind::Replacement, &[]),
    (
        Kind::Whole,
        &[
            Kind::Core,
            Kind::Wire,
            Kind::Ground,
            Kind::Role,
            Kind::Model,
            Kind::Loop,
            Kind::Front,
            Kind::Follower,
            Kind::Door,
            Kind::Reader,
        ],
    ),
];

/// The exceptions: the binary imports what `restante bench` and `restante backup` run.
const EXCEPTIONS: &[(&str, &str)] = &[("restante", "restante-bench"), ("restante", "restante-backup")];

/// Crates that a core or wire crate must not reach, not even through others.
const IO_CRATES: &[&str] = &["tokio", "hyper", "axum", "mio", "socket2"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Types that all crates share.
    Core,
    /// A protocol's bytes: parse and encode, no I/O.
    Wire,
    /// What engines and fronts are built on: files, LMDB, sockets.
    Ground,
    /// A trait for what is stored, and its engines.
    Role,
    /// What stored objects mean: accounts, emails.
    Model,
    /// The loop of a follower.
    Loop,
    /// What doors share: HTTP, the console.
    Front,
    /// Reads the changes of a role from a checkpoint of its own.
    Follower,
    /// A protocol towards the outside.
    Door,
    /// Reads the stores of other programs.
    Reader,
    /// Only tests use it.
    Testing,
    /// Replaces a dependency of a library.
    Replacement,
    /// Puts everything together.
    Whole,
}

fn packages() -> Vec<Package> {
    let mut command = MetadataCommand::new();
    command.manifest_path("../../Cargo.toml").no_deps().other_options(["--offline".to_owned()]);
    command.exec().unwrap().packages
}

#[test]
fn every_crate_has_a_kind() {
    let known: BTreeSet<&str> = CRATES.iter().map(|(name, _)| *name).collect();
    let packages = packages();
    let there: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(there, known, "the table CRATES and the workspace differ");
}

#[test]
fn crates_import_only_what_their_kind_may() {
    let kinds: BTreeMap<&str, Kind> = CRATES.iter().copied().collect();
    let may_import: BTreeMap<Kind, &[Kind]> = MAY_IMPORT.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let importer = package.name.as_str();
        let allowed = may_import[&kinds[importer]];
        for dependency in &package.dependencies {
            let imported = dependency.name.as_str();
            let Some(kind) = kinds.get(imported) else { continue };
            let is_exception = EXCEPTIONS.contains(&(importer, imported));
            // Tests may import more than the code, but no whole crate.
            let is_for_tests = dependency.kind == DependencyKind::Development && *kind != Kind::Whole;
            if !allowed.contains(kind) && !is_exception && !is_for_tests {
                wrong.push(format!("{importer} ({:?}) imports {imported} ({kind:?})", kinds[importer]));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn core_and_wire_crates_reach_no_runtime() {
    for (name, kind) in CRATES {
        if !matches!(kind, Kind::Core | Kind::Wire) {
            continue;
        }
        let reached = tree(&["--edges", "normal", "--package", name]);
        assert!(reached.contains(*name), "the tree of {name} begins with it: {reached:?}");
        for runtime in IO_CRATES {
            assert!(!reached.contains(*runtime), "{name} reaches {runtime}");
        }
    }
}
