use super::special::{Fragment, Matcher};
use super::testing::{self, Piece};
use super::vocab::{Fields, Kind, Vocab};
use super::*;
use proptest::prelude::*;

mod draft;

/// Metadata that a test can change.
#[derive(Clone, Debug)]
struct File {
    model: String,
    pre: Option<String>,
    tokens: Vec<Vec<u8>>,
    types: Option<Vec<i32>>,
    scores: Option<Vec<f32>>,
    merges: Option<Vec<Vec<u8>>>,
    bos: Option<u64>,
    eos: Option<u64>,
    unknown: Option<u64>,
    ends: Vec<u64>,
    gap: [Option<u64>; 3],
    add_bos: Option<bool>,
    add_space_prefix: Option<bool>,
}

impl File {
    fn build(&self) -> Result<Tokenizer, String> {
        Tokenizer::from_fields(&Fields {
            model: &self.model,
            pre: self.pre.as_deref(),
            tokens: &self.tokens,
            types: self.types.as_deref().map(Into::into),
            scores: self.scores.as_deref(),
            merges: self.merges.as_deref(),
            bos: self.bos,
            eos: self.eos,
            unknown: self.unknown,
            ends: self
                .ends
                .iter()
                .map(|&id| ("tokenizer.ggml.eot_token_id", id))
                .collect(),
            gap: self.gap,
            add_bos: self.add_bos,
            add_space_prefix: self.add_space_prefix,
        })
    }

    fn token(&mut self, piece: &str, kind: Kind, score: f32) {
        self.tokens.push(piece.into());
        self.types.as_mut().unwrap().push(kind as i32);
        if let Some(scores) = &mut self.scores {
            scores.push(score);
        }
    }
}

/// Byte-level: a, b, ab, and an end.
fn bpe() -> File {
    let pieces = ["a", "b", "ab", "<|im_end|>"];
    File {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
        types: Some(vec![1, 1, 1, 3]),
        scores: None,
        merges: Some(vec![b"a b".to_vec()]),
        bos: None,
        eos: Some(3),
        unknown: None,
        ends: Vec::new(),
        gap: [None; 3],
        add_bos: None,
        add_space_prefix: None,
    }
}

/// SentencePiece: three control tokens, all bytes, and these pieces with their scores.
fn spm(pieces: &[(&str, f32)]) -> File {
    let mut file = File {
        model: "llama".to_owned(),
        pre: None,
        tokens: Vec::new(),
        types: Some(Vec::new()),
        scores: Some(Vec::new()),
        merges: None,
        ..bpe()
    };
    file.eos = None;
    file.token("<unk>", Kind::Unknown, 0.0);
    file.token("<s>", Kind::Control, 0.0);
    file.token("</s>", Kind::Control, 0.0);
    for byte in 0..=255u8 {
        file.token(&format!("<0x{byte:02X}>"), Kind::Byte, 0.0);
    }
    for &(piece, score) in pieces {
        file.token(piece, Kind::Normal, score);
    }
    file
}

fn pieces<'t>(tokenizer: &'t Tokenizer, text: &str, special: Special) -> Vec<&'t str> {
    tokenizer
        .encode(text, special)
        .into_iter()
        .map(|token| tokenizer.piece(token))
        .collect()
}

