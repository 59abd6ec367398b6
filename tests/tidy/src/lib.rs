//! Rules of this repository that no compiler checks: who imports whom, lengths, words, links between pages.

#![cfg(test)]

mod imports;
mod tidy;
mod words;
