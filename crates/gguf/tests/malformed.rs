//! Files that the format does not allow: each is an error that names file and field.
use foretoken_gguf::{Header, parse_header};
use std::path::Path;

/// Bytes of a file, field by field.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    /// Magic, version and counts.
    fn new(tensors: u64, metadata: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(metadata)
    }
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }
    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }
    fn string(self, bytes: impl AsRef<[u8]>) -> Self {
        self.u64(bytes.as_ref().len() as u64).bytes(bytes.as_ref())
    }
    /// A tensor table entry.
    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let this = self.string(name).u32(dims.len() as u32);
        dims.iter()
            .fold(this, |this, &dim| this.u64(dim))
            .u32(ty)
            .u64(offset)
    }
    /// Pads to the data section and adds `len` bytes of data.
    fn data(mut self, len: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self
    }
}

fn parse(raw: &Raw) -> Result<Header, String> {
    parse_header(Path::new("model.gguf"), &raw.0, raw.0.len() as u64).map_err(|error| error.to_string())
}

#[track_caller]
fn check(raw: Raw, expected: &str) {
    let message = parse(&raw).expect_err(expected);
    assert!(
        message.starts_with("model.gguf: ") && message.contains(expected),
        "{message}\nlacks {expected}"
    );
}

#[test]
fn preamble() {
    check(
        Raw::default(),
        "magic: needs 4 bytes at byte 0, but the file ends at byte 0",
    );
    check(Raw::default().bytes(b"GGU"), "magic: needs 4 bytes");
    check(
        Raw::default().bytes(b"ggml\x03\0\0\0"),
        "magic: \"ggml\" is not \"GGUF\"",
    );
    check(Raw::default().bytes(b"GGUF"), "version: needs 4 bytes");
    check(
        Raw::default().bytes(b"GGUF").u32(0),
        "version: version 0 is unknown",
    );
    check(
        Raw::default().bytes(b"GGUF").u32(1),
        "version: version 1 is not supported",
    );
    check(
        Raw::default().bytes(b"GGUF").u32(4),
        "version: version 4 is unknown",
    );
    check(
        Raw::default().bytes(b"GGUF").u32(3u32.swap_bytes()),
        "version: big-endian files",
    );
    check(
        Raw::default().bytes(b"GGUF").u32(3),
        "tensor count: needs 8 bytes",
    );
    check(
        Raw::default().bytes(b"GGUF").u32(3).u64(0),
        "metadata count: needs 8 bytes",
    );
    for version in [2, 3] {
        let raw = Raw::default().bytes(b"GGUF").u32(version).u64(0).u64(0);
        assert_eq!(parse(&raw).unwrap().version, version);
    }
}

#[test]
fn counts() {
    for count in [1, 1 << 20, 1 << 40, u64::MAX / 14, u64::MAX] {
        check(
            Raw::new(0, count),
            &format!("metadata count: {count} entries cannot fit"),
        );
        check(
            Raw::new(count, 0),
            &format!("tensor count: {count} entries cannot fit"),
        );
        let array = Raw::new(0, 1).string("a").u32(9);
        check(array.clone().u32(0).u64(count), "metadata \"a\" elements: ");
        check(array.clone().u32(8).u64(count), "metadata \"a\" length: ");
        check(
            array.u32(12).u64(count),
            &format!("metadata \"a\" elements: {count} entries cannot fit"),
        );
    }
    // Lengths of strings.
    check(
        Raw::new(0, 1).u64(u64::MAX).u64(0),
        "metadata key 0: needs 18446744073709551615 bytes",
    );
    check(
        Raw::new(0, 1).string("a").u32(8).u64(u64::MAX),
        "metadata \"a\" value: needs 18446744073709551615 bytes",
    );
    check(
        Raw::new(1, 0).u64(1 << 60).bytes(&[0; 40]),
        "tensor 0 name: needs 1152921504606846976 bytes",
    );
    let element = Raw::new(0, 1)
        .string("a")
        .u32(9)
        .u32(8)
        .u64(2)
        .string("xy")
        .u64(99);
    check(element, "metadata \"a\" element 1: needs 99 bytes");
}

