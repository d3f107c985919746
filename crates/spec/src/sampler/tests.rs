use super::*;
use proptest::prelude::*;

const NO: f32 = f32::NEG_INFINITY;

fn greedy() -> SamplerParams {
    SamplerParams {
        temperature: 0.0,
        ..Default::default()
    }
}

fn unfiltered(temperature: f32) -> SamplerParams {
    SamplerParams {
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..Default::default()
    }
}

/// The greedy token after `prompt` and `said`.
fn check_greedy(params: SamplerParams, prompt: &[Token], said: &[Token], logits: &[f32], expected: Token) {
    let mut sampler = Sampler::new(params.clone(), 0, prompt);
    said.iter()
        .for_each(|&token| assert_eq!(sampler.accept(token), Flow::Continue));
    assert_eq!(
        sampler.sample(logits),
        Ok(expected),
        "{params:?} after {prompt:?} and {said:?}"
    );
}

#[test]
fn greedy_takes_the_best_and_of_equals_the_first() {
    check_greedy(greedy(), &[0], &[], &[1.0, 3.0, 2.0, 3.0], 1);
    check_greedy(greedy(), &[0], &[], &[-0.0, 0.0], 0);
    check_greedy(greedy(), &[0], &[], &[NO, NO, -7.0], 2);
    let filtered = SamplerParams {
        top_k: 1,
        top_p: 0.1,
        min_p: 1.0,
        ..greedy()
    };
    check_greedy(filtered, &[0], &[], &[1.0, 3.0, 2.0, 3.0], 1);
}

#[test]
fn bias_comes_first_and_bans() {
    let biased = |bias: &[(Token, f32)]| SamplerParams {
        logit_bias: bias.to_vec(),
        ..greedy()
    };
    check_greedy(biased(&[(0, 2.5)]), &[0], &[], &[1.0, 3.0, 2.0], 0);
    check_greedy(biased(&[(0, 1.5), (0, 1.0)]), &[0], &[], &[1.0, 3.0, 2.0], 0);
    check_greedy(biased(&[(1, NO)]), &[0], &[], &[1.0, 3.0, 2.0], 2);
    // A ban holds whatever other tokens' logits are; an overflow is no fault of the model's.
    check_greedy(biased(&[(0, 3e38)]), &[0], &[], &[3e38, 3.0, 2.0], 0);
    // Bias before penalty: (1 + 3) / 2 < 3, while 1 / 2 + 3 would not be.
    let both = SamplerParams {
        repeat_penalty: 2.0,
        ..biased(&[(0, 3.0)])
    };
    check_greedy(both, &[0], &[], &[1.0, 3.0, 2.0], 1);
    let everything_banned = biased(&[(0, NO), (1, NO)]);
    let error = Sampler::new(everything_banned, 0, &[0]).sample(&[1.0, 2.0]);
    assert_eq!(error, Err(LogitError::AllBanned));
}

#[test]
fn repetition_divides_positive_and_multiplies_negative_logits() {
    let penalty = |last_n| SamplerParams {
        repeat_penalty: 2.0,
        repeat_last_n: last_n,
        ..greedy()
    };
    check_greedy(penalty(64), &[1], &[], &[2.0, 3.0], 0); // in the prompt
    check_greedy(penalty(64), &[9], &[1], &[2.0, 3.0], 0); // generated
    check_greedy(penalty(64), &[0, 1], &[], &[2.0, 3.0], 1); // both: 1, 1.5
    check_greedy(penalty(64), &[1, 1, 1], &[1], &[1.4, 3.0], 1); // once, however often it stands there
    check_greedy(penalty(64), &[1], &[], &[-1.9, -1.0], 0); // -2
    check_greedy(penalty(2), &[1, 8, 8], &[], &[2.0, 3.0], 1); // out of sight
    check_greedy(penalty(3), &[1, 8, 8], &[], &[2.0, 3.0], 0);
    check_greedy(penalty(2), &[1], &[8, 8], &[2.0, 3.0], 1);
    check_greedy(penalty(0), &[1], &[1], &[2.0, 3.0], 1);
    check_greedy(penalty(64), &[1, 77], &[88], &[2.0, 3.0], 0); // tokens outside the row are harmless
}

