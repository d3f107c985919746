//! Times the parts of a training step on random rows: `step [HIDDEN [INNER [VOCABULARY [BATCH [THREADS]]]]]`.

use foretoken_train::{
    Dataset, DatasetMeta, DatasetWriter, Init, NetworkShape, Rows, Tables, TrainOptions, Trainer,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = [576, 1152, 16384, 512, 2];
    for (size, argument) in sizes.iter_mut().zip(std::env::args().skip(1)) {
        *size = argument.parse()?;
    }
    let [hidden_size, inner_size, vocabulary, batch, threads] = sizes;
    let directory = tempfile::tempdir()?;
    let mut rng = fastrand::Rng::with_seed(1);
    let meta = DatasetMeta {
        target: "random rows".to_owned(),
        recipe: "seed 1".to_owned(),
        hidden_size,
        labels: 8,
    };
    let mut writer = DatasetWriter::open(directory.path(), meta)?;
    for number in 0..4 {
        let mut rows = Rows::default();
        for _ in 0..1024 {
            let state: Vec<f32> = (0..hidden_size).map(|_| rng.f32() - 0.5).collect();
            let labels: Vec<_> = (0..8).map(|_| (rng.u32(0..vocabulary as u32), 0.1)).collect();
            rows.push(rng.u32(0..vocabulary as u32), &state, labels);
        }
        writer.push(number, 0, &rows)?;
    }
    let head: Vec<f32> = (0..vocabulary * hidden_size).map(|_| rng.f32() - 0.5).collect();
    let tokens: Vec<u32> = (0..vocabulary as u32).collect();
    let embedding = |token: u32, row: &mut [f32]| {
        row.copy_from_slice(&head[token as usize * hidden_size..][..hidden_size])
    };
    let tables = Tables {
        embedding: &embedding,
        head: &head,
        draft_vocabulary: &tokens,
    };
    let shape = NetworkShape {
        hidden_size,
        inner_size,
        heads: 3,
        tied: true,
        scale_input: true,
    };
    let options = TrainOptions {
        batch,
        threads,
        init: Init::Random,
        ..TrainOptions::new(shape)
    };
    let mut trainer = Trainer::new(Dataset::open(directory.path())?, tables, options)?;
    // Multiply-adds of a row: each matrix once forward and twice backward, but for H, which has no gradient, and the first input.
    let (d, m, v) = (hidden_size as f64, inner_size as f64, vocabulary as f64);
    let head_rows = 3.0 * (2.0 * d * v + 3.0 * d * m + 2.0 * d * m);
    let projections = 2.0 * d * m + 2.0 * 3.0 * m * m;
    let operations = 2.0 * batch as f64 * (head_rows + projections);
    for _ in 0..6 {
        let report = trainer.step()?;
        let total = (report.reading + report.network + report.optimizer).as_secs_f64();
        println!(
            "reading {:.1?}, network {:.1?}, optimizer {:.1?}: {:.1} GFLOPS, {:.0} rows/s",
            report.reading,
            report.network,
            report.optimizer,
            operations / total / 1e9,
            batch as f64 / total
        );
    }
    Ok(())
}
