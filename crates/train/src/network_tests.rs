//! Gradients against central differences of the formulas written out in f64.

use super::*;
use crate::loss::OUTSIDE;

/// Loss of a batch by the formulas, one number at a time.
fn reference(shape: &NetworkShape, p: &[f64], batch: &Batch, head: &[f32]) -> f64 {
    let (d, m) = (shape.hidden_size, shape.inner_size);
    let layout = Layout::new(shape);
    let sw = 0.5f64.powf(0.5 / shape.heads as f64);
    let alpha = ((1.0 - sw * sw) * m as f64 / 2.0).sqrt() / sw;
    let rms = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut total = 0.0;
    for row in 0..batch.rows {
        let mut s: Vec<f64> = batch.states[row * d..][..d]
            .iter()
            .map(|&x| f64::from(x))
            .collect();
        if shape.scale_input {
            let scale = 1.0 / rms(&s) / 2f64.sqrt();
            s.iter_mut().for_each(|x| *x *= scale);
        }
        for (i, at) in layout.heads.iter().enumerate() {
            let e: Vec<f64> = batch.embeddings[i][row * d..][..d]
                .iter()
                .map(|&x| f64::from(x))
                .collect();
            let z: Vec<f64> = (0..m)
                .map(|j| {
                    let size = s.len();
                    dot(&p[at.proj.start + j * size..][..size], &s)
                        + alpha * dot(&p[at.embedding.start + j * d..][..d], &e)
                })
                .collect();
            let scale = 1.0 / rms(&z);
            s = (0..m)
                .map(|j| {
                    let y = z[j] * scale * p[at.weight.start + j] + p[at.bias.start + j];
                    0.5 * y * (1.0 + libm::erf(y / 2f64.sqrt()))
                })
                .collect();
            let outputs: Vec<f64> = (0..d)
                .map(|j| dot(&p[at.output.start + j * m..][..m], &s))
                .collect();
            let logits: Vec<f64> = head
                .chunks_exact(d)
                .map(|h| h.iter().zip(&outputs).map(|(&h, o)| f64::from(h) * o).sum())
                .collect();
            let log_sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
            let count = batch.labels[i].labels.len() / batch.rows;
            for &(label, probability) in &batch.labels[i].labels[row * count..][..count] {
                if probability > 0.0 {
                    total += f64::from(probability) * (log_sum - logits[label as usize]);
                }
            }
        }
    }
    total / batch.rows as f64
}

fn random(rng: &mut fastrand::Rng, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| size * (rng.f32() * 2.0 - 1.0)).collect()
}

fn check(shape: NetworkShape, hard: bool) {
    let (d, vocabulary, rows) = (shape.hidden_size, 19, 7);
    let mut rng = fastrand::Rng::with_seed(11);
    let mut labels = |_| {
        let mut labels = Labels::default();
        for _ in 0..rows {
            let at = rng.u32(0..vocabulary - 1);
            let row = if hard {
                [(at, 1.0), (0, 0.0), (0, 0.0)]
            } else {
                [(at, 0.5), (0, 0.0), (at + 1, 0.125)]
            };
            labels.labels.extend(row);
            labels.best.push(OUTSIDE);
        }
        // A row of which nothing counts.
        labels.labels[..3].fill((0, 0.0));
        labels
    };
    let labels: Vec<_> = (0..shape.heads).map(&mut labels).collect();
    let batch = Batch {
        rows,
        states: random(&mut rng, rows * d, 1.5),
        embeddings: (0..shape.heads)
            .map(|_| random(&mut rng, rows * d, 0.5))
            .collect(),
        labels,
    };
    let head = random(&mut rng, vocabulary as usize * d, 1.0);
    let mut network = Network::new(shape);
    network.parameters = random(&mut rng, network.layout.len, 0.6);
    let losses = network.learn(&batch, &head);
    let mut p: Vec<f64> = network.parameters.iter().map(|&x| f64::from(x)).collect();
    let expected = reference(&shape, &p, &batch, &head);
    let loss: f64 = losses.iter().sum();
    assert!(
        (loss - expected).abs() < 1e-5 * expected,
        "{shape:?}: loss {loss}, not {expected}"
    );
    let means: f64 = (0..shape.heads)
        .map(|i| mean(network.losses(&batch, i, &head)))
        .sum();
    assert!(
        (means - loss).abs() < 1e-6 * loss,
        "{shape:?}: forward alone gives {means}, not {loss}"
    );
    for tensor in &network.layout.tensors {
        let largest = network.gradient[tensor.range.clone()]
            .iter()
            .fold(0f32, |a, x| a.max(x.abs()));
        assert!(largest > 1e-4, "{shape:?} {}: no gradient", tensor.name);
        for at in tensor.range.clone().step_by(3) {
            let x = p[at];
            let mut side = |to: f64| {
                p[at] = x + to;
                let loss = reference(&shape, &p, &batch, &head);
                p[at] = x;
                loss
            };
            let slope = (side(1e-5) - side(-1e-5)) / 2e-5;
            let ours = f64::from(network.gradient[at]);
            let tolerance = 1e-5 + 1e-3 * f64::from(largest);
            assert!(
                (ours - slope).abs() < tolerance,
                "{shape:?} {} at {at}: {ours}, not {slope}",
                tensor.name
            );
        }
    }
}

#[test]
fn gradients_are_slopes() {
    for heads in 1..=3 {
        for bits in 0..8 {
            let (tied, scale_input) = (bits & 1 > 0, bits & 2 > 0);
            let shape = NetworkShape {
                hidden_size: 5,
                inner_size: 6,
                heads,
                tied,
                scale_input,
            };
            check(shape, bits & 4 > 0);
        }
    }
}
