//! End to end: the built binary, driven as people and scripts drive it.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on has failed")]

mod support;

mod backup;
mod certificates;
mod checks;
mod command_line;
mod configuration;
mod crash;
mod damage;
mod data_folder;
mod database;
mod deliveries;
mod directory;
mod domain_records;
mod doors;
mod filled;
mod floods;
mod hostile;
mod hostile_connections;
mod hostile_mail;
mod hostile_peers;
mod live;
mod mail;
mod mail_moving;
mod metrics;
mod moving;
mod node;
mod ops;
mod records;
mod sending;
mod serving;
mod sessions;
mod transfer;