#[test]
fn malformed_metadata_is_named() {
    let check = |part: &str, change: &dyn Fn(&mut File)| {
        for mut file in [bpe(), spm(&[("a", -1.0)])] {
            change(&mut file);
            let error = file.build().unwrap_err();
            assert!(error.contains(part), "{error:?} does not contain {part:?}");
        }
    };
    check("\"bert\" is not supported; known: gpt2, llama", &|file| {
        file.model = "bert".to_owned()
    });
    check("tokens is empty", &|file| file.tokens.clear());
    check("token_type has 1 entries", &|file| file.types = Some(vec![1]));
    check("scores has 2 entries", &|file| file.scores = Some(vec![0.0; 2]));
    check("are the same piece \"a\"", &|file| {
        file.token("a", Kind::Normal, 0.0);
        file.token("a", Kind::Normal, 0.0);
    });
    check("is not UTF-8", &|file| file.tokens[0] = vec![0xFF]);
    check("eos_token_id 999999 is out of range", &|file| {
        file.eos = Some(999_999)
    });
    check("bos_token_id 18446744073709551615 is out of range", &|file| {
        file.bos = Some(u64::MAX)
    });
    check("eot_token_id 999999 is out of range", &|file| {
        file.ends = vec![999_999]
    });
    check("not like \"<0x0A>\"", &|file| {
        file.types.as_mut().unwrap()[1] = Kind::Byte as i32
    });
    check("special token 0 is longer", &|file| {
        file.tokens[0] = vec![b'x'; 2000];
        file.types.as_mut().unwrap()[0] = Kind::Control as i32;
    });
    check("longer than 4194304 bytes together", &|file| {
        for number in 0..5000 {
            file.token(&format!("{number:01000}"), Kind::UserDefined, 0.0);
        }
    });

    let check = |mut file: File, part: &str, change: &dyn Fn(&mut File)| {
        change(&mut file);
        let error = file.build().unwrap_err();
        assert!(error.contains(part), "{error:?} does not contain {part:?}");
    };
    check(bpe(), "tokenizer.ggml.pre is missing", &|file| file.pre = None);
    check(bpe(), "merges is missing", &|file| file.merges = None);
    check(
        bpe(),
        "merge 0 (\"b a\") makes \"ba\", which is no token",
        &|file| {
            file.merges = Some(vec![b"b a".to_vec()]);
        },
    );
    check(bpe(), "merges: Token `` out of vocabulary", &|file| {
        file.merges = Some(vec![b" ab".to_vec()])
    });
    check(bpe(), "merges: Token `xx` out of vocabulary", &|file| {
        file.token("xxb", Kind::Normal, 0.0);
        file.merges = Some(vec![b"xx b".to_vec()]);
    });
    check(bpe(), "is not two pieces", &|file| {
        file.merges = Some(vec![b"ab".to_vec()])
    });
    check(bpe(), "bos_token_id is missing", &|file| {
        file.add_bos = Some(true)
    });
    check(spm(&[]), "scores is missing", &|file| file.scores = None);
    check(spm(&[]), "is not a number", &|file| {
        file.scores.as_mut().unwrap()[5] = f32::NAN
    });
    check(
        spm(&[]),
        "no token for byte 0x00, and no unknown token",
        &|file| {
            (file.tokens, file.types, file.scores) = (vec![b"a".to_vec()], Some(vec![1]), Some(vec![0.0]));
            file.add_bos = Some(false);
        },
    );
}

#[test]
fn the_longest_special_token_is_cut_out_first() {
    let tokenizer = testing::byte_level(&[
        Piece::control("<a>"),
        Piece::control("<a><b>"),
        Piece::user_defined("xx"),
        Piece::control("a>x"),
    ]);
    let check = |text: &str, special: Special, expected: &[&str]| {
        assert_eq!(pieces(&tokenizer, text, special), expected, "{text:?}");
    };
    check("<a><b><a>", Special::Parse, &["<a><b>", "<a>"]);
    check("<a><a><b>", Special::Parse, &["<a>", "<a><b>"]);
    check("<a><b>", Special::Text, &["<", "a", ">", "<", "b", ">"]);
    check("xxx", Special::Text, &["xx", "x"]);
    check("<xx", Special::Text, &["<", "xx"]);
    check("", Special::Parse, &[]);
    // Of equal length, the lower id first, even where the other starts earlier.
    check("<a>xx", Special::Parse, &["<a>", "xx"]);
}

