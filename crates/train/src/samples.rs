//! Which rows are learned from, in which order, and how they are read.
//!
//! A sample is a row t with n rows after it in its sequence. Every `held_out`-th sequence is kept for evaluation. Each epoch goes through all other samples
//! once, in an order that depends on seed and epoch alone.

use crate::dataset::{Dataset, Rows};
use crate::loss::{Labels, OUTSIDE};
use crate::network::Batch;
use crate::trainer::{Tables, TrainError, TrainOptions};

/// The samples of some datasets.
#[derive(Debug)]
pub(crate) struct Samples {
    datasets: Vec<Dataset>,
    /// The first row of each dataset, counted over all.
    starts: Vec<u64>,
    /// Rows that are learned from, ascending.
    pub(crate) training: Vec<u64>,
    /// Rows to evaluate with, ascending.
    pub(crate) held_out: Vec<u64>,
    /// The order of an epoch: positions in `training`.
    order: Vec<u32>,
    epoch: Option<u64>,
    seed: u64,
    read: Rows,
}

impl Samples {
    pub(crate) fn new(datasets: Vec<Dataset>, options: &TrainOptions) -> Result<Self, TrainError> {
        let (mut training, mut held_out, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let Some(first) = datasets.first().map(|dataset| dataset.meta().clone()) else {
            return Err(TrainError::Data("no dataset".to_owned()));
        };
        let (mut start, mut count) = (0, 0);
        for dataset in &datasets {
            let meta = dataset.meta();
            if (&meta.target, meta.hidden_size, meta.labels)
                != (&first.target, first.hidden_size, first.labels)
            {
                let problem = format!("rows of {meta:?} do not go with those of {first:?}");
                return Err(TrainError::Data(problem));
            }
            starts.push(start);
            let mut rows = 0;
            for sequence in dataset.sequences() {
                count += 1;
                let samples = u64::from(sequence.rows).saturating_sub(options.shape.heads as u64);
                let kept = options.held_out > 0 && count % options.held_out as u64 == 0;
                let split = if kept { &mut held_out } else { &mut training };
                let at = start + sequence.first;
                split.extend(at..at + samples);
                rows = rows.max(sequence.first + u64::from(sequence.rows));
            }
            start += rows;
        }
        if first.hidden_size != options.shape.hidden_size {
            let problem = format!(
                "states of {} values do not fit a network for {}",
                first.hidden_size, options.shape.hidden_size
            );
            return Err(TrainError::Data(problem));
        }
        if training.is_empty() || u32::try_from(training.len()).is_err() {
            let problem = format!(
                "{} rows with {} after them to learn from: between 1 and 2^32 are needed",
                training.len(),
                options.shape.heads
            );
            return Err(TrainError::Data(problem));
        }
        let (order, read, epoch, seed) = (Vec::new(), Rows::default(), None, options.seed);
        Ok(Self {
            datasets,
            starts,
            training,
            held_out,
            order,
            epoch,
            seed,
            read,
        })
    }

    /// The rows of step `step`, in batches of `size`.
    pub(crate) fn of_step(&mut self, step: u64, size: usize) -> Vec<u64> {
        let samples = self.training.len() as u64;
        let first = step * size as u64;
        (first..first + size as u64)
            .map(|at| self.at(at / samples, (at % samples) as usize))
            .collect()
    }

    fn at(&mut self, epoch: u64, position: usize) -> u64 {
        if self.epoch != Some(epoch) {
            self.order.clear();
            self.order.extend(0..self.training.len() as u32);
            let key = foretoken_spec::noise::key(self.seed, epoch);
            fastrand::Rng::with_seed(key).shuffle(&mut self.order);
            self.epoch = Some(epoch);
        }
        self.training[self.order[position] as usize]
    }

    /// Reads rows and those after them into a batch.
    pub(crate) fn read(
        &mut self,
        rows: &[u64],
        tables: &Tables<'_>,
        options: &TrainOptions,
        batch: &mut Batch,
    ) -> Result<(), TrainError> {
        let (d, heads) = (options.shape.hidden_size, options.shape.heads);
        let count = self.datasets[0].meta().labels;
        batch.rows = rows.len();
        batch.states.clear();
        batch.embeddings.resize_with(heads, Vec::new);
        batch.labels.resize_with(heads, Labels::default);
        for (embeddings, labels) in batch.embeddings.iter_mut().zip(&mut batch.labels) {
            embeddings.resize(rows.len() * d, 0.0);
            labels.labels.clear();
            labels.best.clear();
        }
        for (at, &row) in rows.iter().enumerate() {
            let dataset = self.starts.partition_point(|&start| start <= row) - 1;
            self.read.clear();
            self.datasets[dataset].read(row - self.starts[dataset], heads + 1, &mut self.read)?;
            batch.states.extend_from_slice(&self.read.states[..d]);
            for i in 0..heads {
                let token = self.read.tokens[i + 1];
                (tables.embedding)(token, &mut batch.embeddings[i][at * d..][..d]);
                let labels = &mut batch.labels[i];
                let from = (i + 1) * count;
                let position = |token| tables.draft_vocabulary.binary_search(&token).ok();
                let best = position(self.read.label_tokens[from]);
                labels.best.push(best.map_or(OUTSIDE, |at| at as u32));
                for j in 0..count {
                    let label = match position(self.read.label_tokens[from + j]) {
                        Some(at) if !options.hard_labels => {
                            (at as u32, self.read.label_probabilities[from + j])
                        }
                        Some(at) if j == 0 => (at as u32, 1.0),
                        _ => (0, 0.0),
                    };
                    labels.labels.push(label);
                }
            }
        }
        Ok(())
    }

    /// Reads the states of the rows that come `after` rows after `rows`.
    pub(crate) fn read_states(
        &mut self,
        rows: &[u64],
        after: usize,
        states: &mut Vec<f32>,
    ) -> Result<(), TrainError> {
        states.clear();
        for &row in rows {
            let dataset = self.starts.partition_point(|&start| start <= row) - 1;
            self.read.clear();
            self.datasets[dataset].read(row - self.starts[dataset] + after as u64, 1, &mut self.read)?;
            states.extend_from_slice(&self.read.states);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{DatasetMeta, DatasetWriter};
    use crate::shape::NetworkShape;

    /// Tokens count rows through all datasets in the order in which they lie on disk, which is not that of their sequences.
    #[test]
    fn rows_of_several_datasets_are_found() {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut token = 0;
        for directory in &directories {
            let meta = DatasetMeta {
                target: "a target".to_owned(),
                recipe: String::new(),
                hidden_size: 1,
                labels: 1,
            };
            let mut writer = DatasetWriter::open(directory.path(), meta).unwrap();
            for (number, count) in [(7, 3), (2, 5), (4, 2)] {
                let mut rows = Rows::default();
                for _ in 0..count {
                    rows.push(token, &[token as f32], [(token + 1, 1.0)]);
                    token += 1;
                }
                writer.push(number, &rows).unwrap();
            }
        }
        let open = || {
            directories
                .iter()
                .map(|d| Dataset::open(d.path()).unwrap())
                .collect()
        };
        let shape = NetworkShape {
            hidden_size: 1,
            inner_size: 2,
            heads: 2,
            tied: true,
            scale_input: false,
        };
        let options = TrainOptions {
            held_out: 3,
            ..TrainOptions::new(shape)
        };
        let mut samples = Samples::new(open(), &options).unwrap();
        // Of three sequences, the one with the highest number is held out; two rows of each have no two rows after them.
        assert_eq!(samples.training, [3, 4, 5, 13, 14, 15]);
        assert_eq!(samples.held_out, [0, 10]);
        let vocabulary: Vec<u32> = (0..21).collect();
        let head = vec![1.0; vocabulary.len()];
        let tables = Tables {
            embedding: &|token, row| row[0] = token as f32,
            head: &head,
            draft_vocabulary: &vocabulary,
        };
        let mut batch = Batch::default();
        let rows = samples.of_step(0, 6);
        samples.read(&rows, &tables, &options, &mut batch).unwrap();
        let mut states = Vec::new();
        samples.read_states(&rows, 2, &mut states).unwrap();
        for (at, &row) in rows.iter().enumerate() {
            assert_eq!(batch.states[at], row as f32);
            assert_eq!(states[at], row as f32 + 2.0);
            for i in 0..2 {
                assert_eq!(batch.embeddings[i][at], (row + 1 + i as u64) as f32);
                assert_eq!(batch.labels[i].labels[at], (row as u32 + 2 + i as u32, 1.0));
            }
        }
        // Each epoch has every row once.
        let mut epoch = samples.of_step(1, 6);
        assert_ne!(epoch, samples.of_step(2, 6));
        epoch.sort_unstable();
        assert_eq!(epoch, samples.training);
    }
}
