//! The arithmetic of one pass: embedding, layers, final norm, head.
//!
//! Every step works row by row or through kernels whose rows do not depend on each other, so that a row's
//! bits are the same whatever else is in the pass. Keys and values are rounded to f16 and written to the
//! cache before attention reads them, those of the pass itself too.
//!
//! Not here: which slot of the cache a row gets and which rows it sees ([`crate::kv`]).
use crate::Config;
use crate::kv::{KvCache, PassPlan};
use crate::weights::{Layer, Linear, Weights};
use foretoken_kernels::attention::{AttentionScratch, AttentionShape, RowPath, attention};
use foretoken_kernels::vector::{add_in_place, rms_norm, swiglu_in_place};
use foretoken_kernels::{Compute, Matrix, Product, Scratch, matmul};
use foretoken_spec::{Batch, Cancel, ModelError, Output, Scores};

/// Buffers of a pass, each `[rows][width]`. They grow to the largest batch and are reused.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// The residual stream.
    residual: Vec<f32>,
    normed: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    attended: Vec<f32>,
    /// What half a layer adds to the residual stream.
    update: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Of each row of the batch: how many before it asked for a hidden state, and how many for logits.
    places: Vec<(usize, usize)>,
    products: Scratch,
    attention: AttentionScratch,
}

impl Workspace {
    fn grow(&mut self, rows: usize, config: &Config) {
        let (hidden, queries, keys) = (config.hidden_size, config.query_size(), config.kv_size());
        for (buffer, width) in [
            (&mut self.residual, hidden),
            (&mut self.normed, hidden),
            (&mut self.update, hidden),
            (&mut self.query, queries),
            (&mut self.attended, queries),
            (&mut self.key, keys),
            (&mut self.value, keys),
            (&mut self.gate, config.feed_forward_size),
            (&mut self.up, config.feed_forward_size),
        ] {
            if buffer.len() < rows * width {
                buffer.resize(rows * width, 0.0);
            }
        }
    }
}

/// What all steps of a pass read.
pub(crate) struct Pass<'a> {
    pub config: &'a Config,
    pub weights: &'a Weights,
    pub compute: &'a Compute,
    /// The rows in the order in which to compute them.
    pub plan: &'a PassPlan,
}

