//! Who may read what the process writes: its user, and nobody beside its group.

use rustix::{fs::Mode, process::umask};

/// What is taken from the rights of each file and folder that is made: all of others, and writing of the group. So files have mode
/// 0640 and folders 0750; secrets ask for 0600 themselves.
const TAKEN: Mode = Mode::WGRP.union(Mode::RWXO);

/// Restricts the rights of what this process makes. A mask that takes more stays; what is there already is left as it is. Called
/// before any thread is started.
pub(crate) fn restrict() {
    let before = umask(TAKEN);
    umask(before | TAKEN);
}
