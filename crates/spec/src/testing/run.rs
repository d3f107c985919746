//! Decoding loops without an engine: one sequence, nothing but the rules. The reference for engines' tests.

use std::collections::BTreeMap;

use crate::testing::{Counters, ScriptedModel};
use crate::{
    Batch, Budget, Cancel, Committed, Drafter, Flow, HiddenNeed, LogitError, ModelError, Output, Request,
    Row, RowId, Sampler, SamplerParams, Scores, SequenceId, Sources, TargetModel, Token, TokenTree, verify,
};

/// What a decoding loop made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The generated tokens, that which ended the generation included.
    pub tokens: Vec<Token>,
    /// What the rounds added up to.
    pub counters: Counters,
    /// Rounds in which the drafter failed and its tree was thrown away.
    pub draft_errors: u64,
    /// The logit that ended the run, if one did.
    pub fault: Option<LogitError>,
}

/// What to decode.
#[derive(Clone, Debug)]
pub struct Task {
    /// The sampling chain.
    pub params: SamplerParams,
    /// The noise's key.
    pub key: u64,
    /// One token at least.
    pub prompt: Vec<Token>,
    /// Most tokens to generate.
    pub max_tokens: usize,
}

/// Decodes token by token, until the task's limit, the context's end or an end-of-generation token.
///
/// # Errors
/// Those of the model's passes.
pub fn decode_plain<M: TargetModel>(model: &mut M, task: &Task) -> Result<Run, ModelError> {
    let nothing = Budget {
        max_nodes: 0,
        max_depth: 0,
        max_branches: 1,
        sources: Sources::ALL,
        max_read: usize::MAX,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    };
    decode(model, None, nothing, task)
}

/// Decodes with drafts, to the same tokens.
///
/// # Errors
/// Those of the target's passes; a drafter's own errors cost its draft.
pub fn decode_drafted<M: TargetModel>(
    model: &mut M,
    drafter: &mut dyn Drafter,
    budget: Budget,
    task: &Task,
) -> Result<Run, ModelError> {
    decode(model, Some(drafter), budget, task)
}

fn decode<M: TargetModel>(
    model: &mut M,
    mut drafter: Option<&mut dyn Drafter>,
    budget: Budget,
    task: &Task,
) -> Result<Run, ModelError> {
    let sequence = model.open();
    let mut run = Run::default();
    if let Some(drafter) = &mut drafter {
        run.draft_errors += u64::from(drafter.begin(sequence, &task.prompt).is_err());
    }
    let outcome = rounds(model, sequence, &mut drafter, budget, task, &mut run);
    if let Some(drafter) = &mut drafter {
        drafter.end(sequence);
    }
    model.release(sequence);
    outcome.map(|()| run)
}

