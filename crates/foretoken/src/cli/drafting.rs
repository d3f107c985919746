//! The arguments about drafts: the draft model or speculator, for each command that takes one, the drafter and its bounds.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use foretoken::models::ModelError;
use foretoken::{DEFAULT_DRAFT_VOCAB, DraftPolicy, Drafting};

use super::{ModelArg, probability};

/// A draft model or speculator, and what it may say.
#[derive(Debug, Args)]
pub struct DraftModelArgs {
    /// What drafts for it: a smaller model of the same vocabulary, a file or a name; or a speculator, a file or a directory
    #[arg(short, long, visible_alias = "model-draft", value_name = "DRAFT")]
    pub draft_model: Option<ModelArg>,
    /// Let it draft the N most frequent tokens alone, which makes its passes shorter; 0 is its whole vocabulary
    #[arg(long, value_name = "N", requires = "draft_model", default_value_t = DEFAULT_DRAFT_VOCAB)]
    pub draft_vocab: usize,
}

impl DraftModelArgs {
    /// The draft model's or speculator's file, if there is one.
    ///
    /// # Errors
    /// If it is not where it should be.
    pub fn file(&self) -> Result<Option<PathBuf>, ModelError> {
        self.draft_model.as_ref().map(ModelArg::draft_file).transpose()
    }
}

/// Which drafter to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DrafterName {
    /// Whatever pays best in each round, plain decoding among it
    Auto,
    /// What followed the same words in the prompt, the answer or --draft-corpus
    #[value(alias = "lookup")]
    Suffix,
    /// What the model itself thought before might follow a token
    Recycling,
    /// A smaller model of the same vocabulary (-d)
    Model,
    /// A speculator, which goes on from the model's own hidden states (-d)
    Mlp,
    /// Plain decoding
    None,
}

impl DrafterName {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Suffix => "suffix",
            Self::Recycling => "recycling",
            Self::Model => "model",
            Self::Mlp => "mlp",
            Self::None => "none",
        }
    }

    /// What it stands for.
    pub fn drafting(self) -> Drafting {
        match self {
            Self::Auto => Drafting::Auto,
            Self::Suffix => Drafting::Suffix,
            Self::Recycling => Drafting::Recycling,
            Self::Model => Drafting::Model,
            Self::Mlp => Drafting::Mlp,
            Self::None => Drafting::None,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Speculation")]
pub struct DraftArgs {
    /// Where drafts may come from; all but none draft only while that is faster
    #[arg(long, value_enum, default_value_t = DrafterName::Auto)]
    pub drafter: DrafterName,
    /// Draft from this text too, for instance the code that the answer is about (may be given several times)
    #[arg(long, value_name = "FILE")]
    pub draft_corpus: Vec<PathBuf>,
    /// The share of plain decoding's time that drafts may lose
    #[arg(long, value_name = "P", default_value_t = 0.02, value_parser = probability)]
    pub loss_budget: f32,
    /// Most draft tokens of a round [default: 15]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub draft_max: Option<u32>,
    /// So many draft tokens in every round, whether that pays or not: of the draft model or speculator, if there is one, else of the suffixes
    #[arg(long, value_name = "N", conflicts_with_all = ["draft_max", "draft_min", "draft_p_min"],
          value_parser = clap::value_parser!(u32).range(1..=512))]
    pub draft_fixed: Option<u32>,
    /// Drop drafts of fewer tokens [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=512))]
    pub draft_min: Option<u32>,
    /// End a draft before a token of less confidence [default: 0]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub draft_p_min: Option<f32>,
}

impl DraftArgs {
    /// What clap's own rules cannot say.
    pub fn check(&self, model: &DraftModelArgs) -> Result<(), String> {
        let given = [
            ("--draft-max", self.draft_max.is_some()),
            ("--draft-fixed", self.draft_fixed.is_some()),
            ("--draft-min", self.draft_min.is_some()),
            ("--draft-p-min", self.draft_p_min.is_some()),
            ("--draft-corpus", !self.draft_corpus.is_empty()),
        ];
        let name = self.drafter;
        match (name, &model.draft_model) {
            (DrafterName::Model, None) => {
                return Err("--drafter model needs a draft model: -d DRAFT.gguf".into());
            }
            (DrafterName::Mlp, None) => {
                return Err("--drafter mlp needs a speculator: -d SPECULATOR.gguf".into());
            }
            (DrafterName::Suffix | DrafterName::Recycling | DrafterName::None, Some(_)) => {
                return Err(format!(
                    "-d gives something to draft with that --drafter {} does not use",
                    name.name()
                ));
            }
            _ => {}
        }
        if name == DrafterName::None
            && let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given)
        {
            return Err(format!("{flag} has no effect with --drafter none"));
        }
        if !self.draft_corpus.is_empty() && !matches!(name, DrafterName::Auto | DrafterName::Suffix) {
            return Err("--draft-corpus is for --drafter auto and suffix".into());
        }
        let policy = self.policy();
        if policy.fixed.is_none() && policy.min > policy.max {
            return Err(format!(
                "--draft-min {} is more than --draft-max {}",
                policy.min, policy.max
            ));
        }
        Ok(())
    }

    /// Where drafts may come from.
    pub fn drafting(&self) -> Drafting {
        self.drafter.drafting()
    }

    /// How long drafts may be.
    pub fn policy(&self) -> DraftPolicy {
        let default = DraftPolicy::default();
        DraftPolicy {
            max: self.draft_max.map_or(default.max, |n| n as usize),
            min: self.draft_min.map_or(default.min, |n| n as usize),
            fixed: self.draft_fixed.map(|n| n as usize),
            p_min: self.draft_p_min.unwrap_or(default.p_min),
        }
    }
}
