//! The Email methods that only read (RFC 8621 §4).

mod document;
pub(crate) mod get;
mod load;
mod parse;
pub(crate) mod properties;
pub(crate) mod query;
mod render;
mod snippet;

use crate::core::{Capability, Method};

use super::changes;

/// The methods that read emails.
pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "Email/get",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(get::get(context, exchange, args)),
    },
    Method {
        name: "Email/changes",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(changes::email(context, exchange, args)),
    },
    Method {
        name: "Email/query",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(query::query(context, exchange, args)),
    },
    Method {
        name: "Email/queryChanges",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(query::query_changes(context, exchange, args)),
    },
    Method {
        name: "Email/parse",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(parse::parse(context, exchange, args)),
    },
    Method {
        name: "SearchSnippet/get",
        capability: Capability::Mail,
        run: |context, exchange, args| Box::pin(snippet::get(context, exchange, args)),
    },
];

#[cfg(test)]
mod tests;
