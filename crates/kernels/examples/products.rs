//! So many products of one matrix with n rows, on one thread: what `cargo xtask instructions` counts the
//! instructions of. `products FORMAT N TIMES`
use foretoken_kernels::{Arena, Compute, Format, Matrix, Product, Scratch, matmul};

const ROWS: usize = 64;
const COLS: usize = 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [format, n, times] = &arguments[..] else {
        panic!("products FORMAT N TIMES")
    };
    let format = Format::ALL
        .into_iter()
        .find(|f| f.name().eq_ignore_ascii_case(format))
        .expect("a format");
    let (n, times): (usize, usize) = (n.parse().expect("rows"), times.parse().expect("times"));
    let compute = Compute::new(1);
    let bytes = ROWS * COLS / format.block_len() * format.block_bytes();
    let file: Vec<u8> = (0..bytes)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3b)
        .collect();
    let matrix = Matrix::pack(&compute, &mut Arena::new(), format, ROWS, COLS, &file).expect("the sizes fit");
    let x: Vec<f32> = (0..n * COLS)
        .map(|i| ((i * 37 % 1001) as f32 - 500.0) / 500.0)
        .collect();
    let (mut scratch, mut out) = (Scratch::default(), vec![0.0; n * ROWS]);
    for _ in 0..times {
        let out = &mut out[..];
        matmul(
            &compute,
            &mut scratch,
            &x,
            n,
            &mut [Product { matrix: &matrix, out }],
        );
    }
    println!("{}", out.iter().sum::<f32>());
}
