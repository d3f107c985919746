//! Training, step by step, and what has been learned so far.

use std::path::Path;
use std::time::{Duration, Instant};

use foretoken_spec::Token;
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::dataset::{Dataset, DatasetError};
use crate::init;
use crate::loss::OUTSIDE;
use crate::network::{Batch, Network};
use crate::optimizer::{Moments, Rates, learning_rate};
use crate::samples::Samples;
use crate::shape::NetworkShape;

/// The target's own tables, which are not trained.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    /// Writes a token's row of the embedding, `[hidden_size]`.
    pub embedding: &'a (dyn Fn(Token, &mut [f32]) + Sync),
    /// Rows of the output head for the draft vocabulary, `[draft_vocabulary.len()][hidden_size]`.
    pub head: &'a [f32],
    /// The tokens that drafts may hold, ascending.
    pub draft_vocabulary: &'a [Token],
}

/// What parameters are before the first step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Init {
    /// Random, as published speculators begin.
    Random,
    /// Such that each head is the target's output head over a linear guess of its next state, fitted to the training rows. Asks for an inner size of at
    /// least twice the hidden size.
    #[default]
    Regression,
}

/// How to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    /// The network.
    pub shape: NetworkShape,
    /// How it begins.
    pub init: Init,
    /// Rows of a step.
    pub batch: usize,
    /// Steps of the whole training, which the schedule goes by.
    pub steps: u64,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Share of the steps over which the learning rate rises.
    pub warmup: f64,
    /// What matrices lose of their size in a step, times the learning rate.
    pub weight_decay: f64,
    /// The longest gradient that is used as it is.
    pub clip: f64,
    /// Seed of the first parameters and of the order of rows.
    pub seed: u64,
    /// Whether to learn the target's likeliest token alone, not its distribution.
    pub hard_labels: bool,
    /// Of every so many sequences, one's answer is kept for [`Trainer::evaluate`]; 0 keeps none.
    pub held_out: usize,
    /// The most rows to evaluate with.
    pub evaluation_rows: usize,
    /// Threads to compute on. They change no bit.
    pub threads: usize,
}

impl TrainOptions {
    /// What suits most trainings of such a network.
    pub fn new(shape: NetworkShape) -> Self {
        Self {
            shape,
            init: Init::default(),
            batch: 512,
            steps: 2000,
            learning_rate: 1e-3,
            warmup: 0.05,
            weight_decay: 0.1,
            clip: 1.0,
            seed: 1,
            hard_labels: false,
            held_out: 20,
            evaluation_rows: 8192,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// Why training cannot begin or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A dataset could not be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Datasets do not go with each other or with the network, or hold too little.
    #[error("dataset: {0}")]
    Data(String),
    /// An option cannot be honoured.
    #[error("option {0}")]
    Option(String),
    /// The tables are not of the network's size.
    #[error("tables: {0}")]
    Tables(String),
    /// A step made what is not a number.
    #[error("step {0}: the loss or its gradient is not a finite number; a lower learning rate may help")]
    Diverged(u64),
    /// A checkpoint could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A checkpoint is not one of this training.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Steps so far, this one among them.
    pub step: u64,
    /// Sum of the heads' losses, nats.
    pub loss: f64,
    /// Mean loss of each head.
    pub head_losses: Vec<f64>,
    /// The learning rate.
    pub learning_rate: f64,
    /// The gradient's length before it was clipped.
    pub gradient_norm: f64,
    /// Time to read the rows.
    pub reading: Duration,
    /// Time of forward and backward.
    pub network: Duration,
    /// Time of the optimiser.
    pub optimizer: Duration,
}

/// What a head is worth on rows that were held out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeadReport {
    /// Mean loss, nats.
    pub loss: f64,
    /// How often it foretold the target's likeliest token, given that all heads before did.
    pub acceptance: f64,
    /// How often it foretold the target's likeliest token.
    pub unconditional: f64,
    /// How often the target's likeliest token is in the draft vocabulary.
    pub coverage: f64,
}

/// A training.
#[derive(Debug)]
pub struct Trainer<'a> {
    pub(crate) options: TrainOptions,
    pub(crate) step: u64,
    pub(crate) network: Network,
    pub(crate) moments: Moments,
    pub(crate) samples: Samples,
    pub(crate) tables: Tables<'a>,
    batch: Batch,
    pool: ThreadPool,
}

