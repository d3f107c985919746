use super::*;
use crate::Isa;
use crate::vector::tests::{bits, noise};
use half::f16;

/// Positions' keys and values, scattered over pages.
struct World {
    shape: AttentionShape,
    keys: Vec<u16>,
    values: Vec<u16>,
    pages: usize,
}

const SMALL: AttentionShape = AttentionShape {
    heads: 6,
    kv_heads: 2,
    head_dim: 16,
    scale: 0.25,
};

impl World {
    /// All slots hold what is not a number, so that reading a wrong one shows.
    fn new(shape: AttentionShape, pages: usize) -> Self {
        let len = pages * shape.layout().page_len();
        Self {
            shape,
            keys: vec![f16::NAN.to_bits(); len],
            values: vec![f16::NAN.to_bits(); len],
            pages,
        }
    }

    /// The key and value of the `id`-th token, in any world.
    fn token(&self, id: usize) -> (Vec<f32>, Vec<f32>) {
        let n = self.shape.kv_heads * self.shape.head_dim;
        let scale = |x: Vec<f32>| x.iter().map(|x| x / 100.0).collect();
        (
            scale(noise(n, 2 * id as u64 + 11)),
            scale(noise(n, 2 * id as u64 + 12)),
        )
    }

    fn put(&mut self, slot: u32, id: usize) {
        let (key, value) = self.token(id);
        let layout = self.shape.layout();
        layout.write(
            Isa::detect(),
            &mut self.keys,
            &mut self.values,
            slot,
            &key,
            &value,
        );
    }

    /// Pages in an order that is not theirs.
    fn shuffled(&self, seed: usize) -> Vec<u32> {
        let mut pages: Vec<u32> = (0..self.pages as u32).collect();
        for i in (1..pages.len()).rev() {
            pages.swap(i, (i * 7919 + seed * 31 + seed * seed) % (i + 1));
        }
        pages
    }

    fn query(&self, rows: usize) -> Vec<f32> {
        noise(rows * self.shape.heads * self.shape.head_dim, 99)
            .iter()
            .map(|x| x / 50.0)
            .collect()
    }

