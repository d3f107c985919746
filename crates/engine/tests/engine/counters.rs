//! Statistics, counted by hand.

use std::collections::BTreeMap;

use foretoken_engine::{DraftPolicy, EngineOptions};
use foretoken_spec::drafters::ModelDrafter;
use foretoken_spec::testing::{AlwaysWrongDrafter, OracleDrafter, RandomDrafter, ScriptedModel};
use foretoken_spec::{SamplerParams, Token};

use crate::common::{answer, engine, fixed, greedy, request};

const VOCAB: usize = 32;

#[test]
fn a_run_counted_by_hand() {
    // Ten tokens: one of the prompt, two rounds of 3 + 1, and one that may draft nothing: 1 + 4 + 4 + 1.
    let tokens: Vec<Token> = (0..20).collect();
    let text = [&[0], &tokens[..]].concat();
    let model = ScriptedModel::saying(VOCAB, 1, tokens);
    let oracle = OracleDrafter::new(vec![text.clone()]);
    let right = answer(
        &mut engine(&model, Some(Box::new(oracle)), fixed(3)),
        request(&[0], 10, greedy(), 0),
    );
    let speculation = &right.stats.speculation;
    assert_eq!(speculation.drafter.as_deref(), Some("oracle"));
    assert_eq!((speculation.rounds, speculation.decided), (3, 9));
    assert_eq!(
        (speculation.proposed, speculation.drafted, speculation.accepted),
        (6, 6, 6)
    );
    assert_eq!(speculation.accepted_per_position, [2, 2, 2]);
    assert_eq!(speculation.rows_histogram, BTreeMap::from([(1, 1), (4, 2)]));
    assert_eq!(speculation.tokens_per_round(), Some(3.0));
    assert_eq!(speculation.acceptance_rate(), Some(1.0));
    assert_eq!((right.stats.prompt_tokens, right.stats.generated), (1, 10));
    assert_eq!(
        (
            right.stats.target.eval_passes,
            right.stats.target.single_row.count
        ),
        (3, 1)
    );
    assert!(speculation.verify <= right.stats.target.eval);
    assert!(right.stats.decode >= speculation.verify + speculation.draft);

    // Nothing accepted: nine rounds of one token, drafts 3, 3, … and 2, 1, 0 before the limit.
    let wrong = AlwaysWrongDrafter::new(vec![text], VOCAB);
    let wrong = answer(
        &mut engine(&model, Some(Box::new(wrong)), fixed(3)),
        request(&[0], 10, greedy(), 0),
    );
    let speculation = &wrong.stats.speculation;
    assert_eq!((speculation.rounds, speculation.decided), (9, 9));
    assert_eq!((speculation.drafted, speculation.accepted), (3 * 6 + 2 + 1, 0));
    assert_eq!(speculation.accepted_per_position, []);
    assert_eq!(
        speculation.rows_histogram,
        BTreeMap::from([(1, 1), (2, 1), (3, 1), (4, 6)])
    );
    assert_eq!(speculation.acceptance_rate(), Some(0.0));
}

#[test]
fn what_stands_behind_the_cut_is_not_counted_as_wrong() {
    // The draft of the last round is right up to the end and wrong behind it: the target would say 9 there.
    const STOP: Token = 31;
    let check = |said: &[Token], drafted: &[Token], stop: &str, counts: [usize; 3], rate: Option<f64>| {
        let model = ScriptedModel::saying(VOCAB, 1, [said, &[9]].concat()).with_end_of_generation(vec![STOP]);
        let oracle = OracleDrafter::new(vec![[&[0], drafted].concat()]);
        let mut request = request(&[0], 50, greedy(), 0);
        request.stops = vec![stop.into()];
        let got = answer(&mut engine(&model, Some(Box::new(oracle)), fixed(8)), request)
            .stats
            .speculation;
        assert_eq!(
            [got.drafted, got.accepted, got.discarded_by_cut],
            counts,
            "{drafted:?}"
        );
        assert_eq!((got.rounds, got.acceptance_rate()), (1, rate));
    };
    let wrong = [20, 21, 22, 23, 24, 25];
    let draft = |said: &[Token]| [said, &wrong].concat();
    check(&[1, 2, STOP], &draft(&[1, 2, STOP]), "zz", [1, 1, 1], Some(1.0));
    check(&[1, 2, 3], &draft(&[1, 2, 3]), "d", [2, 2, 0], Some(1.0)); // the stop string's token is output
    check(&[1, STOP], &draft(&[1, STOP]), "zz", [0, 0, 1], None);
    // Right for one more token behind it.
    check(
        &[1, 2, STOP],
        &draft(&[1, 2, STOP, 9]),
        "zz",
        [1, 1, 2],
        Some(1.0),
    );
}

