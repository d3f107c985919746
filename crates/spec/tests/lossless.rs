//! The tokens are those of plain decoding, whatever is drafted.

use foretoken_spec::drafters::{ModelDrafter, RecyclingDrafter, SpeculatorDrafter, SuffixDrafter};
use foretoken_spec::testing::{
    AlwaysWrongDrafter, FailingDrafter, OracleDrafter, OwnNoiseDrafter, RandomDrafter, Run, ScriptedModel,
    ScriptedNetwork, Task, decode_drafted, decode_plain, open_params, token_law,
};
use foretoken_spec::{
    Budget, Committed, DraftError, Drafter, HiddenNeed, ModelError, Needs, Request, Sampler, SamplerParams,
    SequenceId, Sources, Token,
};
use proptest::prelude::*;

fn budget(nodes: usize, depth: usize) -> Budget {
    Budget {
        max_nodes: nodes,
        max_depth: depth,
        max_branches: 4,
        sources: Sources::ALL,
        max_read: usize::MAX,
        min_path_probability: 0.0,
        min_confidence: 0.0,
    }
}

fn task(params: SamplerParams, key: u64, prompt: &[Token], max_tokens: usize) -> Task {
    Task {
        params,
        key,
        prompt: prompt.to_vec(),
        max_tokens,
    }
}

/// Several drafters, each of which extends the tree of those before it.
struct Together(Vec<Box<dyn Drafter>>);

impl Drafter for Together {
    fn name(&self) -> &str {
        "together"
    }

    fn begin(&mut self, sequence: SequenceId, prompt: &[Token]) -> Result<(), DraftError> {
        self.0.iter_mut().try_for_each(|d| d.begin(sequence, prompt))
    }

