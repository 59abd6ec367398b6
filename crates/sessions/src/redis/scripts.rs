//! The Lua scripts. Each is atomic, and one request.
//!
//! A script includes only the parts that it needs, because Lua creates the functions of a script at each run, called or not.

/// A script of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Open,
    Update,
    Close,
    ById,
    Register,
    Beat,
    Nodes,
    Sweep,
}

const NAMES: &str = include_str!("lua/names.lua");
const ENDS: &str = include_str!("lua/ends.lua");
const REPLACE: &str = include_str!("lua/replace.lua");
const NODES: &str = include_str!("lua/nodes.lua");

impl Script {
    pub(super) const ALL: [Self; 8] = [
        Self::Open,
        Self::Update,
        Self::Close,
        Self::ById,
        Self::Register,
        Self::Beat,
        Self::Nodes,
        Self::Sweep,
    ];

    /// Its source.
    pub(super) fn code(self) -> String {
        let parts: &[&str] = match self {
            Self::Open => {
                &[include_str!("lua/open_first.lua"), NAMES, ENDS, REPLACE, include_str!("lua/open.lua")]
            }
            Self::Update => &[include_str!("lua/update.lua")],
            Self::Close => &[NAMES, ENDS, include_str!("lua/close.lua")],
            Self::ById => &[NAMES, include_str!("lua/by_id.lua")],
            Self::Register => &[NAMES, ENDS, REPLACE, include_str!("lua/register.lua")],
            Self::Beat => {
                &[NAMES, include_str!("lua/beat.lua"), NODES, "return { was_held and 1 or 0, mail, nodes }\n"]
            }
            Self::Nodes => &[NAMES, NODES, "return nodes\n"],
            Self::Sweep => &[NAMES, ENDS, include_str!("lua/sweep.lua")],
        };
        parts.concat()
    }
}
