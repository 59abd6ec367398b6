//! The methods that make, change and destroy emails (RFC 8621 §4.6 to §4.8).

mod copy;
mod create;
mod draft;
mod import;
mod new_emails;
mod placement;
mod set;
mod stored;
mod update;
mod write;

use crate::core::{Capability, Method};

pub(super) use self::{draft::Invalid, set::set_emails};

pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Email/set",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(set::set(context, exchange, args)),
    },
    Method {
        name: "Email/import",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(import::import(context, exchange, args)),
    },
    Method {
        name: "Email/copy",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(copy::copy(context, exchange, args)),
    },
];

#[cfg(test)]
mod tests;
