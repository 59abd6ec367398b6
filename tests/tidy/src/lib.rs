//! Rules of this repository that no compiler checks: who imports whom, lengths, words, links between pages.

#![cfg(test)]
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod imports;
mod tidy;