#[test]
fn presence_and_frequency_see_generated_tokens_only() {
    let presence = SamplerParams {
        presence_penalty: 1.5,
        ..greedy()
    };
    check_greedy(presence.clone(), &[1], &[], &[2.0, 3.0], 1);
    check_greedy(presence.clone(), &[0], &[1], &[2.0, 3.0], 0);
    check_greedy(presence, &[0], &[1, 1, 1, 0], &[2.0, 3.0], 1);
    let frequency = SamplerParams {
        frequency_penalty: 0.4,
        ..greedy()
    };
    check_greedy(frequency.clone(), &[1, 1, 1], &[1, 1], &[2.0, 3.0], 1);
    check_greedy(frequency, &[0], &[1, 1, 1], &[2.0, 3.0], 0);
    let negative = SamplerParams {
        presence_penalty: -2.0,
        ..greedy()
    };
    check_greedy(negative, &[0], &[0], &[2.0, 3.0], 0);
}

#[test]
fn single_bans_pass_and_other_non_numbers_fail_by_name() {
    for params in [greedy(), SamplerParams::default(), unfiltered(1.0)] {
        let mut sampler = Sampler::new(params, 3, &[1]);
        assert!(sampler.sample(&[0.0, NO, 1.0]).is_ok_and(|token| token != 1));
        assert_eq!(
            sampler.sample(&[0.0, f32::NAN]),
            Err(LogitError::NotFinite { token: 1 })
        );
        assert_eq!(
            sampler.sample(&[f32::INFINITY, f32::NAN]),
            Err(LogitError::NotFinite { token: 0 })
        );
        assert_eq!(sampler.sample(&[NO, NO]), Err(LogitError::NotFinite { token: 0 }));
        assert_eq!(sampler.sample(&[]), Err(LogitError::NotFinite { token: 0 }));
        assert_eq!(
            sampler.propose(&[0.0, f32::NAN], None, None, 3),
            Err(LogitError::NotFinite { token: 1 })
        );
        assert_eq!(sampler.propose(&[0.0, 1.0], None, None, 0), Ok(vec![]));
    }
}

#[test]
fn only_banned_tokens_are_never_drawn() {
    let mut logits = vec![0.0; 40];
    logits.iter_mut().step_by(2).for_each(|x| *x = NO);
    let mut sampler = Sampler::new(unfiltered(2.0), 3, &[1]);
    for _ in 0..500 {
        let token = sampler.sample(&logits).unwrap();
        assert_eq!(token % 2, 1);
        sampler.accept(token);
    }
}

