//! `restante mail import` and `restante mail export`: move mail in and out, in the stores of a stopped server or through a running one.

mod batches;
mod export;
mod frame;
mod import;
mod jmap;
mod mover;
mod page;
mod place;
mod report;
mod route;
mod target;

pub(super) use export::ExportFlags;
pub(super) use import::ImportFlags;
pub(super) use {export::run as run_export, import::run as run_import};

pub(crate) use mover::Mover;
pub(crate) use route::route;
pub(crate) use target::message_bytes_max;