#[test]
fn literal_text_holds_no_control_token() {
    let tokenizer = testing::byte_level(&[Piece::control("<a>"), Piece::user_defined("xx")]);
    let cut = |literal: &[std::ops::Range<usize>]| {
        let tokens = tokenizer.encode_literal("<a><a>xx<a>", literal, &[]);
        tokens
            .iter()
            .filter(|&&token| testing::is_control(&tokenizer, token))
            .count()
    };
    for (literal, expected) in [
        (&[][..], 3),
        (std::slice::from_ref(&(0..1)), 2),
        (std::slice::from_ref(&(2..4)), 1),
        (std::slice::from_ref(&(3..3)), 3),
        (std::slice::from_ref(&(6..8)), 3),
        (&[0..1, 10..11][..], 1),
        (&[1..2, 4..5, 9..10][..], 0),
    ] {
        assert_eq!(cut(literal), expected, "{literal:?}");
    }
}

#[test]
fn text_never_merges_into_a_control_token() {
    let mut file = bpe();
    file.types = Some(vec![1, 1, 3, 3]);
    assert_eq!(pieces(&file.build().unwrap(), "ab", Special::Text), ["a", "b"]);
    file.pre = Some("llama-bpe".to_owned());
    file.add_bos = Some(false);
    assert_eq!(pieces(&file.build().unwrap(), "ab", Special::Text), ["a", "b"]);
    let mut file = spm(&[("a", -1.0), ("b", -1.0)]);
    file.token("ab", Kind::Control, 10.0);
    file.add_space_prefix = Some(false);
    assert_eq!(pieces(&file.build().unwrap(), "ab", Special::Text), ["a", "b"]);
}

#[test]
fn spm_puts_a_space_in_front_where_llama_cpp_does() {
    let mut file = spm(&[("a", -1.0), ("▁a", -0.5), ("▁", -2.0)]);
    let check = |file: &File, text: &str, expected: &[&str]| {
        assert_eq!(
            pieces(&file.build().unwrap(), text, Special::Parse),
            expected,
            "{text:?}"
        );
    };
    check(&file, "a", &["▁a"]);
    check(&file, " a", &["▁", "▁a"]);
    check(&file, "aa", &["▁a", "a"]);
    check(&file, "<s>a</s>a", &["<s>", "▁a", "</s>", "▁a"]);
    check(&file, "", &[]);
    check(&file, "é", &["▁", "<0xC3>", "<0xA9>"]);
    file.add_space_prefix = Some(false);
    check(&file, "a a", &["a", "▁a"]);
    check(&file, "<s>a", &["<s>", "a"]);
}

#[test]
fn spm_joins_the_best_pair_and_the_leftmost_of_equals() {
    let check = |list: &[(&str, f32)], text: &str, expected: &[&str]| {
        let mut file = spm(list);
        file.add_space_prefix = Some(false);
        assert_eq!(
            pieces(&file.build().unwrap(), text, Special::Text),
            expected,
            "{list:?} {text:?}"
        );
    };
    let letters = [("a", -9.0), ("b", -9.0), ("c", -9.0)];
    check(
        &[&letters[..], &[("ab", -1.0), ("bc", -0.5)]].concat(),
        "abc",
        &["a", "bc"],
    );
    check(
        &[&letters[..], &[("ab", -1.0), ("bc", -1.0)]].concat(),
        "abc",
        &["ab", "c"],
    );
    check(
        &[&letters[..], &[("ab", 0.0), ("bc", -0.0)]].concat(),
        "abc",
        &["ab", "c"],
    );
    check(
        &[&letters[..], &[("aa", 1.0), ("aaa", 2.0)]].concat(),
        "aaaa",
        &["aaa", "a"],
    );
    check(
        &[&letters[..], &[("aa", f32::NEG_INFINITY), ("ab", f32::INFINITY)]].concat(),
        "aab",
        &["a", "ab"],
    );
}