    fn draft(&mut self, requests: &mut [Request<'_>]) -> Result<(), DraftError> {
        self.0.iter_mut().try_for_each(|d| d.draft(requests))
    }

    fn needs(&self) -> Needs {
        let hidden = self.0.iter().any(|d| d.needs().hidden != HiddenNeed::None);
        Needs {
            hidden: if hidden {
                HiddenNeed::LastRow
            } else {
                HiddenNeed::None
            },
            ..Needs::default()
        }
    }

    fn observe(&mut self, sequence: SequenceId, committed: &Committed) {
        self.0.iter_mut().for_each(|d| d.observe(sequence, committed));
    }

    fn end(&mut self, sequence: SequenceId) {
        self.0.iter_mut().for_each(|d| d.end(sequence));
    }
}

/// Every kind of drafter there is, for a text that is known.
fn drafters(model: &ScriptedModel, text: &[Token], seed: u64) -> Vec<Box<dyn Drafter>> {
    let vocab_size = model.logits_after(&[0]).len();
    let texts = || vec![text.to_vec()];
    let speculator = |model: &ScriptedModel, heads| {
        let network = ScriptedNetwork::new(model.clone(), heads);
        SpeculatorDrafter::new(network, vocab_size, Vec::new())
    };
    let similar = || ModelDrafter::new(model.blurred(seed, 0.5), vocab_size);
    vec![
        Box::new(RandomDrafter::new(vocab_size, 1, seed)),
        Box::new(RandomDrafter::new(vocab_size, 3, seed)),
        Box::new(OracleDrafter::new(texts())),
        Box::new(AlwaysWrongDrafter::new(texts(), vocab_size)),
        Box::new(SuffixDrafter::default()),
        Box::new(RecyclingDrafter::default()),
        Box::new(ModelDrafter::new(model.clone(), vocab_size)),
        Box::new(similar()),
        Box::new(FailingDrafter::new(similar(), seed, 3)),
        Box::new(speculator(model, 3)),
        Box::new(speculator(&model.blurred(seed, 0.5), 5)),
        Box::new(FailingDrafter::new(speculator(model, 2), seed, 3)),
        Box::new(Together(vec![
            Box::new(similar()),
            Box::new(speculator(&model.blurred(seed, 1.0), 3)),
            Box::new(SuffixDrafter::default()),
            Box::new(RecyclingDrafter::default()),
            Box::new(RandomDrafter::new(vocab_size, 2, seed)),
        ])),
        Box::new(Together(vec![
            Box::new(RandomDrafter::new(vocab_size, 2, seed)),
            Box::new(RecyclingDrafter::default()),
            Box::new(SuffixDrafter::default()),
            Box::new(speculator(&model.blurred(seed, 1.0), 3)),
            Box::new(similar()),
        ])),
    ]
}

fn any_params() -> impl Strategy<Value = SamplerParams> {
    (
        prop_oneof![Just(0.0f32), 0.1f32..2.0],
        prop_oneof![Just(0usize), 1usize..14],
        prop_oneof![Just(1.0f32), 0.2f32..0.99],
        prop_oneof![Just(0.0f32), 0.01f32..0.5],
        prop_oneof![Just(1.0f32), 0.7f32..1.8],
        0usize..20,
        prop_oneof![Just(0.0f32), -0.5f32..1.5],
        prop_oneof![Just(0.0f32), -0.2f32..1.0],
        prop::collection::vec(
            (
                0u32..12,
                prop_oneof![4 => -3f32..3.0, 1 => Just(f32::NEG_INFINITY)],
            ),
            0..4,
        ),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, repeat, last_n, presence, frequency, bias)| SamplerParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repeat_penalty: repeat,
                repeat_last_n: last_n,
                presence_penalty: presence,
                frequency_penalty: frequency,
                logit_bias: bias,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn drafts_change_no_token(
        params in any_params(),
        (model_seed, key, draft_seed) in any::<(u64, u64, u64)>(),
        prompt in prop::collection::vec(0u32..12, 1..30),
        nodes in 0usize..20,
        depth in 0usize..17,
        min_confidence in prop_oneof![Just(0f32), 0f32..1.0],
        min_path_probability in prop_oneof![Just(0f32), 0f32..1.0],
        ends in prop::collection::vec(0u32..12, 0..2),
        context in prop_oneof![Just(1000usize), 30usize..60],
        faulty: bool,
    ) {
        // Where `faulty`, some rows are no numbers.
        let sound = ScriptedModel::random(12, model_seed, 2.0);
        let mut model = ScriptedModel::new(12, move |path, logits| match path {
            [.., 3, 7] if faulty => logits.fill(f32::NAN),
            _ => logits.copy_from_slice(&sound.logits_after(path)),
        })
        .with_end_of_generation(ends)
        .with_context(context);
        let task = task(params, key, &prompt, 40);
        let plain = decode_plain(&mut model, &task).unwrap();
        let text = [prompt, plain.tokens.clone()].concat();
        let budget = Budget { min_path_probability, min_confidence, ..budget(nodes, depth) };
        for mut drafter in drafters(&model, &text, draft_seed) {
            let drafted = decode_drafted(&mut model, &mut *drafter, budget, &task).unwrap();
            prop_assert_eq!(&drafted.tokens, &plain.tokens, "{}", drafter.name());
            prop_assert_eq!(drafted.fault, plain.fault);
            let c = &drafted.counters;
            prop_assert_eq!(c.tokens as usize, drafted.tokens.len());
            prop_assert!(c.accepted + c.discarded_by_cut <= c.drafted && c.rounds <= c.tokens);
            prop_assert_eq!(c.accepted, c.accepted_at_depth.iter().sum::<u64>());
            prop_assert_eq!(c.drafted, c.drafted_at_depth.iter().sum::<u64>());
            prop_assert!(c.drafted_at_depth.len() <= depth);
        }
        prop_assert_eq!(model.open_sequences(), 0);
    }
}

/// Upper bound of chi-square with `freedom` degrees, four deviations out (Wilson and Hilferty).
fn chi_square_bound(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + 4.0 * spread.sqrt()).powi(3)
}

