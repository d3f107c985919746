//! Any bytes as the files of a published speculator, its configuration, its weights and perhaps an index of them, are either refused
//! or a speculator whose sizes are those of its tensors.
#![no_main]

use foretoken_model::SpeculatorFile;
use libfuzzer_sys::fuzz_target;
use std::fs;

fuzz_target!(|bytes: &[u8]| {
    let Some((config, rest)) = part(bytes) else { return };
    let Some((index, weights)) = part(rest) else { return };
    let directory = tempfile::tempdir().expect("a place for files");
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).expect("room for a file");
    write("config.json", config);
    match index {
        [] => write("model.safetensors", weights),
        index => {
            write("model.safetensors.index.json", index);
            write("a", weights);
        }
    }
    if let Ok(file) = SpeculatorFile::open(directory.path()) {
        let config = &file.info().config;
        // The first head's projection is there, two bytes or more for each weight.
        assert!(2 * config.hidden_size * config.inner_size <= weights.len());
        assert_eq!(config.top_k.len(), config.heads);
    }
});

/// What two bytes give the length of, and what follows.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[low, high], rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_le_bytes([low, high]).into())
}
