//! Doors are features of the binary: which crates only one door adds, and where the code may name a feature.

use std::{collections::BTreeSet, process::Command};

use crate::tidy::texts;

/// The contents of a binary with one door, tests included: the feature, prefixes of names of crates that it must not have, and
/// crates that it has.
const DOORS: &[(&str, &[&str], &[&str])] = &[
    (
        "mail",
        &["libp2p", "restante-waku", "restante-archive", "restante-import", "restante-bench"],
        &["restante-records", "restante-blobs", "restante-directory", "restante-mail"],
    ),
    (
        "waku",
        &["lmdb", "heed", "restante-lmdb", "restante-records", "restante-blobs", "restante-directory"],
        &["libp2p", "restante-waku", "restante-archive", "restante-import"],
    ),
];

/// The files of the binary that may name a feature: where modules are declared, and where doors are put into lists of doors, sections of
/// settings, flags and commands.
const LISTS: &[&str] =
    &["cli.rs", "commands/mod.rs", "config/flags.rs", "config/mod.rs", "config/schema.rs", "doors/mod.rs"];

/// The names of the crates that `cargo tree` prints with these arguments.
pub(crate) fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--prefix", "none"])
        .args(arguments)
        .current_dir("../..")
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn a_door_alone_brings_nothing_of_the_other() {
    for (feature, absent, present) in DOORS {
        let tree = tree(&["--package", "restante", "--no-default-features", "--features", feature]);
        for name in *present {
            assert!(tree.contains(*name), "--features {feature} lacks {name}");
        }
        let wrong: Vec<&String> =
            tree.iter().filter(|name| absent.iter().any(|begin| name.starts_with(begin))).collect();
        assert!(wrong.is_empty(), "--features {feature} brings {wrong:?}");
    }
}

#[test]
fn features_of_the_binary_are_named_in_lists_alone() {
    let mut count = 0;
    for (path, text) in texts() {
        let Ok(file) = path.strip_prefix("crates/restante/src") else { continue };
        let lines =
            text.lines().filter(|line| line.contains("cfg(feature") || line.contains("cfg!(feature")).count();
        let is_list = LISTS.iter().any(|list| file.ends_with(list));
        assert!(lines == 0 || is_list, "{} asks for a feature: let the list of doors decide", path.display());
        count += lines;
    }
    assert!(count > 0, "the features are named somewhere");
}
