//! Packed matrices give back the weights that the file holds.
mod common;
use common::{Random, Weights, same, weights};
use foretoken_kernels::{Arena, Compute, Format, Matrix, PackError};

/// `[name, 8 bytes][bytes, u32][weights, u32][the bytes][the weights as f32]` for each format: random blocks and
/// what the Python package `gguf` (`gguf.quants.dequantize`) makes of them.
const GOLDEN: &[u8] = include_bytes!("data/dequantize.bin");

#[test]
fn weights_are_those_of_ggml() {
    let compute = Compute::new(1);
    let mut rest = GOLDEN;
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    let mut seen = 0;
    for _ in 0..12 {
        let name = String::from_utf8(take(8).to_vec()).unwrap();
        let format = Format::ALL
            .into_iter()
            .find(|f| f.name() == name.trim_end_matches('\0'))
            .unwrap();
        let [len, cols] = [0; 2].map(|_| u32::from_le_bytes(take(4).try_into().unwrap()) as usize);
        let bytes = take(len);
        let expected: Vec<f32> = take(4 * cols)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        // In each lane of a tile and the first of the next, with other rows around it.
        let rows = 19;
        let mut file = weights(format, Weights::Ordinary, rows, cols, &mut Random(1));
        for row in 0..rows {
            file[row * len..(row + 1) * len].copy_from_slice(bytes);
            let matrix = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &file).unwrap();
            let mut out = vec![0.0; cols];
            matrix.dequantize_row(row, &mut out);
            assert!(
                same(&out, &expected),
                "{name} row {row}: {:?} not {:?}",
                &out[..8],
                &expected[..8]
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 12);
    assert!(rest.is_empty());
}

#[test]
fn f32_is_kept() {
    let (rows, cols) = (35, 37);
    let bytes = weights(Format::F32, Weights::Anything, rows, cols, &mut Random(2));
    let matrix = Matrix::pack(
        &Compute::new(2),
        &mut Arena::new(),
        Format::F32,
        rows,
        cols,
        &bytes,
    )
    .unwrap();
    for (row, bytes) in bytes.chunks_exact(4 * cols).enumerate() {
        let mut out = vec![0.0; cols];
        matrix.dequantize_row(row, &mut out);
        let expected: Vec<_> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert!(same(&out, &expected));
    }
}

#[test]
fn any_bytes_are_weights() {
    let compute = Compute::new(1);
    for format in Format::ALL {
        for seed in 0..50 {
            let (rows, cols) = (3, 256);
            let bytes = weights(format, Weights::Anything, rows, cols, &mut Random(seed));
            let matrix = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes).unwrap();
            let mut out = vec![7e33; cols];
            for row in 0..rows {
                matrix.dequantize_row(row, &mut out);
                assert!(
                    out.iter().all(|&x| x != 7e33),
                    "{format:?}: a weight was left out"
                );
            }
        }
    }
}

#[test]
fn packed_matrices_are_no_larger_than_the_file_by_more_than_a_twentieth() {
    let compute = Compute::new(1);
    for format in Format::ALL {
        let (rows, cols) = (64, 1536);
        let bytes = weights(format, Weights::Ordinary, rows, cols, &mut Random(3));
        let packed = Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &bytes)
            .unwrap()
            .packed_bytes();
        assert!(
            packed as f64 <= 1.05 * bytes.len() as f64,
            "{format:?}: {packed} for {}",
            bytes.len()
        );
    }
}

#[test]
fn bytes_that_do_not_fit_are_refused() {
    let compute = Compute::new(1);
    let pack = |format, rows, cols, len| {
        Matrix::pack(&compute, &mut Arena::new(), format, rows, cols, &vec![0; len]).map(|_| ())
    };
    let length = |format, rows, cols, expected, got| {
        Err(PackError::Length {
            rows,
            cols,
            format,
            expected,
            got,
        })
    };

    assert_eq!(pack(Format::Q4_K, 3, 512, 3 * 288), Ok(()));
    assert_eq!(pack(Format::Q4_K, 0, 512, 0), Ok(()));
    assert_eq!(pack(Format::F32, 5, 0, 0), Ok(()));
    assert_eq!(
        pack(Format::Q4_K, 3, 300, 0),
        Err(PackError::Columns {
            cols: 300,
            block: 256,
            format: Format::Q4_K
        })
    );
    assert_eq!(
        pack(Format::Q8_0, 1, 33, 0),
        Err(PackError::Columns {
            cols: 33,
            block: 32,
            format: Format::Q8_0
        })
    );
    assert_eq!(
        pack(Format::Q8_0, 2, 64, 135),
        length(Format::Q8_0, 2, 64, 136, 135)
    );
    assert_eq!(
        pack(Format::F16, 1 << 62, 1 << 62, 8),
        length(Format::F16, 1 << 62, 1 << 62, usize::MAX, 8)
    );
    assert_eq!(
        pack(Format::Q4_0, usize::MAX, 32, 18),
        length(Format::Q4_0, usize::MAX, 32, usize::MAX, 18)
    );
}
