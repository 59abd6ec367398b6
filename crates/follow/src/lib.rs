//! Followers of change feeds: what is done after a commit, in order, at least once, from a checkpoint.
