//! How to serve.

use std::net::SocketAddr;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// Sequences that are generated at once.
    pub parallel: usize,
    /// Choices that may wait.
    pub queue: usize,
    /// Requests need one of these keys, if there are any.
    pub keys: Vec<ApiKey>,
    /// Host names by which the server may be called, besides addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Origins of pages that may call the server, besides its own.
    pub origins: Vec<String>,
    /// How long a request may take.
    pub timeout: Duration,
}

/// A key, of which only a hash is kept.
#[derive(Clone)]
pub struct ApiKey([u8; 32]);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl ApiKey {
    /// The key that is written so.
    pub fn new(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Whether a text is this key, in a time that tells nothing of it.
    fn is(&self, text: &str) -> bool {
        self.0.ct_eq(&Self::new(text).0).into()
    }

    /// Whether a text is one of these keys.
    pub(crate) fn any(keys: &[Self], text: &str) -> bool {
        keys.iter().fold(false, |found, key| found | key.is(text))
    }
}
