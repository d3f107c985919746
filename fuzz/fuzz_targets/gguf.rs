//! Any bytes are either refused or a file whose tensors all lie within it and which, written anew, is read as the same.
#![no_main]

use foretoken_gguf::{Header, Writer, parse_header};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let Ok(header) = parse_header(Path::new("fuzzed"), bytes, bytes.len() as u64) else { return };
    // An alignment may be as large as 2 GiB, and a written file is padded to it.
    if header.alignment <= 1 << 12 {
        let once = rewrite(&header, bytes);
        let again = parse_header(Path::new("written"), &once, once.len() as u64).expect("what was written is read");
        // Bytes and not values, since a NaN is not equal to itself.
        assert_eq!(once, rewrite(&again, &once));
    }
});

fn rewrite(header: &Header, bytes: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in &header.metadata {
        writer.metadata(key, value.clone());
    }
    for tensor in &header.tensors {
        let start = usize::try_from(header.data_start + tensor.offset).expect("within the bytes");
        let data = &bytes[start..][..tensor.len as usize];
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty, data.to_vec()).expect("what was read can be written");
    }
    writer.to_bytes().expect("what was read can be written")
}