#[test]
fn before_the_first_draft() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let one = answer(&mut engine(&model, None, fixed(4)), request(&[1], 1, greedy(), 0)).stats;
    assert_eq!(
        (one.speculation.drafter.as_deref(), one.speculation.rounds),
        (None, 0)
    );
    assert_eq!(
        (
            one.speculation.acceptance_rate(),
            one.speculation.tokens_per_round()
        ),
        (None, None)
    );
    assert_eq!((one.decode_rate(), one.target.single_row.mean()), (None, None));
    let five = answer(&mut engine(&model, None, fixed(4)), request(&[1], 5, greedy(), 0)).stats;
    assert_eq!(five.speculation.tokens_per_round(), Some(1.0));
    assert_eq!(five.speculation.acceptance_rate(), None);
    assert!(five.decode_rate().unwrap() > 0.0 && five.prompt_rate().unwrap() > 0.0);
}

#[test]
fn rates_stay_within_their_bounds() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0).with_end_of_generation(vec![2]);
    for seed in 0..40 {
        for k in [1, 4, 8] {
            let drafter = ModelDrafter::new(model.blurred(seed, 0.8), VOCAB);
            let params = SamplerParams {
                temperature: 0.5 * (seed % 4) as f32,
                ..SamplerParams::default()
            };
            let mut request = request(&[1, 2, 3], 60, params, seed);
            request.stops = vec!["ab".into()];
            let stats = answer(&mut engine(&model, Some(Box::new(drafter)), fixed(k)), request).stats;
            let s = &stats.speculation;
            assert!(s.accepted <= s.drafted && s.drafted <= s.proposed);
            assert!(s.accepted <= stats.generated && stats.generated <= s.decided + 1);
            assert_eq!(s.accepted_per_position.iter().sum::<usize>(), s.accepted);
            assert!(s.accepted_per_position.is_sorted_by(|a, b| a >= b));
            assert_eq!(s.rows_histogram.values().sum::<usize>(), s.rounds);
            let rows: usize = s.rows_histogram.iter().map(|(rows, n)| rows * n).sum();
            assert!(rows >= s.rounds + s.drafted + s.discarded_by_cut);
        }
    }
}

#[test]
fn settings_of_the_draft_length() {
    let model = ScriptedModel::saying(VOCAB, 1, (0..20).collect());
    let longest = |policy: DraftPolicy, p: usize| {
        let options = EngineOptions {
            policy,
            ..EngineOptions::default()
        };
        let drafter = RandomDrafter::new(VOCAB, p, 3);
        let stats = answer(
            &mut engine(&model, Some(Box::new(drafter)), options),
            request(&[0], 12, greedy(), 0),
        )
        .stats;
        let rows = stats
            .speculation
            .rows_histogram
            .keys()
            .max()
            .copied()
            .unwrap_or(0);
        (rows - 1, stats.speculation.drafted)
    };
    let policy = DraftPolicy {
        max: 5,
        ..DraftPolicy::default()
    };
    assert_eq!(longest(policy, 1).0, 5);
    assert_eq!(longest(policy, 3).0, 5, "a tree counts its nodes");
    assert_eq!(
        longest(DraftPolicy { min: 6, ..policy }, 1),
        (0, 0),
        "shorter drafts are dropped"
    );
    assert_eq!(
        longest(
            DraftPolicy {
                fixed: Some(2),
                min: 6,
                ..policy
            },
            1
        )
        .0,
        2
    );
}

#[test]
fn confidence_ends_a_draft() {
    let model = ScriptedModel::random(VOCAB, 1, 2.0);
    let drafted = |p_min| {
        let policy = DraftPolicy {
            p_min,
            ..DraftPolicy::default()
        };
        let drafter = ModelDrafter::new(model.blurred(1, 2.0), VOCAB);
        let options = EngineOptions {
            policy,
            ..EngineOptions::default()
        };
        let params = SamplerParams {
            temperature: 1.0,
            ..SamplerParams::default()
        };
        let request = request(&[0], 200, params, 5);
        let speculation = answer(&mut engine(&model, Some(Box::new(drafter)), options), request)
            .stats
            .speculation;
        (speculation.drafted, speculation.acceptance_rate().unwrap())
    };
    let (all, rate) = drafted(0.0);
    let (some, better) = drafted(0.5);
    assert!(
        some < all && better > rate,
        "{some} of {all} at {better} against {rate}"
    );
}

#[test]
fn forced_acceptance_is_marked() {
    let text = [&[0], &vec![4; 40][..]].concat();
    let model = ScriptedModel::saying(VOCAB, 1, vec![4; 40]);
    let forced = |probability| {
        let options = EngineOptions {
            force_accept: Some(probability),
            ..fixed(4)
        };
        let wrong = AlwaysWrongDrafter::new(vec![text.clone()], VOCAB);
        answer(
            &mut engine(&model, Some(Box::new(wrong)), options),
            request(&[0], 21, greedy(), 0),
        )
        .stats
        .speculation
    };
    assert_eq!(
        (forced(1.0).forced, forced(1.0).acceptance_rate()),
        (Some(1.0), Some(1.0))
    );
    assert_eq!(
        (forced(0.0).forced, forced(0.0).acceptance_rate()),
        (Some(0.0), Some(0.0))
    );
}
