//! Core/echo (RFC 8620 §4).

use crate::core::{Args, Capability, Context, Exchange, Method, MethodError};

pub(crate) const METHODS: &[Method] = &[Method {
    name: "Core/echo",
    capability: Capability::Core,
    run: |context, exchange, args| Box::pin(echo(context, exchange, args)),
}];

/// Returns its arguments.
async fn echo(_: &Context, exchange: &mut Exchange, args: Args) -> Result<(), MethodError> {
    exchange.answers.begin().extend(&args.into_map());
    Ok(())
}
