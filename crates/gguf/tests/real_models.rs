//! The real models, where they are.
use foretoken_gguf::testing::real_model;
use foretoken_gguf::{Array, Gguf, parse_header};
use std::io::Read;
use std::path::Path;

/// Opens a model and compares what it holds; says so if it is not there.
#[track_caller]
fn check(file: &str, architecture: &str, vocabulary: usize, tensors: usize, data_bytes: u64) {
    let Some(path) = real_model(file) else { return };
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.require_string("general.architecture").unwrap(), architecture);
    let Some(Array::String(tokens)) = gguf.array("tokenizer.ggml.tokens").unwrap() else {
        panic!("no tokens")
    };
    assert_eq!(tokens.len(), vocabulary);
    assert_eq!(gguf.tensors().len(), tensors);
    assert_eq!(
        gguf.tensors().iter().map(|tensor| tensor.len).sum::<u64>(),
        data_bytes
    );
    for tensor in gguf.tensors() {
        assert_eq!(
            gguf.map(tensor).unwrap().len() as u64,
            tensor.len,
            "{}",
            tensor.name
        );
    }
    truncated(&path, &gguf);
}

/// Of a file cut within its data, the first tensor that is not whole is named.
fn truncated(path: &Path, gguf: &Gguf) {
    let mut by_offset: Vec<_> = gguf.tensors().iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    let header_len = by_offset[0].offset;
    let header = &read_start(path, header_len)[..];
    for cut in [
        by_offset[0],
        by_offset[by_offset.len() / 2],
        by_offset[by_offset.len() - 1],
    ] {
        let error = parse_header(path, header, cut.offset + cut.len - 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("tensor {:?} data: ends at byte", cut.name)),
            "{error}"
        );
    }
    parse_header(path, header, gguf.file_len()).unwrap();
}

fn read_start(path: &Path, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .unwrap()
        .take(len)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

#[test]
fn smollm2() {
    check(
        "smollm2-135m-instruct-q4_1.gguf",
        "llama",
        49_152,
        272,
        96_576_768,
    );
}

#[test]
fn qwen_1_5b() {
    check(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "qwen2",
        151_936,
        339,
        1_111_370_240,
    );
}

#[test]
fn qwen_0_5b() {
    check(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "qwen2",
        151_936,
        291,
        485_452_288,
    );
}

#[test]
fn gemma() {
    check("gemma-3-270m-q4_k_m.gguf", "gemma3", 262_144, 236, 246_587_904);
}
