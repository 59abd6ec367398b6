//! Restricts who may read the files of the process: its user, and at most its group.

use rustix::{fs::Mode, process::umask};

/// The permissions that are removed from each created file and folder: all for others, and writing for the group. So files have mode
/// 0640 and folders 0750; secrets are created with 0600.
const TAKEN: Mode = Mode::WGRP.union(Mode::RWXO);

/// Restricts the permissions of everything that this process creates. A stricter mask stays; existing files are left unchanged. Called
/// before any thread is started.
pub(crate) fn restrict() {
    let before = umask(TAKEN);
    umask(before | TAKEN);
}
