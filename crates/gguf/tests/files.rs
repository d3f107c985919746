//! Files on disk: written and read again, split, absent, changed meanwhile.
use foretoken_gguf::{Array, Gguf, TensorType, Value, Writer};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn refusal(path: &Path) -> String {
    Gguf::open(path).expect_err("a refusal").to_string()
}

#[track_caller]
fn check_refused(path: &Path, expected: &str) {
    let message = refusal(path);
    assert!(message.contains(expected), "{message}\nlacks {expected}");
}

/// Writes parts that hold the tensors `t0`, `t1`, … one each; `edit` may spoil a part's metadata.
fn split(dir: &Path, count: u16, edit: impl Fn(u16, &mut Writer)) -> PathBuf {
    let path = |index: u16| dir.join(format!("tiny-{:05}-of-{count:05}.gguf", index + 1));
    for index in 0..count {
        let mut writer = Writer::new();
        if index == 0 {
            writer.metadata("general.architecture", "llama".into());
        }
        writer
            .metadata("split.no", Value::U16(index))
            .metadata("split.count", Value::U16(count))
            .metadata("split.tensors.count", Value::I32(count.into()));
        writer
            .tensor(&format!("t{index}"), &[4], TensorType::F32, vec![index as u8; 16])
            .unwrap();
        edit(index, &mut writer);
        writer.write(path(index)).unwrap();
    }
    path(0)
}

#[test]
fn accessors() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.gguf");
    let mut writer = Writer::new();
    writer
        .metadata("u8", Value::U8(7))
        .metadata("i64", Value::I64(-7))
        .metadata("f32", Value::F32(0.5))
        .metadata("f64", Value::F64(0.25))
        .metadata("bool", true.into())
        .metadata("text", "old".into())
        .metadata("text", "llama".into())
        .metadata("latin1", Value::String(vec![0xe9]))
        .metadata("array", Array::I32(vec![1, -2]).into());
    writer.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();

    assert_eq!(
        (file.version(), file.metadata().len(), file.tensors().len()),
        (3, 8, 0)
    );
    assert_eq!(file.file_len(), std::fs::metadata(&path).unwrap().len());
    assert_eq!(
        (file.uint("u8").unwrap(), file.uint("none").unwrap()),
        (Some(7), None)
    );
    assert_eq!(
        (file.float("f32").unwrap(), file.require_float("f64").unwrap()),
        (Some(0.5), 0.25)
    );
    assert_eq!(
        (file.bool("bool").unwrap(), file.bool("none").unwrap()),
        (Some(true), None)
    );
    assert_eq!(file.require_string("text").unwrap(), "llama");
    assert_eq!(file.array("array").unwrap(), Some(&Array::I32(vec![1, -2])));
    assert_eq!(file.get("latin1"), Some(&Value::String(vec![0xe9])));

    let messages = [
        (file.uint("i64").unwrap_err(), "metadata i64: is negative: -7"),
        (
            file.uint("text").unwrap_err(),
            "metadata text: is string, expected an integer",
        ),
        (
            file.float("u8").unwrap_err(),
            "metadata u8: is uint8, expected a float",
        ),
        (
            file.bool("u8").unwrap_err(),
            "metadata u8: is uint8, expected a bool",
        ),
        (
            file.string("latin1").unwrap_err(),
            "metadata latin1: is not UTF-8",
        ),
        (
            file.array("text").unwrap_err(),
            "metadata text: is string, expected an array",
        ),
        (
            file.require_uint("none").unwrap_err(),
            "metadata none: is missing",
        ),
        (
            file.require_float("none").unwrap_err(),
            "metadata none: is missing",
        ),
        (
            file.require_string("none").unwrap_err(),
            "metadata none: is missing",
        ),
        (file.metadata_error("u8", "is odd"), "metadata u8: is odd"),
    ];
    for (error, expected) in messages {
        assert_eq!(error.to_string(), format!("{}: {expected}", path.display()));
    }
}