#[test]
fn tokens_stand_for_their_bytes() {
    let mut file = bpe();
    for (piece, kind) in [
        ("Ġthe", Kind::Normal),
        ("ÃĪ", Kind::Normal),
        ("Ċ", Kind::UserDefined),
        ("[PAD7]", Kind::Unused),
        ("<0x80>", Kind::Byte),
        ("ー", Kind::Normal),
    ] {
        file.token(piece, kind, 0.0);
    }
    let bpe = file.build().unwrap();
    let bytes: Vec<&[u8]> = (0..bpe.vocab_size() as Token + 1)
        .map(|token| bpe.bytes(token))
        .collect();
    let expected: [&[u8]; 11] = [
        b"a",
        b"b",
        b"ab",
        b"",
        b" the",
        b"\xC3\x88",
        "Ċ".as_bytes(),
        b"",
        b"\x80",
        "ー".as_bytes(),
        b"",
    ];
    assert_eq!(bytes, expected);
    assert_eq!((bpe.piece(4), bpe.piece(99)), ("Ġthe", ""));

    let spm = spm(&[("▁a▁", 0.0)]).build().unwrap();
    assert_eq!(spm.bytes(259), b" a ");
    assert_eq!(spm.bytes(3 + 0x0A), b"\n");
    assert_eq!(spm.bytes(1), b"");
}

#[test]
fn prompts_start_with_bos_by_the_files_word_or_the_models_habit() {
    let check =
        |file: &File, expected: Option<Token>| assert_eq!(file.build().unwrap().bos(), expected, "{file:?}");
    let mut file = bpe();
    file.bos = Some(3);
    check(&file, None);
    file.add_bos = Some(true);
    check(&file, Some(3));
    file.add_bos = None;
    file.pre = Some("llama3".to_owned());
    check(&file, Some(3));
    file.add_bos = Some(false);
    check(&file, None);
    let mut file = spm(&[]);
    check(&file, Some(1));
    file.add_bos = Some(false);
    check(&file, None);
}

#[test]
fn ends_are_found_by_id_and_by_name() {
    let mut file = bpe();
    file.eos = Some(0);
    file.ends = vec![1];
    file.token("</s>", Kind::Normal, 0.0);
    file.token("<|endoftext|>", Kind::Normal, 0.0);
    file.token("<end_of_turn>", Kind::Control, 0.0);
    let tokenizer = file.build().unwrap();
    // `</s>` is text in this file.
    assert_eq!(tokenizer.end_of_generation(), [0, 1, 3, 5, 6]);
    assert_eq!(
        pieces(&tokenizer, "<|endoftext|>", Special::Parse),
        ["<|endoftext|>"]
    );
    assert_eq!(tokenizer.bytes(5), b"");
}

#[test]
fn long_texts_take_linear_time() {
    const LEN: usize = 1 << 20;
    let bpe = testing::byte_level(&[Piece::control("<|im_end|>"), Piece::user_defined("  ")]);
    let runs: Vec<String> = (2..32).map(|n| "a".repeat(n)).collect();
    let list: Vec<(&str, f32)> = runs.iter().map(|run| (run.as_str(), run.len() as f32)).collect();
    let spm = spm(&[&[("a", 0.0), ("▁", 0.0), ("<", 0.0)], &list[..]].concat())
        .build()
        .unwrap();
    let start = std::time::Instant::now();
    for text in ["a", " ", "\n", " \n", "<|im_end|>", "<", "he ll ", "1", "é", " a"]
        .map(|part| part.repeat(LEN / part.len()))
    {
        for tokenizer in [&bpe, &spm] {
            let bytes: Vec<u8> = tokenizer
                .encode(&text, Special::Text)
                .iter()
                .flat_map(|&token| tokenizer.bytes(token))
                .copied()
                .collect();
            let prefix = usize::from(std::ptr::eq(tokenizer, &spm));
            assert!(bytes[prefix..] == *text.as_bytes());
        }
    }
    // Seconds on any machine; with quadratic work, hours.
    assert!(start.elapsed().as_secs() < 120, "{:?}", start.elapsed());
}

