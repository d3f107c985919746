//! Training of MLP speculators (Wertheimer et al. 2024, arXiv 2404.19124) from any target model: what the target computes for texts, mostly
//! its own, is kept on disk ([`Dataset`]), and a small network learns to foretell it.
//!
//! Not here: serving, file formats of models.
#![forbid(unsafe_code)]

mod capture;
mod checkpoint;
mod dataset;
mod init;
mod loss;
mod network;
mod optimizer;
mod products;
mod samples;
mod shape;
mod trainer;

pub use capture::{Capture, CaptureError, CaptureOptions, Frame};
pub use dataset::{Dataset, DatasetError, DatasetMeta, DatasetWriter, Rows, Sequence};
pub use samples::is_held_out;
pub use shape::NetworkShape;
pub use trainer::{HeadReport, Init, StepReport, Tables, TrainError, TrainOptions, Trainer};