#[test]
fn writer_refuses() {
    #[track_caller]
    fn check(name: &str, dims: &[u64], ty: TensorType, len: usize, expected: &str) {
        let mut writer = Writer::new();
        writer.tensor("taken", &[1], TensorType::F32, vec![0; 4]).unwrap();
        let message = writer
            .tensor(name, dims, ty, vec![0; len])
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    check(
        "t",
        &[2],
        TensorType::F32,
        7,
        "tensor \"t\": 7 bytes of data; F32 [2] has 8",
    );
    check("t", &[31], TensorType::Q8_0, 34, "not whole Q8_0 blocks");
    check("t", &[], TensorType::F32, 0, "0 dimensions");
    check("", &[1], TensorType::F32, 4, "0 bytes long");
    check(&"n".repeat(65), &[1], TensorType::F32, 4, "65 bytes long");
    check("taken", &[1], TensorType::F32, 4, "the name is taken");
    for (key, value, expected) in [
        ("", Value::U8(0), "metadata \"\": 0 bytes long"),
        (
            "general.alignment",
            Value::U32(3),
            "metadata \"general.alignment\": 3 is not a power of two",
        ),
        ("general.alignment", Value::U64(32), "is uint64, expected uint32"),
    ] {
        let message = Writer::new()
            .metadata(key, value)
            .to_bytes()
            .unwrap_err()
            .to_string();
        assert!(message.contains(expected), "{message}\nlacks {expected}");
    }
    let dir = TempDir::new().unwrap();
    let message = Writer::new()
        .write(dir.path().join("absent/a.gguf"))
        .unwrap_err()
        .to_string();
    assert!(message.contains("absent/a.gguf: "), "{message}");
}

#[test]
fn data_may_come_while_a_file_is_written() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.gguf");
    let given = Writer::new()
        .tensor("a", &[40], TensorType::F16, vec![1; 80])
        .unwrap()
        .tensor("b", &[3], TensorType::F32, vec![2; 12])
        .unwrap()
        .to_bytes()
        .unwrap();
    let mut writer = Writer::new();
    writer.declare("a", &[40], TensorType::F16).unwrap();
    writer.tensor("b", &[3], TensorType::F32, vec![2; 12]).unwrap();
    writer
        .write_with(&path, &mut |name, out| {
            assert_eq!(name, "a");
            (0..4).try_for_each(|_| out.write_all(&[1; 20]))
        })
        .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), given);
    std::fs::remove_file(&path).unwrap();

    let failed = |data: &mut dyn FnMut(&str, &mut dyn std::io::Write) -> std::io::Result<()>| {
        let problem = writer.write_with(&path, data).unwrap_err().to_string();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{problem}");
        problem
    };
    let short = failed(&mut |_, out| out.write_all(&[1; 79]));
    assert!(
        short.ends_with("tensor \"a\": 79 bytes of data, 80 were declared"),
        "{short}"
    );
    assert!(failed(&mut |_, _| Err(std::io::Error::other("no such luck"))).ends_with("no such luck"));
    let nobody = writer.to_bytes().unwrap_err().to_string();
    assert!(
        nobody.contains("tensor \"a\" was declared and has no data"),
        "{nobody}"
    );
    assert!(writer.write(&path).is_err());
    assert!(writer.declare("a", &[1], TensorType::F32).is_err());
}