impl std::fmt::Debug for Tables<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables")
            .field("draft_vocabulary", &self.draft_vocabulary.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Trainer<'a> {
    /// Begins a training. With [`Init::Regression`], this goes over the training rows.
    ///
    /// # Errors
    /// If datasets, tables and options do not go together, or rows cannot be read.
    pub fn new(dataset: Dataset, tables: Tables<'a>, options: TrainOptions) -> Result<Self, TrainError> {
        let mut trainer = Self::empty(dataset, tables, options)?;
        let Self {
            options,
            network,
            samples,
            pool,
            ..
        } = &mut trainer;
        pool.install(|| match options.init {
            Init::Random => {
                init::random(network, &tables, options.seed);
                Ok(())
            }
            Init::Regression => init::regression(network, &tables, samples, options),
        })?;
        Ok(trainer)
    }

    /// Goes on with a training that [`Trainer::save`] kept: it makes the same bits as one that was never interrupted.
    ///
    /// # Errors
    /// As [`Trainer::new`], and if the file is not a checkpoint of such a training. `threads` and `evaluation_rows` alone may differ.
    pub fn resume(
        path: &Path,
        dataset: Dataset,
        tables: Tables<'a>,
        options: TrainOptions,
    ) -> Result<Self, TrainError> {
        let mut trainer = Self::empty(dataset, tables, options)?;
        checkpoint::load(path, &mut trainer)?;
        Ok(trainer)
    }

    fn empty(dataset: Dataset, tables: Tables<'a>, options: TrainOptions) -> Result<Self, TrainError> {
        check(&options, &tables)?;
        let samples = Samples::new(dataset, &options)?;
        let network = Network::new(options.shape);
        let pool = ThreadPoolBuilder::new().num_threads(options.threads).build();
        let pool = pool.map_err(|error| TrainError::Option(format!("threads: {error}")))?;
        let moments = Moments::new(network.layout.len);
        Ok(Self {
            options,
            step: 0,
            network,
            moments,
            samples,
            tables,
            batch: Batch::default(),
            pool,
        })
    }

    /// How it is trained.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Rows that are learned from, and rows that are held out.
    pub fn rows(&self) -> (usize, usize) {
        (self.samples.training.len(), self.samples.held_out.len())
    }

    /// What a step takes, without learning from it.
    ///
    /// # Errors
    /// If rows cannot be read.
    pub fn step_time(&mut self) -> Result<Duration, TrainError> {
        let Self {
            options,
            network,
            samples,
            batch,
            tables,
            ..
        } = self;
        let start = Instant::now();
        let rows = samples.of_step(self.step, options.batch);
        samples.read(&rows, tables, options, batch)?;
        self.pool.install(|| network.learn(batch, tables.head));
        Ok(start.elapsed())
    }

    /// Sets how many steps the whole training has.
    ///
    /// # Panics
    /// If it has begun.
    pub fn set_steps(&mut self, steps: u64) {
        assert_eq!(self.step, 0, "the schedule of a training that has begun is fixed");
        self.options.steps = steps.max(1);
    }

    /// One step.
    ///
    /// # Errors
    /// If rows cannot be read, or the loss is no number any more; the parameters are then as they were.
    pub fn step(&mut self) -> Result<StepReport, TrainError> {
        let Self {
            options,
            network,
            moments,
            samples,
            batch,
            tables,
            ..
        } = self;
        let start = Instant::now();
        let rows = samples.of_step(self.step, options.batch);
        samples.read(&rows, tables, options, batch)?;
        let reading = start.elapsed();
        let learning_rate = learning_rate(options.learning_rate, options.warmup, self.step, options.steps);
        let rates = Rates {
            learning_rate,
            weight_decay: options.weight_decay,
            clip: options.clip,
        };
        let step = self.step;
        let (head_losses, gradient_norm, learned) = self.pool.install(|| {
            let losses = network.learn(batch, tables.head);
            let learned = start.elapsed();
            let decayed = network.layout.matrices;
            let norm = moments.step(step, rates, &mut network.parameters, decayed, &network.gradient);
            (losses, norm, learned)
        });
        let loss: f64 = head_losses.iter().sum();
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(TrainError::Diverged(self.step));
        }
        self.step += 1;
        Ok(StepReport {
            step: self.step,
            loss,
            head_losses,
            learning_rate,
            gradient_norm,
            reading,
            network: learned - reading,
            optimizer: start.elapsed() - learned,
        })
    }

    /// What each head is worth on held-out rows, evenly spaced where there are more than are asked for.
    ///
    /// # Errors
    /// If no row is held out, or rows cannot be read.
    pub fn evaluate(&mut self) -> Result<Vec<HeadReport>, TrainError> {
        let all = self.samples.held_out.len();
        let count = all.min(self.options.evaluation_rows);
        if count == 0 {
            return Err(TrainError::Data(
                "no sequence is held out to evaluate with".to_owned(),
            ));
        }
        let rows: Vec<u64> = (0..count)
            .map(|at| self.samples.held_out[at * all / count])
            .collect();
        let heads = self.options.shape.heads;
        let mut loss = vec![0.0; heads];
        let (mut right, mut reached, mut run, mut covered) =
            (vec![0; heads], vec![0; heads], vec![0; heads], vec![0; heads]);
        let Self {
            options,
            network,
            samples,
            batch,
            tables,
            ..
        } = self;
        for rows in rows.chunks(options.batch) {
            samples.read(rows, tables, options, batch)?;
            let mut alive = vec![true; rows.len()];
            self.pool.install(|| {
                network.forward(batch, heads);
                for i in 0..heads {
                    let losses = network.losses(batch, i, tables.head);
                    let labels = batch.labels[i].best.iter().zip(&batch.labels[i].next);
                    for ((row, (&best, &next)), alive) in losses.iter().zip(labels).zip(&mut alive) {
                        let hit = row.best == best;
                        loss[i] += f64::from(row.loss);
                        covered[i] += u64::from(best != OUTSIDE);
                        right[i] += u64::from(hit);
                        reached[i] += u64::from(*alive);
                        *alive &= hit;
                        run[i] += u64::from(*alive);
                        // What the next head reads is the token that was drawn, and this one's only if it is the same.
                        *alive &= row.best == next;
                    }
                }
            });
        }
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let count = count as u64;
        Ok((0..heads)
            .map(|i| HeadReport {
                loss: loss[i] / count as f64,
                acceptance: share(run[i], reached[i]),
                unconditional: share(right[i], count),
                coverage: share(covered[i], count),
            })
            .collect())
    }

    /// The parameters: name, dimensions (rows, columns) and values.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        let tensors = &self.network.layout.tensors;
        let values = |tensor: &crate::shape::Tensor| self.network.parameters[tensor.range.clone()].to_vec();
        tensors
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.dims.clone(), values(tensor)))
            .collect()
    }

    /// Keeps all that [`Trainer::resume`] needs in a file, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        checkpoint::save(path, self)
    }
}

