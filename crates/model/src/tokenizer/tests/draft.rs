//! Which tokenizers can draft for which.

use super::*;

#[test]
fn drafts_of_one_vocabulary_are_accepted() {
    let target = bpe();
    let check = |change: &dyn Fn(&mut File), expected: Result<(), &str>| {
        let mut draft = bpe();
        change(&mut draft);
        let (target, draft) = (target.build().unwrap(), draft.build().unwrap());
        assert_eq!(target.check_draft(&draft), expected.map_err(str::to_owned));
        // Neither order nor padding matters for whether they fit.
        assert_eq!(draft.check_draft(&target).is_ok(), expected.is_ok());
    };
    check(&|_| {}, Ok(()));
    check(
        &|file| (0..300).for_each(|i| file.token(&format!("[PAD{i}]"), Kind::Unused, 0.0)),
        Ok(()),
    );
    check(
        &|file| (0..3).for_each(|i| file.token(&format!("<|extra_{i}|>"), Kind::Normal, 0.0)),
        Ok(()),
    );
    check(&|file| file.token("<|vision|>", Kind::Control, 0.0), Ok(()));
    check(
        &|file| (file.tokens[1], file.merges) = (b"c".to_vec(), Some(Vec::new())),
        Err("the draft has another vocabulary: token 1 is \"b\" in the target and \"c\" in the draft"),
    );
    check(
        &|file| file.token("word", Kind::Normal, 0.0),
        Err("the draft has another vocabulary: token 4 is nothing in the target and \"word\" in the draft"),
    );
    check(
        &|file| file.tokens[3] = b"<|eot_id|>".to_vec(),
        Err(
            "the draft has another vocabulary: token 3 is \"<|im_end|>\" in the target and \"<|eot_id|>\" in the draft",
        ),
    );
    check(
        &|file| file.pre = Some("qwen2".to_owned()),
        Err("the target's tokenizer is gpt2/gpt-2, the draft's gpt2/qwen2"),
    );
    check(&|file| file.pre = Some("mpt".to_owned()), Ok(()));

    let with = |name: &str, kind: Kind| {
        let mut file = bpe();
        file.token(name, kind, 0.0);
        file.build().unwrap()
    };
    let reserved = with("<|reserved|>", Kind::Control);
    assert_eq!(
        reserved.check_draft(&with("<|python_tag|>", Kind::Control)),
        Ok(())
    );
    assert_eq!(reserved.check_draft(&with("[PAD4]", Kind::Unused)), Ok(()));
    assert!(reserved.check_draft(&with("<|reserved|>", Kind::Normal)).is_err());
    assert!(
        reserved
            .check_draft(&with("<|tool|>", Kind::UserDefined))
            .is_err()
    );
}

#[test]
fn fingerprints_tell_tokenizers_apart() {
    let base = spm(&[("a", -1.0), ("b", -2.0)]);
    let of = |file: &File| file.build().unwrap().fingerprint();
    let mut seen = vec![of(&base), of(&bpe())];
    let changes: [&dyn Fn(&mut File); 7] = [
        &|file| file.tokens[259] = b"c".to_vec(),
        &|file| file.types.as_mut().unwrap()[259] = 4,
        &|file| file.scores.as_mut().unwrap()[259] = -3.0,
        &|file| file.add_space_prefix = Some(false),
        &|file| file.add_bos = Some(false),
        &|file| file.eos = Some(1),
        &|file| file.token("", Kind::Unused, 0.0),
    ];
    assert_eq!(of(&base), of(&base.clone()));
    for change in changes {
        let mut file = base.clone();
        change(&mut file);
        seen.push(of(&file));
    }
    let mut merged = bpe();
    merged.merges = Some(Vec::new());
    seen.push(of(&merged));
    let len = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), len);
}