#[test]
fn rewriting_a_mapped_file_leaves_the_mapping_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.gguf");
    let write = |byte| {
        let mut writer = Writer::new();
        writer
            .tensor("t", &[1024], TensorType::F32, vec![byte; 4096])
            .unwrap();
        writer.write(&path).unwrap();
    };
    write(1);
    let file = Gguf::open(&path).unwrap();
    let bytes = file.map(file.tensor("t").unwrap()).unwrap();
    write(2);
    assert_eq!(*bytes, [1; 4096]);
    assert_eq!(*file.map(file.tensor("t").unwrap()).unwrap(), [1; 4096]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn not_a_model_file() {
    let dir = TempDir::new().unwrap();
    check_refused(&dir.path().join("none.gguf"), "none.gguf: No such file");
    check_refused(dir.path(), "file: is not a regular file");
    let empty = dir.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    check_refused(&empty, "magic: needs 4 bytes");
}

#[test]
fn map_checks_its_tensor() {
    let dir = TempDir::new().unwrap();
    let path = split(dir.path(), 1, |_, _| {});
    let file = Gguf::open(&path).unwrap();
    let tensor = file.tensor("t0").unwrap();

    let mut elsewhere = tensor.clone();
    elsewhere.part = 1;
    let message = file.map(&elsewhere).unwrap_err().to_string();
    assert!(
        message.contains("tensor \"t0\" data: in part 2, but the file has 1"),
        "{message}"
    );
    for (offset, len) in [(tensor.offset, 1 << 40), (u64::MAX, 1)] {
        let message = file
            .map(&foretoken_gguf::TensorInfo {
                offset,
                len,
                ..tensor.clone()
            })
            .unwrap_err()
            .to_string();
        assert!(message.contains("ends beyond the"), "{message}");
    }
    // The file has shrunk since it was opened.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(tensor.offset + 8)
        .unwrap();
    let message = file.map(tensor).unwrap_err().to_string();
    assert!(message.contains("bytes that the file now has"), "{message}");
}

#[test]
fn split_files() {
    let dir = TempDir::new().unwrap();
    let file = Gguf::open(split(dir.path(), 3, |_, _| {})).unwrap();
    assert_eq!(file.require_string("general.architecture").unwrap(), "llama");
    let parts: Vec<_> = file.tensors().iter().map(|t| (t.name.as_str(), t.part)).collect();
    assert_eq!(parts, [("t0", 0), ("t1", 1), ("t2", 2)]);
    for tensor in file.tensors() {
        assert_eq!(*file.map(tensor).unwrap(), [tensor.part as u8; 16]);
    }
    let on_disk: u64 = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|f| f.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(file.file_len(), on_disk);
}

#[test]
fn split_files_that_do_not_fit_together() {
    #[track_caller]
    fn check(edit: impl Fn(u16, &mut Writer), expected: &str) {
        let dir = TempDir::new().unwrap();
        check_refused(&split(dir.path(), 3, edit), expected);
    }
    let set = |part: u16, key: &'static str, value: Value| {
        move |index: u16, writer: &mut Writer| {
            if index == part {
                writer.metadata(key, value.clone());
            }
        }
    };
    check(
        set(0, "split.count", Value::U16(2)),
        "split.count: 2, but the file's name says 1 of 3",
    );
    check(
        set(1, "split.no", Value::U16(2)),
        "00002-of-00003.gguf: metadata split.no: is 2, expected 1",
    );
    check(
        set(2, "split.count", Value::U16(4)),
        "00003-of-00003.gguf: metadata split.*: the keys are not those",
    );
    check(
        set(1, "split.tensors.count", Value::I32(9)),
        "00002-of-00003.gguf: metadata split.*",
    );
    check(
        set(0, "split.no", "x".into()),
        "metadata split.no: is string, expected an integer",
    );
    check(
        set(0, "split.count", Value::I32(-3)),
        "metadata split.count: is negative",
    );
    let all =
        |index: u16, writer: &mut Writer| set(index, "split.tensors.count", Value::I32(4))(index, writer);
    check(all, "metadata split.tensors.count: 4, but the parts hold 3");
    let same_name = |index, writer: &mut Writer| {
        if index == 2 {
            writer.tensor("t0", &[1], TensorType::F32, vec![0; 4]).unwrap();
        }
    };
    check(
        same_name,
        "00003-of-00003.gguf: tensor \"t0\": the name occurs in another part too",
    );
}

#[test]
fn split_files_with_parts_missing() {
    let dir = TempDir::new().unwrap();
    let first = split(dir.path(), 3, |_, _| {});
    let second = dir.path().join("tiny-00002-of-00003.gguf");
    check_refused(
        &second,
        "metadata split.no: is 1, expected 0; open the first part",
    );

    let renamed = dir.path().join("renamed.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    check_refused(&renamed, "the file's name does not end in -00001-of-00003.gguf");

    std::fs::remove_file(&second).unwrap();
    let message = refusal(&first);
    assert!(
        message.contains("split file: part 2 of 3")
            && message.contains("tiny-00002-of-00003.gguf, is missing")
    );

    // A name alone does not make a split file, but it must not contradict the keys.
    let lone = dir.path().join("lone-00001-of-00001.gguf");
    Writer::new().write(&lone).unwrap();
    Gguf::open(&lone).unwrap();
    let wrong = dir.path().join("lone-00001-of-00002.gguf");
    Writer::new().write(&wrong).unwrap();
    check_refused(&wrong, "split.count: 1, but the file's name says 1 of 2");
}