#[test]
fn metadata() {
    let one = || Raw::new(0, 1);
    check(one().string("").bytes(&[0; 9]), "metadata key 0: 0 bytes long");
    check(
        one().string("x".repeat(65_536)).u32(0),
        "metadata key 0: 65536 bytes long",
    );
    check(
        one().string(b"a\xff").u32(0).u64(0),
        "metadata key 0: \"a\\xff\" is not UTF-8",
    );
    check(
        one().string("a").u32(13).u64(0),
        "metadata \"a\" type: unknown value type 13",
    );
    check(
        one().string("a").u32(4).bytes(&[0; 1]),
        "metadata \"a\" value: needs 4 bytes",
    );
    check(
        one().string("a").u32(7).bytes(&[2]),
        "metadata \"a\" value: 2 is not a boolean",
    );
    check(
        one().string("a").u32(9).u32(7).u64(2).bytes(&[1, 9]),
        "metadata \"a\" elements: 9 is not a boolean",
    );
    check(
        one().string("a").u32(9).u32(9).u64(0),
        "metadata \"a\" element type: arrays of arrays are not supported",
    );
    check(
        one().string("a").u32(9).u32(77).u64(0),
        "metadata \"a\" element type: unknown value type 77",
    );
    check(one().string("a\nb").u32(13).u64(0), "metadata \"a\\nb\" type");
    let twice = Raw::new(0, 2)
        .string("same")
        .u32(0)
        .bytes(&[1])
        .string("same")
        .u32(0)
        .bytes(&[2]);
    check(twice, "metadata \"same\": the key occurs twice");
    let long = Raw::new(0, 1).string("k".repeat(200)).u32(13);
    check(long, "\"…");
}

#[test]
fn alignment() {
    let aligned = |value: Raw| Raw::new(1, 1).string("general.alignment").bytes(&value.0);
    let uint = |value| aligned(Raw::default().u32(4).u32(value));
    check(
        uint(0).bytes(&[0; 40]),
        "metadata \"general.alignment\": 0 is not a power of two",
    );
    check(
        uint(24).bytes(&[0; 40]),
        "metadata \"general.alignment\": 24 is not a power of two",
    );
    check(
        aligned(Raw::default().u32(10).u64(32)).bytes(&[0; 40]),
        "alignment\": is uint64, expected uint32",
    );
    check(
        uint(64).tensor("t", &[1], 0, 32).data(128),
        "tensor \"t\" offset: 32 is not a multiple of 64",
    );
    check(
        uint(1 << 31).tensor("t", &[1], 0, 0).data(128),
        "tensor \"t\" data: ends at byte 2147483652",
    );
    assert_eq!(
        parse(&uint(1).tensor("t", &[1], 0, 3).data(8)).unwrap().alignment,
        1
    );
}

