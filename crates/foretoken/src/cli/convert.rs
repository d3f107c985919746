//! The arguments of `foretoken convert`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use foretoken::model::SpeculatorType;

use super::ThreadArgs;

#[derive(Debug, Args)]
pub struct ConvertArgs {
    #[command(subcommand)]
    pub command: ConvertCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConvertCommand {
    /// Make one GGUF file of an MLP speculator as it is published
    Speculator(ConvertSpeculatorArgs),
}

#[derive(Debug, Args)]
pub struct ConvertSpeculatorArgs {
    /// The directory with config.json and safetensors files
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE.gguf")]
    pub output: PathBuf,
    /// How weights are stored; a tensor whose rows are no whole blocks is stored more exactly
    #[arg(long = "type", value_enum, value_name = "TYPE", default_value = "q8_0")]
    pub ty: TypeName,
    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A type of weights, named as in llama.cpp.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(non_camel_case_types)]
pub enum TypeName {
    #[value(name = "f16")]
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_k")]
    Q4_K,
}

impl From<TypeName> for SpeculatorType {
    fn from(name: TypeName) -> Self {
        match name {
            TypeName::F16 => Self::F16,
            TypeName::Q8_0 => Self::Q8_0,
            TypeName::Q4_K => Self::Q4_K,
        }
    }
}