impl Pass<'_> {
    /// Computes keys and values of all rows and the scores that `batch` asks for. `scores` is prepared.
    pub fn run(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        space: &mut Workspace,
        scores: &mut Scores,
        cancel: &Cancel,
    ) -> Result<(), ModelError> {
        let mut paths = self.plan.paths();
        space.grow(paths.len(), self.config);
        let embeddings = space.residual.chunks_exact_mut(self.config.hidden_size);
        for (row, embedding) in self.plan.rows().iter().zip(embeddings) {
            self.weights
                .embedding
                .dequantize_row(row.token as usize, embedding);
        }
        let (last, layers) = self.weights.layers.split_last().expect("a model has layers");
        for (at, layer) in layers.iter().enumerate() {
            check(cancel)?;
            self.store_keys_and_values(at, layer, paths.len(), cache, space);
            self.attend_and_feed_forward(at, layer, &paths, cache, space);
        }
        check(cancel)?;
        self.store_keys_and_values(layers.len(), last, paths.len(), cache, space);
        // Nothing reads on from rows without an output: the rest is for the others alone.
        self.keep_rows_with_output(batch, &mut paths, space);
        if !paths.is_empty() {
            self.attend_and_feed_forward(layers.len(), last, &paths, cache, space);
            check(cancel)?;
            self.score(batch, space, scores);
        }
        Ok(())
    }

    /// The norm before attention and the products with Q, K and V; leaves the queries in `space`.
    fn store_keys_and_values(
        &self,
        at: usize,
        layer: &Layer,
        rows: usize,
        cache: &mut KvCache,
        space: &mut Workspace,
    ) {
        let (config, isa) = (self.config, self.compute.isa());
        let (queries, keys) = (config.query_size(), config.kv_size());
        let Workspace {
            residual,
            normed,
            query,
            key,
            value,
            products,
            ..
        } = space;
        self.norm_rows(residual, &layer.attention_norm, rows, normed);
        let input = &normed[..rows * config.hidden_size];
        let (query, key, value) = (
            &mut query[..rows * queries],
            &mut key[..rows * keys],
            &mut value[..rows * keys],
        );
        matmul(
            self.compute,
            products,
            input,
            rows,
            &mut [
                product(&layer.query.matrix, query),
                product(&layer.key.matrix, key),
                product(&layer.value.matrix, value),
            ],
        );
        self.add_bias(&layer.query, query);
        self.add_bias(&layer.key, key);
        self.add_bias(&layer.value, value);

        let (rope, style) = (&self.weights.rope, config.rope.style);
        let rows = self.plan.rows().iter().zip(query.chunks_exact_mut(queries));
        let keys_and_values = key.chunks_exact_mut(keys).zip(value.chunks_exact(keys));
        for ((row, query), (key, value)) in rows.zip(keys_and_values) {
            rope.apply(isa, style, row.position, query, config.head_dim);
            rope.apply(isa, style, row.position, key, config.head_dim);
            cache.write(at, row.slot, key, value);
        }
    }

    /// The rest of a layer, for the rows whose queries and residual stream stand first in `space`.
    fn attend_and_feed_forward(
        &self,
        at: usize,
        layer: &Layer,
        paths: &[RowPath<'_>],
        cache: &KvCache,
        space: &mut Workspace,
    ) {
        let (config, isa) = (self.config, self.compute.isa());
        let rows = paths.len();
        let Workspace {
            residual,
            normed,
            query,
            attended,
            update,
            gate,
            up,
            products,
            attention: scratch,
            ..
        } = space;
        let residual = &mut residual[..rows * config.hidden_size];
        let update = &mut update[..rows * config.hidden_size];
        let query = &query[..rows * config.query_size()];
        let attended = &mut attended[..rows * config.query_size()];
        let (gate, up) = (
            &mut gate[..rows * config.feed_forward_size],
            &mut up[..rows * config.feed_forward_size],
        );

        let shape = AttentionShape {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: config.attention_scale,
        };
        attention(
            self.compute,
            scratch,
            shape,
            cache.layer(at),
            query,
            paths,
            attended,
        );
        matmul(
            self.compute,
            products,
            attended,
            rows,
            &mut [product(&layer.output.matrix, update)],
        );
        self.add_bias(&layer.output, update);
        add_in_place(isa, residual, update);

        self.norm_rows(residual, &layer.feed_forward_norm, rows, normed);
        let input = &normed[..rows * config.hidden_size];
        matmul(
            self.compute,
            products,
            input,
            rows,
            &mut [product(&layer.gate, gate), product(&layer.up, up)],
        );
        swiglu_in_place(isa, gate, up);
        matmul(
            self.compute,
            products,
            gate,
            rows,
            &mut [product(&layer.down, update)],
        );
        add_in_place(isa, residual, update);
    }

    /// Moves the residual stream and the queries of the rows that asked for an output to the front.
    fn keep_rows_with_output(&self, batch: &Batch, paths: &mut Vec<RowPath<'_>>, space: &mut Workspace) {
        let (hidden, queries) = (self.config.hidden_size, self.config.query_size());
        let mut kept = 0;
        for (at, row) in self.plan.rows().iter().enumerate() {
            if batch.rows()[row.row as usize].output == Output::None {
                continue;
            }
            if at != kept {
                space
                    .residual
                    .copy_within(at * hidden..(at + 1) * hidden, kept * hidden);
                space
                    .query
                    .copy_within(at * queries..(at + 1) * queries, kept * queries);
                paths[kept] = paths[at];
            }
            kept += 1;
        }
        paths.truncate(kept);
    }

    /// The final norm and the head, for the rows of [`keep_rows_with_output`](Self::keep_rows_with_output).
    fn score(&self, batch: &Batch, space: &mut Workspace, scores: &mut Scores) {
        let hidden_size = self.config.hidden_size;
        let Workspace {
            residual,
            normed,
            update,
            places,
            products,
            ..
        } = space;
        // Scores stand in the order of the batch, not in that of the plan.
        places.clear();
        let (mut with_hidden, mut with_logits) = (0, 0);
        for row in batch.rows() {
            places.push((with_hidden, with_logits));
            with_hidden += usize::from(row.output.hidden());
            with_logits += usize::from(row.output.logits());
        }
        let planned = self.plan.rows().iter().map(|row| row.row as usize);
        let asking = planned.filter(|&row| batch.rows()[row].output != Output::None);
        let states = residual.chunks_exact(hidden_size);
        for ((row, residual), state) in asking.zip(states).zip(update.chunks_exact_mut(hidden_size)) {
            let (output, (hidden_at, logits_at)) = (batch.rows()[row].output, places[row]);
            self.norm_rows(residual, &self.weights.final_norm, 1, state);
            if output.hidden() {
                scores.hidden_buffer()[hidden_at * hidden_size..][..hidden_size].copy_from_slice(state);
            }
            if output.logits() {
                normed[logits_at * hidden_size..][..hidden_size].copy_from_slice(state);
            }
        }
        let input = &normed[..with_logits * hidden_size];
        let mut head = [product(&self.weights.head, scores.logits_buffer())];
        matmul(self.compute, products, input, with_logits, &mut head);
    }

    fn norm_rows(&self, x: &[f32], weight: &[f32], rows: usize, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)).take(rows) {
            rms_norm(self.compute.isa(), x, weight, self.config.norm_eps, out);
        }
    }

    fn add_bias(&self, linear: &Linear, out: &mut [f32]) {
        if let Some(bias) = &linear.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                add_in_place(self.compute.isa(), row, bias);
            }
        }
    }
}

fn product<'a>(matrix: &'a Matrix, out: &'a mut [f32]) -> Product<'a> {
    Product { matrix, out }
}

fn check(cancel: &Cancel) -> Result<(), ModelError> {
    if cancel.is_cancelled() {
        Err(ModelError::Cancelled)
    } else {
        Ok(())
    }
}
