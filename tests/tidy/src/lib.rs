//! Rules of this repository that no compiler checks: imports between crates, features, lengths, words, links between pages.

#![cfg(test)]

mod features;
mod imports;
mod mail_rules;
mod tidy;
mod words;