fn check(options: &TrainOptions, tables: &Tables<'_>) -> Result<(), TrainError> {
    let NetworkShape {
        hidden_size,
        inner_size,
        heads,
        ..
    } = options.shape;
    let positive = [
        ("hidden_size", hidden_size as f64),
        ("inner_size", inner_size as f64),
        ("heads", heads as f64),
        ("batch", options.batch as f64),
        ("steps", options.steps as f64),
        ("threads", options.threads as f64),
        ("learning_rate", options.learning_rate),
        ("clip", options.clip),
    ];
    for (name, value) in positive {
        if !(value > 0.0 && value.is_finite()) {
            return Err(TrainError::Option(format!("{name}: {value} is not above 0")));
        }
    }
    if !(0.0..=1.0).contains(&options.warmup) {
        return Err(TrainError::Option(format!(
            "warmup: {} is no share of the steps",
            options.warmup
        )));
    }
    if !(0.0..).contains(&options.weight_decay) {
        return Err(TrainError::Option(format!(
            "weight_decay: {} is below 0",
            options.weight_decay
        )));
    }
    if options.init == Init::Regression && inner_size < 2 * hidden_size {
        let problem = format!(
            "init: regression needs an inner_size of at least {}, not {inner_size}",
            2 * hidden_size
        );
        return Err(TrainError::Option(problem));
    }
    let tokens = tables.draft_vocabulary;
    if tokens.is_empty() || tables.head.len() != tokens.len() * hidden_size {
        let problem = format!(
            "a head of {} values for {} tokens of {hidden_size}",
            tables.head.len(),
            tokens.len()
        );
        return Err(TrainError::Tables(problem));
    }
    if !tokens.is_sorted_by(|a, b| a < b) {
        return Err(TrainError::Tables(
            "the draft vocabulary is not ascending".to_owned(),
        ));
    }
    Ok(())
}