#[test]
fn tensors() {
    let one = || Raw::new(1, 0);
    check(
        one().tensor("", &[1], 0, 0).data(4),
        "tensor 0 name: 0 bytes long",
    );
    check(
        one().tensor(&"n".repeat(65), &[1], 0, 0).data(4),
        "tensor 0 name: 65 bytes long",
    );
    check(
        one().tensor("t", &[], 0, 0).data(40),
        "tensor \"t\" dimensions: 0 dimensions",
    );
    check(
        one().tensor("t", &[1; 5], 0, 0).data(40),
        "tensor \"t\" dimensions: 5 dimensions",
    );
    check(
        one().string("t").u32(u32::MAX).data(40),
        "tensor \"t\" dimensions: 4294967295 dimensions",
    );
    check(
        one().tensor("t", &[4, 0], 0, 0).data(4),
        "tensor \"t\" dimensions: [4, 0] contains a zero",
    );
    check(
        one().tensor("t", &[1 << 32, 1 << 32], 0, 0).data(4),
        "tensor \"t\" dimensions: [4294967296, 4294967296]",
    );
    check(
        one().tensor("t", &[1 << 63, 2], 8, 0).data(4),
        "overflows 64 bits",
    );
    check(
        one().tensor("t", &[48], 8, 0).data(99),
        "tensor \"t\" dimensions: [48]: rows of 48 elements are not whole Q8_0",
    );
    check(
        one().tensor("x", &[256], 23, 0).data(144),
        "tensor \"x\" type: IQ4_XS is not supported",
    );
    check(
        one().tensor("x", &[256], 39, 0).data(144),
        "tensor \"x\" type: MXFP4 is not supported",
    );
    check(
        one().tensor("x", &[256], 1000, 0).data(144),
        "tensor \"x\" type: unknown type id 1000",
    );
    check(
        one().tensor("t", &[1], 0, 4).data(64),
        "tensor \"t\" offset: 4 is not a multiple of 32",
    );
    check(
        one().tensor("t", &[1], 0, u64::MAX - 31).data(64),
        "tensor \"t\" data: the end overflows 64 bits",
    );
    check(
        one().tensor("t", &[1 << 62], 24 + 6, 1 << 63).data(64),
        "tensor \"t\" data: the end overflows 64 bits",
    );
    check(
        one().tensor("t", &[9], 0, 0).data(35),
        "tensor \"t\" data: ends at byte 100, but the file has only 99",
    );
    check(
        one().string("t").u32(1).u64(4).u32(0).u32(0),
        "tensor \"t\" offset: needs 8 bytes at byte 49",
    );
    let twice = Raw::new(2, 0)
        .tensor("t", &[1], 0, 0)
        .tensor("t", &[1], 0, 32)
        .data(64);
    check(twice, "tensor \"t\": the name occurs twice");
    let overlap = Raw::new(2, 0)
        .tensor("b", &[1], 0, 32)
        .tensor("a", &[9], 0, 0)
        .data(64);
    check(overlap, "tensor \"b\" data: overlaps tensor \"a\"");
    let same = Raw::new(2, 0)
        .tensor("a", &[1], 0, 0)
        .tensor("b", &[1], 0, 0)
        .data(64);
    check(same, "tensor \"b\" data: overlaps tensor \"a\"");
    // Of several tensors beyond the end, the first in data order is named.
    let cut = Raw::new(3, 0)
        .tensor("c", &[8], 0, 64)
        .tensor("a", &[8], 0, 0)
        .tensor("b", &[8], 0, 32)
        .data(40);
    check(
        cut,
        "tensor \"b\" data: ends at byte 192, but the file has only 168: it is truncated",
    );
}

/// Every proper prefix of a file is refused, and none as if the file were only too long for a header.
#[test]
fn truncated_anywhere() {
    let whole = Raw::new(1, 2)
        .string("a")
        .u32(9)
        .u32(8)
        .u64(2)
        .string("xy")
        .string("")
        .string("b")
        .u32(12)
        .u64(0)
        .tensor("t", &[32, 2], 8, 0)
        .data(68);
    assert_eq!(parse(&whole).unwrap().tensors[0].len, 68);
    for len in 0..whole.0.len() {
        let message = parse(&Raw(whole.0[..len].to_vec())).expect_err("a prefix");
        assert!(!message.contains("header"), "{message}");
    }
}

#[test]
fn header_longer_than_the_bytes_given() {
    let raw = Raw::new(0, 1).string("a").u32(8).u64(500).bytes(&[0; 8]);
    let error = parse_header(Path::new("model.gguf"), &raw.0, 1 << 40)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("metadata \"a\" value: needs 500 bytes") && error.contains("a header may take"),
        "{error}"
    );
}
