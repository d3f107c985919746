//! MLP speculators: files of them, and the network.
//!
//! With `h` the target's hidden state after the final norm and `t` the token drawn from it, head `i` computes
//! `s = gelu(norm_i(proj_i(s) + α · emb_i[t]))` and the logits `head_i(s)` of the token after, beginning with `s = h`
//! (Wertheimer et al. 2024, arXiv 2404.19124). In the *factored* form the large tables are products with the target's own:
//! `emb_i[t] = P_i · E[t]` and `head_i = H · O_i`, where `E` are its embeddings and `H` is its head.
//!
//! Not here: what is drafted with it (`foretoken_spec`), training.

mod config;
mod export;
mod file;
mod layout;
mod network;
mod shards;
mod write;

pub use config::{SpeculatorConfig, SpeculatorInfo};
pub use export::export_speculator;
pub use file::SpeculatorFile;
pub use foretoken_kernels::Quantizer as SpeculatorType;
pub use network::Speculator;
pub use write::{SpeculatorTensor, Written, write_speculator};
