//! RFC 8620: what all methods share. Requests and their errors, arguments, references, creation ids, ids, states, patches and responses.

pub(crate) mod answers;
pub(crate) mod args;
pub(crate) mod capabilities;
pub(crate) mod content;
pub(crate) mod context;
pub(crate) mod creations;
pub(crate) mod dispatch;
pub(crate) mod errors;
pub(crate) mod fuzz;
pub(crate) mod ids;
pub(crate) mod json;
pub(crate) mod patch;
pub(crate) mod reference;
pub(crate) mod request;
pub(crate) mod set;
pub(crate) mod uploads;

pub(crate) use self::{
    answers::{Answers, List, Members, Object, write_json},
    args::{Args, Argument},
    capabilities::{Capability, Using},
    content::Content,
    context::Context,
    creations::Creations,
    dispatch::{Exchange, Method},
    errors::{MethodError, SetError},
    ids::{BlobRef, Id, IdType, State},
    patch::Patch,
    set::{SetAnswer, SetArgs},
};
