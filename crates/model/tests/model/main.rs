//! Tests of the whole model, in one program since each one links for long.
mod forward;
mod head;
mod invariance;
mod llamacpp;
mod loading;
mod speculator;
mod speculator_files;
mod speculator_refusals;
mod support;