    fn run(&self, isa: Isa, threads: usize, q: &[f32], rows: &[RowPath<'_>]) -> Vec<f32> {
        let compute = Compute::with_isa(isa, threads);
        let mut scratch = AttentionScratch::default();
        let mut out = vec![f32::NAN; q.len()];
        let kv = KvPages {
            keys: &self.keys,
            values: &self.values,
        };
        attention(&compute, &mut scratch, self.shape, kv, q, rows, &mut out);
        let once = out.clone();
        attention(&compute, &mut scratch, self.shape, kv, q, rows, &mut out);
        assert_eq!(bits(&once), bits(&out), "used buffers give the same");
        out
    }

    /// In f64, from the same f16 keys and values; `path` holds ids.
    fn naive(&self, q: &[f32], path: &[usize]) -> Vec<f64> {
        let AttentionShape {
            heads,
            kv_heads,
            head_dim,
            scale,
        } = self.shape;
        let rounded = |x: Vec<f32>| x.iter().map(|&x| f16::from_f32(x).to_f64()).collect::<Vec<f64>>();
        let tokens: Vec<_> = path
            .iter()
            .map(|&id| self.token(id))
            .map(|(k, v)| (rounded(k), rounded(v)))
            .collect();
        let mut out = Vec::new();
        for head in 0..heads {
            let at = head / (heads / kv_heads) * head_dim;
            let q = &q[head * head_dim..][..head_dim];
            let score = |key: &[f64]| -> f64 {
                q.iter()
                    .zip(&key[at..])
                    .map(|(&q, k)| f64::from(q) * k)
                    .sum::<f64>()
                    * f64::from(scale)
            };
            let scores: Vec<f64> = tokens.iter().map(|(key, _)| score(key)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((at..at + head_dim).map(|d| {
                weights
                    .iter()
                    .zip(&tokens)
                    .map(|(w, (_, value))| w * value[d])
                    .sum::<f64>()
                    / sum
            }));
        }
        out
    }
}

/// A path with its first `prefix` positions in place and the others in slots that are not.
struct Placed {
    pages: Vec<u32>,
    prefix: usize,
    tail: Vec<u32>,
}

impl Placed {
    fn path(&self) -> RowPath<'_> {
        RowPath {
            pages: &self.pages,
            prefix: self.prefix,
            tail: &self.tail,
        }
    }
}

/// Stores tokens 0…len, all but the first `prefix` backwards in pages of their own.
fn place_split(world: &mut World, len: usize, prefix: usize, seed: usize) -> Placed {
    let pages = world.shuffled(seed);
    let home = |p: usize| pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32;
    let spare = pages.len() * PAGE;
    for position in 0..prefix {
        world.put(home(position), position);
    }
    let tail: Vec<u32> = (prefix..len)
        .map(|position| home(spare - 1 - (position - prefix)))
        .collect();
    for (slot, position) in tail.iter().zip(prefix..) {
        world.put(*slot, position);
    }
    Placed {
        pages: pages[..prefix.div_ceil(PAGE)].to_vec(),
        prefix,
        tail,
    }
}

#[test]
fn close_to_f64_and_equal_on_all_isas_and_placements() {
    for shape in [
        SMALL,
        AttentionShape {
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            scale: 0.125,
        },
        AttentionShape {
            heads: 2,
            kv_heads: 2,
            head_dim: 128,
            scale: 0.088_388_35,
        },
        AttentionShape {
            heads: 4,
            kv_heads: 1,
            head_dim: 10,
            scale: -0.3,
        },
        AttentionShape {
            heads: 2,
            kv_heads: 2,
            head_dim: 2,
            scale: 0.0,
        },
    ] {
        for len in [1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 255, 257, 2049] {
            if len > 300 && shape.head_dim != 16 {
                continue;
            }
            let mut world = World::new(shape, 2 * (len / PAGE + 1));
            let whole = place_split(&mut world, len, len, 1);
            let q = world.query(1);
            let want = world.run(Isa::Scalar, 1, &q, &[whole.path()]);
            let ids: Vec<usize> = (0..len).collect();
            for (got, want) in want.iter().zip(world.naive(&q, &ids)) {
                assert!(
                    (f64::from(*got) - want).abs() < 2e-6,
                    "{shape:?} over {len}: {got} for {want}"
                );
            }
            for isa in Isa::available() {
                for (prefix, seed) in [
                    (len, 1),
                    (len, 2),
                    (len - 1, 3),
                    (len / 2, 4),
                    (len / PAGE * PAGE, 5),
                    (0, 6),
                ] {
                    let mut world = World::new(shape, world.pages);
                    let placed = place_split(&mut world, len, prefix, seed);
                    let got = world.run(isa, 1 + seed % 2, &q, &[placed.path()]);
                    assert_eq!(
                        bits(&got),
                        bits(&want),
                        "{shape:?} over {len}, {prefix} in place, {}",
                        isa.name()
                    );
                }
            }
        }
    }
}

/// Two sequences, one with a chain of rows and one with a tree, and a row alone.
#[test]
fn a_row_is_the_same_in_any_company() {
    for (committed, isa) in [0, 1, 30, 32, 60, 63, 64, 150]
        .into_iter()
        .flat_map(|c| Isa::available().into_iter().map(move |isa| (c, isa)))
    {
        for shape in [
            SMALL,
            AttentionShape {
                heads: 9,
                kv_heads: 3,
                ..SMALL
            },
            AttentionShape { heads: 2, ..SMALL },
        ] {
            let mut world = World::new(shape, 40);
            let pages = world.shuffled(3);
            let (chain, tree) = (&pages[..20], &pages[20..]);
            let slot = |pages: &[u32], at: usize| pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            for at in 0..committed + 100 {
                world.put(slot(chain, at), at);
                world.put(slot(tree, at), 1000 + at);
            }
            // A tree of 7 rows behind the committed ones: 0-1-2, 0-3-4, 5-6.
            let tails: [&[usize]; 7] = [&[], &[], &[], &[3], &[3, 4], &[5], &[5, 6]];
            let in_place = [1, 2, 3, 1, 1, 0, 0];
            let tails = tails.map(|tail| {
                tail.iter()
                    .map(|t| slot(tree, committed + t))
                    .collect::<Vec<u32>>()
            });
            let rows: Vec<RowPath<'_>> = (1..=90)
                .map(|n| RowPath {
                    pages: chain,
                    prefix: committed + n,
                    tail: &[],
                })
                .chain(tails.iter().zip(in_place).map(|(tail, n)| RowPath {
                    pages: tree,
                    prefix: committed + n,
                    tail,
                }))
                .collect();
            let q = world.query(rows.len());
            let width = shape.heads * shape.head_dim;
            let alone: Vec<f32> = rows
                .iter()
                .zip(q.chunks_exact(width))
                .flat_map(|(row, q)| world.run(isa, 1, q, std::slice::from_ref(row)))
                .collect();
            for threads in [1, 2, 3] {
                let together = world.run(isa, threads, &q, &rows);
                assert_eq!(
                    bits(&alone),
                    bits(&together),
                    "{committed} committed, {threads} threads"
                );
            }
            for picked in [
                &[90, 91, 92, 93, 94, 95, 96][..],
                &[96, 3, 90, 50, 4, 93],
                &[88, 89, 90],
            ] {
                let picked_rows: Vec<_> = picked.iter().map(|&row| rows[row]).collect();
                let pick = |from: &[f32]| -> Vec<f32> {
                    picked
                        .iter()
                        .flat_map(|&row| from[row * width..][..width].to_vec())
                        .collect()
                };
                assert_eq!(
                    bits(&pick(&alone)),
                    bits(&world.run(isa, 2, &pick(&q), &picked_rows)),
                    "{picked:?}"
                );
            }
            // Row 4's path is committed tokens, then 0, 3, 4.
            let path: Vec<usize> = (0..committed)
                .chain([0, 3, 4].map(|i| committed + i))
                .map(|i| 1000 + i)
                .collect();
            let want = world.naive(&q[94 * width..][..width], &path);
            for (got, want) in alone[94 * width..][..width].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 2e-6, "{got} for {want}");
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_propagate() {
    struct Case {
        what: &'static str,
        key: f32,
        value: f32,
        q: f32,
    }
    for Case { what, key, value, q } in [
        Case {
            what: "NaN key",
            key: f32::NAN,
            value: 1.0,
            q: 1.0,
        },
        Case {
            what: "infinite key",
            key: f32::INFINITY,
            value: 1.0,
            q: 1.0,
        },
        Case {
            what: "key beyond f16",
            key: 1e6,
            value: 1.0,
            q: 1.0,
        },
        Case {
            what: "NaN value",
            key: 1.0,
            value: f32::NAN,
            q: 1.0,
        },
        Case {
            what: "NaN query",
            key: 1.0,
            value: 1.0,
            q: f32::NAN,
        },
        Case {
            what: "infinite value",
            key: 1.0,
            value: f32::INFINITY,
            q: 1.0,
        },
    ] {
        let shape = AttentionShape {
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            scale: 1.0,
        };
        for (len, at) in [(1, 0), (40, 0), (40, 31), (40, 39)] {
            let mut world = World::new(shape, 4);
            let placed = place_split(&mut world, len, len, 2);
            let slot = placed.pages[at / PAGE] * PAGE as u32 + (at % PAGE) as u32;
            let layout = shape.layout();
            layout.write(
                Isa::Scalar,
                &mut world.keys,
                &mut world.values,
                slot,
                &[key; 8],
                &[value; 8],
            );
            let all: Vec<Vec<u32>> = Isa::available()
                .into_iter()
                .map(|isa| bits(&world.run(isa, 1, &[q; 8], &[placed.path()])))
                .collect();
            assert!(all.iter().all(|bits| *bits == all[0]), "{what}");
            assert!(
                all[0].iter().all(|&bits| !f32::from_bits(bits).is_finite()),
                "{what} among {len}"
            );
        }
    }
}

#[test]
fn a_written_slot_is_read_back_wherever_it_is_copied() {
    let layout = KvLayout {
        kv_heads: 3,
        head_dim: 10,
    };
    let n = 4 * layout.page_len();
    let (key, value) = (noise(30, 1), noise(30, 2));
    for isa in Isa::available() {
        for (first, second) in [(0, 1), (31, 32), (127, 0), (40, 70)] {
            let (mut keys, mut values) = (vec![0; n], vec![0; n]);
            layout.write(isa, &mut keys, &mut values, first, &key, &value);
            layout.copy_slot(&mut keys, &mut values, first, second);
            let (mut want_keys, mut want_values) = (vec![0; n], vec![0; n]);
            for slot in [first, second] {
                for (i, (key, value)) in key.iter().zip(&value).enumerate() {
                    let (page, offset) = (slot as usize / PAGE, slot as usize % PAGE);
                    let at = layout.head_page(page, i / 10);
                    want_keys[at + i % 10 * PAGE + offset] = f16::from_f32(*key).to_bits();
                    want_values[at + offset * 10 + i % 10] = f16::from_f32(*value).to_bits();
                }
            }
            assert!(keys == want_keys && values == want_values, "{first} to {second}");
        }
    }
    let mut keys: Vec<u16> = (0..n as u16).collect();
    let mut values = keys.clone();
    layout.copy_page(&mut keys, &mut values, 1, 3);
    let page = layout.page_len();
    assert!(keys[3 * page..] == keys[page..2 * page] && values == keys);
    assert!(keys[..3 * page].iter().copied().eq(0..3 * page as u16));
}

#[test]
fn tasks_cover_every_item_once() {
    let pages = [[0u32; 4], [1; 4], [2; 4]];
    for (counts, group, kv_heads, threads) in [
        (vec![1], 6, 2, 2),
        (vec![1], 3, 3, 2),
        (vec![1], 1, 1, 16),
        (vec![8, 1, 3], 6, 2, 2),
        (vec![512], 6, 2, 2),
        (vec![1, 512, 1], 1, 3, 7),
    ] {
        let rows: Vec<RowPath<'_>> = counts
            .iter()
            .zip(&pages)
            .flat_map(|(&count, pages)| {
                vec![
                    RowPath {
                        pages,
                        prefix: 1,
                        tail: &[]
                    };
                    count
                ]
            })
            .collect();
        let mut tasks = Vec::new();
        plan(&mut tasks, &rows, group, kv_heads, threads);
        let mut seen = vec![0; rows.len() * group * kv_heads];
        for task in &tasks {
            assert!(!task.items.is_empty() && task.items.len() <= TASK_ITEMS);
            let sequences = rows[task.items.start / group..=(task.items.end - 1) / group].iter();
            assert!(
                sequences
                    .map(|row| row.pages.as_ptr())
                    .is_sorted_by(|a, b| a == b),
                "one sequence a task"
            );
            task.items
                .clone()
                .for_each(|item| seen[item * kv_heads + task.kv_head] += 1);
        }
        assert!(seen.iter().all(|&n| n == 1));
        let shares = rows.len() * group * kv_heads >= threads;
        assert!(
            !shares || tasks.len() >= threads,
            "{} tasks for {threads} threads",
            tasks.len()
        );
    }
}
