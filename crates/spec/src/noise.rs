//! Gumbel noise as a function of (key, position, token id) alone.
