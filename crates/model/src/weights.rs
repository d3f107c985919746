//! Weights from a file into kernel layout.