#[test]
fn seeds_choices_and_positions_draw_apart() {
    let logits = vec![0.0; 1000];
    let draw = |seed, choice, prompt: &[Token]| {
        let mut sampler = Sampler::new(unfiltered(1.0), Sampler::key(seed, choice), prompt);
        (0..8)
            .map(|_| {
                sampler
                    .sample(&logits)
                    .inspect(|&t| _ = sampler.accept(t))
                    .unwrap()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(draw(1, 0, &[5]), draw(1, 0, &[5]));
    // The position counts, not the tokens before it.
    assert_eq!(draw(1, 0, &[5]), draw(1, 0, &[6]));
    assert_eq!(draw(1, 0, &[5])[1..], draw(1, 0, &[5, 5])[..7]);
    assert_ne!(draw(1, 0, &[5]), draw(2, 0, &[5]));
    assert_ne!(draw(1, 0, &[5]), draw(1, 1, &[5]));
}

#[test]
fn confidence_is_the_probability_when_greedy() {
    let logits = [2.0f32, 0.5, -1.0, 1.5];
    let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
    let proposals = Sampler::new(greedy(), 0, &[0])
        .propose(&logits, None, None, 3)
        .unwrap();
    let tokens: Vec<Token> = proposals.iter().map(|p| p.token).collect();
    assert_eq!(tokens, [0, 3, 1]);
    for p in proposals {
        let exact = f64::from(logits[p.token as usize]).exp() / total;
        assert!(
            (f64::from(p.confidence) - exact).abs() < 1e-6,
            "{p:?}, not {exact}"
        );
    }
}

#[test]
fn confidence_is_the_logistic_of_the_gap_between_two() {
    for position in 0..50 {
        let mut sampler = Sampler::new(unfiltered(0.6), 11, &vec![0; position]);
        let logits = [0.3f32, 1.0];
        let noise = Noise::at(11, position as u64);
        let w = [0, 1].map(|t| f64::from(logits[t]) + 0.6f32 as f64 * noise.gumbel(t as Token));
        let proposal = sampler.propose(&logits, None, None, 1).unwrap()[0];
        assert_eq!(proposal.token, Token::from(w[1] > w[0]));
        let logistic = 1.0 / (1.0 + (-(w[1] - w[0]).abs()).exp());
        assert!((f64::from(proposal.confidence) - logistic).abs() < 1e-6);
    }
}

#[test]
fn a_token_that_filters_leave_alone_is_not_certain() {
    let mut sampler = Sampler::new(
        SamplerParams {
            top_k: 1,
            ..Default::default()
        },
        0,
        &[0],
    );
    let proposal = sampler.propose(&[1.0, 0.9, 0.8], None, None, 1).unwrap()[0];
    assert!(proposal.token == 0 && proposal.confidence < 0.9, "{proposal:?}");
}

#[test]
fn a_part_of_the_vocabulary_draws_with_its_tokens_own_noise() {
    let vocabulary = [3, 10, 500, 70_000];
    let logits = [0.1f32, 0.4, 0.2, 0.3];
    let params = SamplerParams {
        logit_bias: vec![(10, -0.2), (11, 9.0)],
        repeat_penalty: 1.5,
        presence_penalty: 0.1,
        ..unfiltered(0.9)
    };
    // The same row, spread over the whole vocabulary.
    let mut whole = vec![NO; 80_000];
    vocabulary
        .iter()
        .zip(logits)
        .for_each(|(&token, logit)| whole[token as usize] = logit);
    let mut sampler = Sampler::new(params, 8, &[500, 4]);
    for _ in 0..50 {
        let token = sampler.sample(&whole).unwrap();
        let proposals = sampler.propose(&logits, Some(&vocabulary), None, 4).unwrap();
        assert_eq!(proposals[0].token, token);
        assert_eq!(proposals, sampler.propose(&whole, None, None, 4).unwrap());
        sampler.accept(token);
    }
    // A map shorter than the row, or longer, costs proposals only.
    assert_eq!(sampler.propose(&logits, Some(&[3]), None, 2).unwrap().len(), 1);
    assert_eq!(
        sampler
            .propose(&logits[..1], Some(&vocabulary), None, 2)
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn a_snapshot_does_not_grow_with_the_history() {
    let mut sampler = Sampler::new(
        SamplerParams {
            repeat_penalty: 1.1,
            ..Default::default()
        },
        0,
        &[1; 5000],
    );
    (0..5000).for_each(|t| _ = sampler.accept(t));
    assert_eq!(sampler.snapshot().state.tokens.len(), 64);
    assert_eq!(sampler.snapshot().state.generated.len(), 0);
    assert_eq!(sampler.snapshot().position(), 10_000);
}

fn any_params() -> impl Strategy<Value = SamplerParams> {
    (
        0f32..2.0,
        0usize..12,
        0.3f32..1.0,
        0f32..0.3,
        0.6f32..1.6,
        0usize..9,
        -1f32..1.0,
        -1f32..1.0,
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence, frequency)| {
                SamplerParams {
                    temperature: if temperature < 0.4 { 0.0 } else { temperature },
                    top_k,
                    top_p,
                    min_p,
                    repeat_penalty,
                    repeat_last_n,
                    presence_penalty: presence,
                    frequency_penalty: frequency,
                    logit_bias: vec![(2, 0.5)],
                }
            },
        )
}

proptest! {
    #[test]
    fn what_is_taken_back_never_was(
        params in any_params(), key: u64,
        prompt in prop::collection::vec(0u32..16, 0..12),
        said in prop::collection::vec(0u32..16, 0..12),
        taken_back in prop::collection::vec(0u32..16, 0..12),
        logits in prop::collection::vec(-4f32..4.0, 16),
    ) {
        let mut straight = Sampler::new(params.clone(), key, &prompt);
        let mut wandering = Sampler::new(params, key, &prompt);
        for &token in &said {
            straight.accept(token);
            taken_back.iter().for_each(|&t| _ = wandering.accept(t));
            wandering.rollback(taken_back.len());
            wandering.accept(token);
        }
        prop_assert_eq!(straight.sample(&logits), wandering.sample(&logits));
        prop_assert_eq!(straight.position(), wandering.position());
        prop_assert_eq!(&straight.state.generated, &wandering.state.generated);

        // Through a snapshot, too; and what lies before it cannot be taken back.
        let mut resumed = wandering.snapshot().sampler();
        taken_back.iter().for_each(|&t| _ = resumed.accept(t));
        resumed.rollback(usize::MAX);
        prop_assert_eq!(straight.sample(&logits), resumed.sample(&logits));
        let mut restored = Sampler::new(SamplerParams::default(), 1, &[3, 3]);
        restored.restore(&wandering.snapshot());
        prop_assert_eq!(straight.propose(&logits, None, None, 3).unwrap(), restored.propose(&logits, None, None, 3).unwrap());
        straight.rollback(usize::MAX);
        prop_assert_eq!(straight.position(), prompt.len() as u64);
    }

    #[test]
    fn parameters_that_nobody_validated_draw_something(
        numbers: [f32; 6], top_k: usize, repeat_last_n: usize, bias: (Token, f32),
        logits in prop::collection::vec(any::<f32>().prop_filter("finite", |x| x.is_finite()), 1..99),
    ) {
        let [temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty] = numbers;
        let logit_bias = vec![bias];
        let params = SamplerParams {
            temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty,
            frequency_penalty, logit_bias,
        };
        let mut sampler = Sampler::new(params, 1, &[1, 2]);
        for token in 0..3 {
            // A penalty of minus infinity may ban everything.
            prop_assert!(sampler.sample(&logits).is_ok_and(|t| (t as usize) < logits.len()) || token > 0);
            prop_assert!(sampler.propose(&logits, None, None, 2).is_ok_and(|p| p.len() <= 2) || token > 0);
            sampler.accept(token);
        }
    }

    #[test]
    fn proposals_begin_with_the_draw_and_their_confidences_descend(
        params in any_params(), key: u64, m in 1usize..20,
        logits in prop::collection::vec(-4f32..4.0, 1..200),
    ) {
        let mut sampler = Sampler::new(params, key, &[1, 5, 2]);
        let token = sampler.sample(&logits).unwrap();
        let proposals = sampler.propose(&logits, None, None, m).unwrap();
        prop_assert_eq!(proposals[0].token, token);
        prop_assert!(proposals.len() <= m);
        prop_assert!(proposals.windows(2).all(|p| p[0].confidence >= p[1].confidence));
        let sum: f32 = proposals.iter().map(|p| p.confidence).sum();
        prop_assert!(proposals[0].confidence > 0.0 && sum <= 1.0 + 1e-5);
    }
}

#[test]
fn a_grammar_that_cannot_go_on_ends_the_draws() {
    let grammar = crate::testing::FixedText::new(&[&[1], &[2]], 3);
    let mut sampler = Sampler::new(greedy(), 0, &[0]).with_grammar(Some(Box::new(grammar)));
    let logits = [9.0, 1.0, 2.0, 3.0];
    assert_eq!(sampler.sample(&logits), Ok(1));
    sampler.accept(1);
    assert_eq!(sampler.sample(&logits), Ok(2));
    sampler.accept(2);
    sampler.rollback(1);
    assert_eq!(sampler.sample(&logits), Ok(2));
    // Said all the same.
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits), Err(LogitError::Grammar));
}