/// Counts texts over many keys and compares them with the exact law.
fn check_law(params: SamplerParams, mut drafter: Option<Box<dyn Drafter>>) {
    const KEYS: u64 = 20_000;
    const LENGTH: usize = 3;
    let mut model = ScriptedModel::random(4, 5, 1.0);
    let law = token_law(&model, &params, &[1, 2], LENGTH);
    assert!((law.values().sum::<f64>() - 1.0).abs() < 1e-9);
    let mut counts = std::collections::BTreeMap::<Vec<Token>, u64>::new();
    for seed in 0..KEYS {
        let task = task(params.clone(), Sampler::key(seed, 0), &[1, 2], LENGTH);
        let run = match &mut drafter {
            None => decode_plain(&mut model, &task),
            Some(drafter) => decode_drafted(&mut model, &mut **drafter, budget(12, 3), &task),
        };
        *counts.entry(run.unwrap().tokens).or_default() += 1;
    }
    for text in counts.keys() {
        assert!(law.contains_key(text), "{text:?} has probability 0");
    }
    // Rare texts are counted together.
    let (mut statistic, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
    for (text, p) in &law {
        let (expected, seen) = (p * KEYS as f64, *counts.get(text).unwrap_or(&0) as f64);
        if expected < 10.0 {
            rare = (rare.0 + expected, rare.1 + seen);
        } else {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rare.0 >= 5.0 {
        statistic += (rare.1 - rare.0).powi(2) / rare.0;
        cells += 1;
    }
    let name = drafter.map_or("plain".to_owned(), |d| d.name().to_owned());
    assert!(cells > 1, "the law leaves something to chance");
    let bound = chi_square_bound(f64::from(cells - 1));
    assert!(
        statistic < bound,
        "{name}, {params:?}: chi-square {statistic:.1} of {cells} cells, bound {bound:.1}"
    );
}

#[test]
fn the_law_is_the_softmax_with_every_drafter() {
    let model = ScriptedModel::random(4, 5, 1.0);
    for temperature in [0.7, 1.0, 1.6] {
        check_law(open_params(temperature), None);
        for drafter in drafters(&model, &[], 9) {
            if temperature == 1.0 {
                check_law(open_params(temperature), Some(drafter));
            }
        }
    }
}

#[test]
fn the_law_holds_under_filters_and_bias() {
    let filtered = [
        SamplerParams {
            temperature: 1.0,
            top_k: 3,
            ..open_params(1.0)
        },
        SamplerParams {
            top_p: 0.8,
            ..open_params(1.3)
        },
        SamplerParams {
            min_p: 0.3,
            ..open_params(0.8)
        },
        SamplerParams {
            top_k: 3,
            top_p: 0.9,
            min_p: 0.1,
            ..open_params(1.2)
        },
        SamplerParams {
            logit_bias: vec![(0, 1.5), (2, f32::NEG_INFINITY)],
            ..open_params(1.0)
        },
    ];
    for params in filtered {
        check_law(params.clone(), None);
        check_law(params, Some(Box::new(RandomDrafter::new(4, 2, 3))));
    }
}

/// Acceptance over several texts of a random model.
fn acceptance(
    params: &SamplerParams,
    drafter: &mut dyn Drafter,
    budget: Budget,
    target: &ScriptedModel,
) -> Run {
    let mut total = Run::default();
    for key in 0..20 {
        let task = task(params.clone(), key, &[1, 2, 3], 100);
        let mut model = target.clone();
        let plain = decode_plain(&mut model, &task).unwrap();
        let run = decode_drafted(&mut model, drafter, budget, &task).unwrap();
        assert_eq!(run.tokens, plain.tokens);
        total.counters.add(&run.counters);
    }
    total
}

#[test]
fn a_draft_model_equal_to_the_target_is_always_right() {
    let target = ScriptedModel::random(50, 77, 2.0);
    for temperature in [0.0, 0.7, 1.3] {
        let plain = SamplerParams {
            temperature,
            ..Default::default()
        };
        let penalised = SamplerParams {
            repeat_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: 0.2,
            logit_bias: vec![(3, 2.0), (7, f32::NEG_INFINITY)],
            ..plain.clone()
        };
        for params in [plain, penalised, open_params(temperature)] {
            for length in [1, 3, 8, 16] {
                let mut drafter = ModelDrafter::new(target.clone(), 50);
                let chain = Budget {
                    max_branches: 1,
                    ..budget(length, length)
                };
                let run = acceptance(&params, &mut drafter, chain, &target);
                let c = run.counters;
                assert_eq!(
                    c.accepted + c.discarded_by_cut,
                    c.drafted,
                    "length {length}, {params:?}"
                );
                assert_eq!(c.rounds, 20 * 100u64.div_ceil(length as u64 + 1));
            }
        }
    }
}

#[test]
fn shared_noise_beats_independent_noise() {
    let target = ScriptedModel::random(50, 78, 2.0);
    let draft = || ModelDrafter::new(target.blurred(4, 0.5), 50);
    for temperature in [0.7, 1.0, 1.3] {
        let params = open_params(temperature);
        let shared = acceptance(&params, &mut draft(), budget(1, 1), &target).counters;
        let independent = acceptance(
            &params,
            &mut OwnNoiseDrafter::new(draft(), 0xdead_beef),
            budget(1, 1),
            &target,
        )
        .counters;
        let (shared, independent) = (
            shared.acceptance_rate().unwrap(),
            independent.acceptance_rate().unwrap(),
        );
        println!(
            "temperature {temperature}: accepted with shared noise {shared:.3}, with own noise {independent:.3}"
        );
        assert!(shared > independent + 0.15);
    }
}

#[test]
fn confidence_tells_acceptance_at_every_temperature() {
    let target = ScriptedModel::random(200, 79, 6.0);
    let draft = target.blurred(4, 1.0);
    for temperature in [0.0, 0.7, 1.3] {
        for params in [
            open_params(temperature),
            SamplerParams {
                temperature,
                ..Default::default()
            },
        ] {
            // Draws and agreements by confidence, in fifths.
            let mut fifths = [(0u32, 0u32); 5];
            for place in 0..8_000u32 {
                let path = [place, place / 7, place / 3];
                let mut sampler = Sampler::new(params.clone(), u64::from(place), &path);
                let proposal = sampler
                    .propose(&draft.logits_after(&path), None, None, 1)
                    .unwrap()[0];
                let said = sampler.sample(&target.logits_after(&path)).unwrap();
                let fifth = &mut fifths[((proposal.confidence * 5.0) as usize).min(4)];
                fifth.0 += 1;
                fifth.1 += u32::from(said == proposal.token);
            }
            let rates = fifths.map(|(draws, agreed)| f64::from(agreed) / f64::from(draws.max(1)));
            let filters = if params.top_k == 0 { "without" } else { "with" };
            println!(
                "temperature {temperature}, {filters} filters: accepted by fifths of confidence {rates:.2?}"
            );
            let common: Vec<f64> = fifths
                .iter()
                .zip(rates)
                .filter(|(f, _)| f.0 > 300)
                .map(|(_, r)| r)
                .collect();
            assert!(
                common.len() >= 4 && common.is_sorted() && common[common.len() - 1] > 0.9,
                "{fifths:?}"
            );
        }
    }
}

#[test]
fn a_failed_pass_of_the_target_is_an_error_and_the_model_can_go_on() {
    let mut model = ScriptedModel::random(12, 3, 2.0).failing_at(4, ModelError::Cancelled);
    let task = task(open_params(1.0), 5, &[1, 2], 20);
    assert_eq!(decode_plain(&mut model, &task), Err(ModelError::Cancelled));
    assert!(decode_plain(&mut model, &task).is_ok());
    assert_eq!(model.open_sequences(), 0);
}

#[test]
fn drafts_never_pass_a_limit() {
    let check = |prompt: usize, max_tokens: usize, context: usize, expected: usize| {
        let mut model = ScriptedModel::random(12, 3, 2.0).with_context(context);
        let prompt: Vec<Token> = (0..prompt as Token).map(|i| i * 5 % 12).collect();
        let task = task(open_params(1.0), 5, &prompt, max_tokens);
        let text = [prompt, decode_plain(&mut model, &task).unwrap().tokens].concat();
        for mut drafter in drafters(&model, &text, 1) {
            let run = decode_drafted(&mut model, &mut *drafter, budget(16, 16), &task).unwrap();
            assert_eq!(run.tokens.len(), expected);
        }
    };
    check(5, 1, 1000, 1);
    check(5, 0, 1000, 0);
    check(92, 50, 100, 8);
    check(100, 50, 100, 0);
}
