//! What holds for any file: what is written is read again; what is spoiled never panics.
use foretoken_gguf::{Array, TensorType, Value, Writer, parse_header};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::path::Path;

fn floats() -> impl Strategy<Value = f32> {
    any::<f32>().prop_filter("NaN is not equal to itself", |v| !v.is_nan())
}

fn doubles() -> impl Strategy<Value = f64> {
    any::<f64>().prop_filter("NaN is not equal to itself", |v| !v.is_nan())
}

fn arrays() -> impl Strategy<Value = Array> {
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(floats(), 0..9).prop_map(Array::F32),
        vec(doubles(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(vec(any::<u8>(), 0..9), 0..9).prop_map(Array::String),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        floats().prop_map(Value::F32),
        doubles().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        vec(any::<u8>(), 0..9).prop_map(Value::String),
        arrays().prop_map(Value::Array),
    ]
}

#[derive(Clone, Debug)]
struct Tensor {
    dims: Vec<u64>,
    ty: TensorType,
    data: Vec<u8>,
}

fn tensors() -> impl Strategy<Value = Tensor> {
    let types: Vec<_> = TensorType::all().collect();
    (
        proptest::sample::select(types),
        1..3u64,
        vec(1..4u64, 0..4),
        any::<u8>(),
    )
        .prop_map(|(ty, blocks, rest, byte)| {
            let dims: Vec<u64> = [blocks * ty.block_len()].into_iter().chain(rest).collect();
            let len = ty.data_len(&dims).unwrap() as usize;
            Tensor {
                dims,
                ty,
                data: (0..len).map(|i| byte.wrapping_add(i as u8)).collect(),
            }
        })
}

prop_compose! {
    fn contents()(
        metadata in btree_map("[a-z.]{1,12}", values(), 0..6),
        alignment in proptest::option::of(0..9u32),
        tensors in btree_map("[a-z.é]{1,8}", tensors(), 0..5),
    ) -> (Vec<(String, Value)>, Vec<(String, Tensor)>) {
        let mut metadata: Vec<_> = metadata.into_iter().filter(|(key, _)| key != "general.alignment").collect();
        metadata.extend(alignment.map(|log2| ("general.alignment".to_owned(), Value::U32(1 << log2))));
        (metadata, tensors.into_iter().collect())
    }
}

fn write(metadata: &[(String, Value)], tensors: &[(String, Tensor)]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (key, value) in metadata {
        writer.metadata(key, value.clone());
    }
    for (name, tensor) in tensors {
        writer
            .tensor(name, &tensor.dims, tensor.ty, tensor.data.clone())
            .unwrap();
    }
    writer.to_bytes().unwrap()
}

/// Parses, and if that succeeds looks at every tensor's data.
fn read_all(bytes: &[u8]) -> Result<(), foretoken_gguf::Error> {
    let header = parse_header(Path::new("fuzzed.gguf"), bytes, bytes.len() as u64)?;
    for tensor in &header.tensors {
        let start = (header.data_start + tensor.offset) as usize;
        assert_eq!(bytes[start..][..tensor.len as usize].len() as u64, tensor.len);
    }
    Ok(())
}

proptest! {
    #[test]
    fn written_is_read_again((metadata, tensors) in contents()) {
        let bytes = write(&metadata, &tensors);
        let header = parse_header(Path::new("a.gguf"), &bytes, bytes.len() as u64).unwrap();
        prop_assert_eq!(header.version, 3);
        prop_assert_eq!(header.metadata, metadata);
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for (read, (name, tensor)) in header.tensors.iter().zip(&tensors) {
            prop_assert_eq!(&read.name, name);
            prop_assert_eq!(&read.dims, &tensor.dims);
            prop_assert_eq!(read.ty, tensor.ty);
            let start = header.data_start + read.offset;
            prop_assert!(start.is_multiple_of(header.alignment));
            prop_assert_eq!(&bytes[start as usize..][..read.len as usize], &tensor.data[..]);
        }
    }

    #[test]
    fn spoiled_files_never_panic(
        (metadata, tensors) in contents(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = write(&metadata, &tensors);
        for (index, byte) in flips {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if cut {
            bytes.truncate(len.index(bytes.len()));
        }
        // Either outcome is right; a panic or an access beyond the bytes is not.
        let _ = read_all(&bytes);
    }

    #[test]
    fn truncated_data_is_refused((metadata, tensors) in contents(), cut in any::<prop::sample::Index>()) {
        let bytes = write(&metadata, &tensors);
        let header = parse_header(Path::new("a.gguf"), &bytes, bytes.len() as u64).unwrap();
        // Padding may be cut, bytes of header and tensors may not.
        let used = header.tensors.iter().map(|t| header.data_start + t.offset + t.len).max();
        if let Some(used) = used {
            prop_assert!(read_all(&bytes[..cut.index(used as usize)]).is_err());
        }
    }
}
