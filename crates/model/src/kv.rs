//! The paged KV cache.