/// The rule of SentencePiece, word for word: again and again, the best pair of neighbours.
fn naive_spm(list: &[(String, f32)], text: &str) -> Vec<String> {
    let score = |piece: &str| {
        list.iter()
            .find(|(known, _)| known == piece)
            .map(|(_, score)| *score)
    };
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(usize, f32)> = None;
        for i in 1..parts.len() {
            if let Some(score) = score(&format!("{}{}", parts[i - 1], parts[i]))
                && best.is_none_or(|(_, other)| score > other)
            {
                best = Some((i, score));
            }
        }
        let Some((i, _)) = best else { return parts };
        let right = parts.remove(i);
        parts[i - 1].push_str(&right);
    }
}

fn arbitrary_file() -> impl Strategy<Value = File> {
    let piece = prop_oneof![
        4 => "[ab<>|▁é]{0,3}".prop_map(String::into_bytes),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
        1 => Just(b"<0x41>".to_vec()),
        1 => Just(b"</s>".to_vec()),
        1 => Just(b"<|im_end|>".to_vec()),
    ];
    let merge = prop_oneof![4 => "[ab<>▁é]{1,2} [ab<>▁é]{1,2}".prop_map(String::into_bytes), 1 => proptest::collection::vec(any::<u8>(), 0..4)];
    let id = || proptest::option::of(prop_oneof![4 => 0u64..8, 1 => any::<u64>()]);
    let names = prop_oneof![Just("gpt2"), Just("llama"), Just("t5")];
    let pre = proptest::option::of(prop_oneof![
        Just("gpt-2"),
        Just("llama3"),
        Just("tekken"),
        Just("x")
    ]);
    (
        (names, pre, proptest::collection::vec(piece, 0..12)),
        proptest::option::of(proptest::collection::vec(-1i32..8, 0..12)),
        proptest::option::of(proptest::collection::vec(any::<f32>(), 0..12)),
        proptest::option::of(proptest::collection::vec(merge, 0..6)),
        (id(), id(), id(), proptest::collection::vec(0u64..12, 0..2)),
        (any::<Option<bool>>(), any::<Option<bool>>(), any::<bool>()),
    )
        .prop_map(
            |(
                (model, pre, mut tokens),
                types,
                scores,
                merges,
                (bos, eos, unknown, ends),
                (add_bos, prefix, fit),
            )| {
                let fitted = |len: usize| if fit { tokens.len() } else { len };
                let types = types.map(|mut types| {
                    types.resize(fitted(types.len()), 1);
                    types
                });
                let scores = scores.map(|mut scores| {
                    scores.resize(fitted(scores.len()), 0.0);
                    scores
                });
                if fit {
                    // Enough to get past the first checks more often.
                    tokens.iter_mut().enumerate().for_each(|(i, piece)| {
                        if std::str::from_utf8(piece).is_err() {
                            *piece = format!("t{i}").into_bytes();
                        }
                    });
                }
                File {
                    model: model.to_owned(),
                    pre: pre.map(str::to_owned),
                    tokens,
                    types,
                    scores,
                    merges,
                    bos,
                    eos,
                    unknown,
                    ends,
                    gap: [None; 3],
                    add_bos,
                    add_space_prefix: prefix,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_metadata_is_a_tokenizer_or_an_error(file in arbitrary_file(), text in "[ab<>|▁é </s>im_end]{0,20}") {
        match file.build() {
            Err(error) => prop_assert!(!error.is_empty()),
            Ok(tokenizer) => {
                for special in [Special::Parse, Special::Text] {
                    for token in tokenizer.encode(&text, special) {
                        prop_assert!((token as usize) < tokenizer.vocab_size());
                        prop_assert!(special == Special::Parse || !testing::is_control(&tokenizer, token));
                    }
                }
                prop_assert!(tokenizer.end_of_generation().iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
                prop_assert_eq!(tokenizer.check_draft(&tokenizer), Ok(()));
            }
        }
    }

    #[test]
    fn spm_is_the_rule_word_for_word(
        list in proptest::collection::btree_map("[abc]{1,4}", 0u8..4, 0..20),
        text in "[abc]{0,30}",
    ) {
        let mut list: Vec<(String, f32)> = list.into_iter().map(|(piece, score)| (piece, f32::from(score))).collect();
        for letter in ["a", "b", "c"] {
            if list.iter().all(|(piece, _)| piece != letter) {
                list.push((letter.to_owned(), -1.0));
            }
        }
        let borrowed: Vec<(&str, f32)> = list.iter().map(|(piece, score)| (piece.as_str(), *score)).collect();
        let mut file = spm(&borrowed);
        file.add_space_prefix = Some(false);
        let tokenizer = file.build().unwrap();
        prop_assert_eq!(pieces(&tokenizer, &text, Special::Text), naive_spm(&list, &text));
    }

    #[test]
    fn fragments_together_are_the_text(text in "[<a>b|x]{0,40}", border in 0usize..40) {
        let tokenizer = testing::byte_level(&[
            Piece::control("<a>"), Piece::control("<a"), Piece::user_defined("xx"), Piece::control("b|"), Piece::user_defined("|x|x"),
        ]);
        let vocab: &Vocab = &tokenizer.vocab;
        let literal = border.min(text.len())..text.len();
        let mut end = 0;
        for fragment in Matcher::new(vocab).unwrap().cut(&text, std::slice::from_ref(&literal), &[]) {
            let range = match fragment {
                Fragment::Text(range) => range,
                Fragment::Token(token, range) => {
                    prop_assert_eq!(vocab.piece(token), &text[range.clone()]);
                    prop_assert!(vocab.kind(token) == Kind::UserDefined || range.end <= literal.start);
                    range
                }
            };
            prop_assert_eq!(range.start, end);
            prop_assert!(!range.is_empty());
            end = range.end;
        }
        prop_assert_eq!(end, text.len());
    }

    #[test]
    fn bytes_of_tokens_are_any_text(text in ".{0,60}") {
        let tokenizer = testing::byte_level(&[Piece::control("<|im_end|>"), Piece::user_defined("<think>")]);
        let bytes: Vec<u8> =
            tokenizer.encode(&text, Special::Text).iter().flat_map(|&token| tokenizer.bytes(token)).copied().collect();
        prop_assert_eq!(bytes, text.as_bytes());
    }
}

#[test]
fn the_text_around_a_gap_stands_between_its_tokens() {
    let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let tokenizer = testing::byte_level(&names.map(Piece::control));
    let control = |name| tokenizer.encode(name, Special::Parse);
    let text = |text| tokenizer.encode(text, Special::Text);
    let [before, behind, middle] = names.map(control);
    // A control token's name in a text stays text.
    let expected = [before, text("hello<|fim_middle|>"), behind, text("end"), middle].concat();
    assert_eq!(tokenizer.encode_gap("hello<|fim_middle|>", "end"), Some(expected));
    // Two of three are of no use, and text that looks like them is none of them.
    for pieces in [
        vec![Piece::control("<|fim_prefix|>"), Piece::control("<|fim_suffix|>")],
        vec![
            Piece::user_defined("<PRE>"),
            Piece::user_defined("<SUF>"),
            Piece::user_defined("<MID>"),
        ],
    ] {
        assert_eq!(testing::byte_level(&pieces).encode_gap("a", "b"), None);
    }
}

#[test]
fn a_file_may_name_the_tokens_of_a_gap() {
    let mut file = bpe();
    file.gap = [Some(0), Some(1), Some(2)];
    assert!(file.build().unwrap().encode_gap("", "").is_some());
    file.gap = [Some(0), Some(1), Some(99)];
    assert!(file.build().unwrap_err().contains("out of range"));
}