fn rounds<M: TargetModel>(
    model: &mut M,
    sequence: SequenceId,
    drafter: &mut Option<&mut dyn Drafter>,
    budget: Budget,
    task: &Task,
    run: &mut Run,
) -> Result<(), ModelError> {
    let context = model.info().context_length;
    let ends = model.info().end_of_generation.clone();
    let limit = context.min(task.prompt.len() + task.max_tokens);
    let mut sampler = Sampler::new(task.params.clone(), task.key, &task.prompt);
    let (mut batch, mut scores, mut tree) = (Batch::default(), Scores::default(), TokenTree::default());
    let mut tokens = task.prompt.clone();
    let scored = match drafter.as_ref().map(|drafter| drafter.needs().hidden) {
        None | Some(HiddenNeed::None) => Output::Logits,
        Some(HiddenNeed::LastRow | HiddenNeed::EveryRow) => Output::Both,
    };
    let mut hidden: Option<Vec<f32>> = None;
    while tokens.len() < limit {
        tree.clear();
        if let Some(drafter) = drafter.as_mut() {
            let mut requests = [Request {
                sequence,
                tokens: &tokens,
                hidden: hidden.as_deref(),
                sampler: &sampler.snapshot(),
                budget,
                position_limit: limit,
                grammar: None,
                deadline: None,
                tree: &mut tree,
            }];
            if drafter.draft(&mut requests).is_err() {
                run.draft_errors += 1;
                tree.clear();
            }
            drafter.submitted(sequence, &tree);
        }
        batch.clear();
        let mut parent = None;
        let missing = &tokens[model.len(sequence)..];
        for (at, &token) in missing.iter().enumerate() {
            let output = if at + 1 == missing.len() {
                scored
            } else {
                Output::None
            };
            parent = Some(batch.push(Row {
                sequence,
                token,
                parent,
                output,
            }));
        }
        let first = batch.len() as RowId;
        for node in tree.nodes() {
            let parent = node.parent.map_or(parent, |p| Some(first + p));
            batch.push(Row {
                sequence,
                token: node.token,
                parent,
                output: scored,
            });
        }
        model.forward(&batch, &mut scores, &Cancel::default())?;
        let mut length = tokens.len();
        let cut = |token| {
            length += 1;
            if length == limit || ends.contains(&token) {
                Flow::Stop
            } else {
                Flow::Continue
            }
        };
        let logits = |node: Option<u32>| {
            scores
                .logits(node.map_or(first - 1, |n| first + n))
                .unwrap_or(&[])
        };
        let verdict = match verify(&tree, &mut sampler, logits, cut) {
            Ok(verdict) => verdict,
            Err(fault) => {
                run.fault = Some(fault);
                return Ok(());
            }
        };
        let path: Vec<RowId> = (0..first)
            .chain(verdict.accepted.iter().map(|n| first + n))
            .collect();
        model.commit(sequence, &path);
        // Of the row from which the last token was drawn.
        let drawn = &verdict.accepted[..verdict.tokens.len() - 1];
        hidden = scores
            .hidden(drawn.last().map_or(first - 1, |n| first + n))
            .map(<[f32]>::to_vec);
        run.counters.record(&tree, &verdict);
        tokens.extend_from_slice(&verdict.tokens);
        run.tokens.extend_from_slice(&verdict.tokens);
        if let Some(drafter) = drafter.as_mut() {
            let accepted = verdict.accepted;
            drafter.observe(
                sequence,
                &Committed {
                    tokens: verdict.tokens,
                    accepted,
                    rows: Vec::new(),
                },
            );
        }
        if run.tokens.last().is_some_and(|token| ends.contains(token)) {
            break;
        }
    }
    Ok(())
}

/// The exact probability of every text of `length` tokens after `prompt`, by the definition: bias and
/// filters, then the softmax of logits over temperature, token by token. No noise and no penalties; meant for
/// tiny vocabularies.
pub fn token_law(
    model: &ScriptedModel,
    params: &SamplerParams,
    prompt: &[Token],
    length: usize,
) -> BTreeMap<Vec<Token>, f64> {
    let mut law = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..length {
        let mut longer = BTreeMap::new();
        for (text, probability) in law {
            let path: Vec<Token> = prompt.iter().chain(&text).copied().collect();
            for (token, p) in next_law(&model.logits_after(&path), params)
                .into_iter()
                .enumerate()
            {
                if p > 0.0 {
                    let mut text = text.clone();
                    text.push(token as Token);
                    longer.insert(text, probability * p);
                }
            }
        }
        law = longer;
    }
    law
}

/// The law of one token, from the textbook.
fn next_law(logits: &[f32], params: &SamplerParams) -> Vec<f64> {
    let mut logits: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for &(token, bias) in &params.logit_bias {
        logits[token as usize] += f64::from(bias);
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    if params.temperature == 0.0 {
        order.truncate(1);
    }
    if params.top_k > 0 {
        order.truncate(params.top_k);
    }
    let weight = |i: usize, temperature: f64| ((logits[i] - logits[order[0]]) / temperature).exp();
    let total: f64 = order.iter().map(|&i| weight(i, 1.0)).sum();
    let mut kept = Vec::new();
    let mut sum = 0.0;
    for &i in &order {
        let full = params.top_p < 1.0 && sum >= f64::from(params.top_p) * total;
        if full || weight(i, 1.0) < f64::from(params.min_p) {
            break;
        }
        sum += weight(i, 1.0);
        kept.push(i);
    }
    let temperature = if params.temperature == 0.0 {
        1.0
    } else {
        f64::from(params.temperature)
    };
    let total: f64 = kept.iter().map(|&i| weight(i, temperature)).sum();
    let mut law = vec![0.0; logits.len()];
    kept.iter().for_each(|&i| law[i] = weight(i, temperature) / total);
    law
}

/// A temperature and nothing that filters.
pub fn open_params(temperature: f32) -> SamplerParams {
    SamplerParams {
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplerParams::default()
    }
}
