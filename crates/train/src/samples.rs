//! Which rows are learned from, in which order, and how they are read.
//!
//! A sample is a row t with n rows after it in its sequence. One sequence of each `held_out` is kept for evaluation, of its answer. Each epoch goes through all other samples
//! once, in an order that depends on seed and epoch alone.

use crate::dataset::{Dataset, Rows};
use crate::loss::{Labels, OUTSIDE};
use crate::network::Batch;
use crate::trainer::{Tables, TrainError, TrainOptions};

/// The samples of a dataset.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) dataset: Dataset,
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

/// Whether the sequence at an index, by their numbers, is kept for evaluation, if one of each `every` is; 0 keeps none.
pub fn is_held_out(at: usize, every: usize) -> bool {
    every > 0 && at.is_multiple_of(every)
}

impl Samples {
    pub(crate) fn new(dataset: Dataset, options: &TrainOptions) -> Result<Self, TrainError> {
        let (mut training, mut held_out) = (Vec::new(), Vec::new());
        for (at, sequence) in dataset.sequences().iter().enumerate() {
            let end = u64::from(sequence.rows).saturating_sub(options.shape.heads as u64);
            match is_held_out(at, options.held_out) {
                // Nobody drafts a question.
                true => {
                    held_out.extend((u64::from(sequence.before_answer)..end).map(|row| sequence.first + row))
                }
                false => training.extend((0..end).map(|row| sequence.first + row)),
            }
        }
        let hidden_size = dataset.meta().hidden_size;
        if hidden_size != options.shape.hidden_size {
            let problem = format!(
                "states of {} values do not fit a network for {}",
                hidden_size, options.shape.hidden_size
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
            dataset,
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
        let count = self.dataset.meta().labels;
        batch.rows = rows.len();
        batch.states.clear();
        batch.embeddings.resize_with(heads, Vec::new);
        batch.labels.resize_with(heads, Labels::default);
        for (embeddings, labels) in batch.embeddings.iter_mut().zip(&mut batch.labels) {
            embeddings.resize(rows.len() * d, 0.0);
            labels.labels.clear();
            labels.best.clear();
            labels.next.clear();
        }
        for (at, &row) in rows.iter().enumerate() {
            self.read.clear();
            self.dataset.read(row, heads + 1, &mut self.read)?;
            batch.states.extend_from_slice(&self.read.states[..d]);
            for i in 0..heads {
                let token = self.read.tokens[i + 1];
                (tables.embedding)(token, &mut batch.embeddings[i][at * d..][..d]);
                let labels = &mut batch.labels[i];
                let from = (i + 1) * count;
                let position = |token| tables.draft_vocabulary.binary_search(&token).ok();
                let best = position(self.read.label_tokens[from]);
                labels.best.push(best.map_or(OUTSIDE, |at| at as u32));
                let next = self.read.tokens.get(i + 2).and_then(|&token| position(token));
                labels.next.push(next.map_or(OUTSIDE, |at| at as u32));
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
            self.read.clear();
            self.dataset.read(row + after as u64, 1, &mut self.read)?;
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

    fn writer(directory: &std::path::Path) -> DatasetWriter {
        let meta = DatasetMeta {
            target: "a target".to_owned(),
            recipe: String::new(),
            hidden_size: 1,
            labels: 1,
        };
        DatasetWriter::open(directory, meta).unwrap()
    }

    fn options(heads: usize, held_out: usize) -> TrainOptions {
        let shape = NetworkShape {
            hidden_size: 1,
            inner_size: 2,
            heads,
            tied: true,
            scale_input: false,
        };
        TrainOptions {
            held_out,
            ..TrainOptions::new(shape)
        }
    }

    /// Tokens count rows in the order in which they lie on disk, which is not that of their sequences.
    #[test]
    fn rows_are_found_and_answers_held_out() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = writer(directory.path());
        let mut token = 0;
        for (number, count, before_answer) in [(7, 3, 0), (2, 5, 1), (4, 2, 0), (9, 6, 2)] {
            let mut rows = Rows::default();
            for _ in 0..count {
                rows.push(token, &[token as f32], [(token + 1, 1.0)]);
                token += 1;
            }
            writer.push(number, before_answer, &rows).unwrap();
        }
        let options = options(2, 3);
        let mut samples = Samples::new(Dataset::open(directory.path()).unwrap(), &options).unwrap();
        // By their numbers the first and the fourth of them are held out, their answers that is. The last two rows of each have no
        // two rows after them.
        assert_eq!(samples.held_out, [4, 5, 12, 13]);
        assert_eq!(samples.training, [0]);
        let vocabulary: Vec<u32> = (0..17).filter(|&token| token != 6).collect();
        let head = vec![1.0; vocabulary.len()];
        let tables = Tables {
            embedding: &|token, row| row[0] = token as f32,
            head: &head,
            draft_vocabulary: &vocabulary,
        };
        let mut batch = Batch::default();
        let rows = [4, 12, 0];
        samples.read(&rows, &tables, &options, &mut batch).unwrap();
        let mut states = Vec::new();
        samples.read_states(&rows, 2, &mut states).unwrap();
        let position = |token: u64| match vocabulary.binary_search(&(token as u32)) {
            Ok(at) => at as u32,
            Err(_) => OUTSIDE,
        };
        for (at, &row) in rows.iter().enumerate() {
            assert_eq!(batch.states[at], row as f32);
            assert_eq!(states[at], row as f32 + 2.0);
            for i in 0..2 {
                assert_eq!(batch.embeddings[i][at], (row + 1 + i as u64) as f32);
                let label = position(row + 2 + i as u64);
                assert_eq!(batch.labels[i].best[at], label);
                let weight = if label == OUTSIDE { (0, 0.0) } else { (label, 1.0) };
                assert_eq!(batch.labels[i].labels[at], weight);
            }
            assert_eq!(batch.labels[0].next[at], position(row + 2));
            assert_eq!(batch.labels[1].next[at], OUTSIDE);
        }
    }

    #[test]
    fn each_epoch_has_every_row_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = writer(directory.path());
        let mut rows = Rows::default();
        (0..9).for_each(|token| rows.push(token, &[0.0], [(token, 1.0)]));
        writer.push(0, 0, &rows).unwrap();
        let options = options(1, 0);
        let mut samples = Samples::new(Dataset::open(directory.path()).unwrap(), &options).unwrap();
        let mut epoch = samples.of_step(1, 8);
        assert_ne!(epoch, samples.of_step(2, 8));
        epoch.sort_unstable();
        assert_eq!(epoch, samples.training);
    }
}
