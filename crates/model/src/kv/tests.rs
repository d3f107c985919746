use super::*;
use foretoken_spec::{Output, Row};
use half::f16;
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const LAYERS: usize = 2;
const LAYOUT: KvLayout = KvLayout {
    kv_heads: 2,
    head_dim: 2,
};
const CONTEXT: usize = 150;

fn cache(positions: usize) -> KvCache {
    KvCache::new(Isa::detect(), LAYERS, LAYOUT, positions).expect("a small cache")
}

/// The key and value of a token in a layer; no two tokens have the same, and all are exact in f16.
fn numbers(stamp: u32, layer: usize) -> ([f32; 4], [f32; 4]) {
    let (low, high, layer) = ((stamp % 2048) as f32, (stamp / 2048) as f32, layer as f32);
    ([low, high, layer, low], [layer, -low, -high, high])
}

/// The stamp that a slot holds in all layers.
fn read(cache: &KvCache, slot: u32) -> Option<u32> {
    let (page, at) = (slot as usize / PAGE, slot as usize % PAGE);
    let page = |of: &[u16]| of[page * LAYOUT.page_len()..][..LAYOUT.page_len()].to_vec();
    let stamps: Vec<Option<u32>> = (0..LAYERS)
        .map(|layer| {
            let kv = cache.layer(layer);
            let number = |bits: u16| f16::from_bits(bits).to_f32();
            // Keys are [kv_head][head_dim][PAGE], values [kv_head][PAGE][head_dim].
            let (keys, values) = (page(kv.keys), page(kv.values));
            let key = [0, 1, 2, 3].map(|i| number(keys[i * PAGE + at]));
            let value = [0, 1, 2, 3].map(|i| number(values[i / 2 * 2 * PAGE + at * 2 + i % 2]));
            let stamp = key[0] as u32 + 2048 * key[1] as u32;
            (numbers(stamp, layer) == (key, value)).then_some(stamp)
        })
        .collect();
    stamps
        .iter()
        .all(|s| *s == stamps[0])
        .then_some(stamps[0])
        .flatten()
}

fn batch(rows: &[(SequenceId, Option<RowId>)]) -> Batch {
    let mut batch = Batch::default();
    for &(sequence, parent) in rows {
        batch.push(Row {
            sequence,
            token: 0,
            parent,
            output: Output::None,
        });
    }
    batch
}

/// The cache beside what it should hold: for every sequence its tokens' stamps.
struct Pair {
    cache: KvCache,
    sequences: Vec<(SequenceId, Vec<u32>)>,
    pass: Vec<(SequenceId, Option<RowId>, u32)>,
    /// Sequences with rows in the pass that may still be committed.
    pending: HashSet<SequenceId>,
    stamp: u32,
    total: usize,
}

impl Pair {
    fn new() -> Self {
        let cache = cache(6 * PAGE);
        let total = cache.pages().free;
        Self {
            cache,
            sequences: vec![],
            pass: vec![],
            pending: HashSet::new(),
            stamp: 0,
            total,
        }
    }

    fn pick(&self, at: usize) -> SequenceId {
        // Now and then one that is not open.
        let at = at % (self.sequences.len() + 1);
        self.sequences.get(at).map_or(SequenceId(u64::MAX), |s| s.0)
    }

    fn tokens(&mut self, id: SequenceId) -> Option<&mut Vec<u32>> {
        self.sequences.iter_mut().find(|s| s.0 == id).map(|s| &mut s.1)
    }

    fn forward(&mut self, rows: &[(SequenceId, Option<RowId>)], finish: bool) -> Result<(), ModelError> {
        let plan = self.cache.begin_pass(&batch(rows), CONTEXT)?;
        self.pending.clear();
        self.pass.clear();
        assert_eq!(plan.rows().len(), rows.len());
        let mut slots = HashSet::new();
        for &(sequence, parent) in rows {
            self.pass.push((sequence, parent, self.stamp));
            self.stamp += 1;
        }
        for (planned, path) in plan.rows().iter().zip(plan.paths()) {
            let (sequence, _, stamp) = self.pass[planned.row as usize];
            assert!(slots.insert(planned.slot), "two rows share a slot");
            for layer in 0..LAYERS {
                let (key, value) = numbers(stamp, layer);
                self.cache.write(layer, planned.slot, &key, &value);
            }
            // Rows stand after their ancestors, so the whole path is written now.
            let mut want: Vec<u32> =
                std::iter::successors(Some(planned.row), |&row| self.pass[row as usize].1)
                    .map(|row| self.pass[row as usize].2)
                    .collect();
            want.extend(self.tokens(sequence).expect("an open sequence").iter().rev());
            want.reverse();
            let in_place = (0..path.prefix).map(|p| path.pages[p / PAGE] * PAGE as u32 + (p % PAGE) as u32);
            let got: Vec<_> = in_place
                .chain(path.tail.iter().copied())
                .map(|s| read(&self.cache, s))
                .collect();
            assert_eq!(got, want.iter().copied().map(Some).collect::<Vec<_>>());
            assert_eq!(planned.position + 1, want.len());
        }
        let order: Vec<SequenceId> = plan.rows().iter().map(|p| self.pass[p.row as usize].0).collect();
        let changes = order.chunk_by(|a, b| a == b).count();
        assert_eq!(
            changes,
            order.iter().collect::<HashSet<_>>().len(),
            "rows of a sequence stand together"
        );
        if finish {
            self.cache.finish_pass();
            self.pending = rows.iter().map(|r| r.0).collect();
        }
        Ok(())
    }

    fn commit(&mut self, sequence: SequenceId, rows: &[RowId]) {
        self.cache.commit(sequence, rows);
        if self.pending.remove(&sequence) {
            let mut last = None;
            let pass = std::mem::take(&mut self.pass);
            for &row in rows {
                match pass.get(row as usize) {
                    Some(&(s, parent, stamp)) if s == sequence && parent == last => {
                        self.tokens(sequence)
                            .expect("a pending sequence is open")
                            .push(stamp);
                        last = Some(row);
                    }
                    _ => break,
                }
            }
            self.pass = pass;
        }
    }

    fn check(&self) {
        let table = &self.cache.table;
        let mut references: HashMap<u32, u32> = HashMap::new();
        for (id, tokens) in &self.sequences {
            assert_eq!(self.cache.len(*id), tokens.len());
            for (position, &stamp) in tokens.iter().enumerate() {
                assert_eq!(
                    read(&self.cache, table.slot(*id, position)),
                    Some(stamp),
                    "{id:?} at {position}"
                );
            }
            table
                .pages_of(*id)
                .iter()
                .for_each(|&page| *references.entry(page).or_default() += 1);
        }
        assert_eq!(
            self.cache.pages().free,
            self.total - references.len(),
            "a page is leaked"
        );
        for (&page, &count) in &references {
            assert_eq!(table.references(page), count, "page {page}");
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Open,
    /// Per row: which sequence, and which row before it is its parent, if any.
    Forward {
        rows: Vec<(usize, Option<usize>)>,
        finish: bool,
    },
    /// A long chain of one sequence.
    Chunk {
        sequence: usize,
        rows: usize,
    },
    Reserve {
        sequence: usize,
        rows: usize,
    },
    /// The path to a row, as far as `keep` rows, then perhaps a row that does not belong.
    Commit {
        row: usize,
        keep: usize,
        wrong: Option<u32>,
    },
    Truncate {
        sequence: usize,
        len: usize,
    },
    Share {
        sequence: usize,
        from: usize,
        len: usize,
    },
    Release {
        sequence: usize,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let any = 0usize..64;
    let row = (any.clone(), prop::option::weighted(0.8, any.clone()));
    let action = prop_oneof![
        2 => Just(Action::Open),
        8 => (prop::collection::vec(row, 1..24), prop::bool::weighted(0.9))
            .prop_map(|(rows, finish)| Action::Forward { rows, finish }),
        4 => (any.clone(), 1usize..70).prop_map(|(sequence, rows)| Action::Chunk { sequence, rows }),
        3 => (any.clone(), 0usize..60).prop_map(|(sequence, rows)| Action::Reserve { sequence, rows }),
        12 => (any.clone(), 0usize..70, prop::option::weighted(0.1, 0u32..80))
            .prop_map(|(row, keep, wrong)| Action::Commit { row, keep, wrong }),
        3 => (any.clone(), 0usize..160).prop_map(|(sequence, len)| Action::Truncate { sequence, len }),
        6 => (any.clone(), any.clone(), 0usize..160)
            .prop_map(|(sequence, from, len)| Action::Share { sequence, from, len }),
        2 => any.prop_map(|sequence| Action::Release { sequence }),
    ];
    prop::collection::vec(action, 1..60)
}

impl Pair {
    fn act(&mut self, action: &Action) {
        match action {
            Action::Open => {
                let id = self.cache.open();
                assert!(self.sequences.iter().all(|s| s.0 != id));
                self.sequences.push((id, vec![]));
            }
            Action::Forward { rows: picks, finish } => {
                let mut rows: Vec<(SequenceId, Option<RowId>)> = Vec::new();
                for &(sequence, parent) in picks {
                    let sequence = self.pick(sequence);
                    let own: Vec<RowId> = (0..rows.len() as RowId)
                        .filter(|&r| rows[r as usize].0 == sequence)
                        .collect();
                    // Mostly of the latest rows, so that trees grow deep.
                    let parent = parent
                        .filter(|_| !own.is_empty())
                        .map(|p| own[own.len() - 1 - p % own.len().min(4)]);
                    rows.push((sequence, parent));
                }
                let _ = self.forward(&rows, *finish);
            }
            Action::Chunk { sequence, rows } => {
                let sequence = self.pick(*sequence);
                let chain: Vec<_> = (0..*rows as RowId)
                    .map(|r| (sequence, r.checked_sub(1)))
                    .collect();
                if self.forward(&chain, true).is_ok() {
                    self.commit(sequence, &(0..*rows as RowId).collect::<Vec<_>>());
                }
            }
            Action::Reserve { sequence, rows } => {
                let sequence = self.pick(*sequence);
                let fits = self.cache.len(sequence) < CONTEXT;
                if self.cache.reserve(sequence, *rows).is_ok() && self.tokens(sequence).is_some() && fits {
                    self.check();
                    let siblings: Vec<_> = (0..*rows).map(|_| (sequence, None)).collect();
                    self.forward(&siblings, true).expect("what is reserved is there");
                }
            }
            Action::Commit { row, keep, wrong } => {
                if self.pass.is_empty() {
                    return self.commit(SequenceId(0), &[0, 1]);
                }
                let row = (row % self.pass.len()) as RowId;
                let sequence = self.pass[row as usize].0;
                let mut path: Vec<RowId> =
                    std::iter::successors(Some(row), |&row| self.pass[row as usize].1).collect();
                path.reverse();
                path.truncate(*keep);
                path.extend(wrong);
                self.commit(sequence, &path);
                self.check();
                self.commit(sequence, &path);
            }
            Action::Truncate { sequence, len } => {
                let sequence = self.pick(*sequence);
                self.cache.truncate(sequence, *len);
                if let Some(tokens) = self.tokens(sequence)
                    && *len <= tokens.len()
                {
                    tokens.truncate(*len);
                    self.pending.remove(&sequence);
                }
            }
            Action::Share { sequence, from, len } => {
                let (sequence, from) = (self.pick(*sequence), self.pick(*from));
                self.cache.share(sequence, from, *len);
                let mut shared = self.tokens(from).cloned().unwrap_or_default();
                let cut = *len <= shared.len();
                shared.truncate(*len);
                if let Some(tokens) = self.tokens(sequence) {
                    *tokens = shared;
                    if cut || sequence != from {
                        self.pending.remove(&sequence);
                    }
                }
            }
            Action::Release { sequence } => {
                let sequence = self.pick(*sequence);
                self.cache.release(sequence);
                self.sequences.retain(|s| s.0 != sequence);
                self.pending.remove(&sequence);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn contents_are_those_of_the_naive_model(actions in actions()) {
        let mut pair = Pair::new();
        for action in [Action::Open, Action::Open].iter().chain(&actions) {
            pair.act(action);
            pair.check();
        }
        while let Some(&(id, _)) = pair.sequences.first() {
            pair.sequences.remove(0);
            pair.cache.release(id);
            pair.check();
        }
        prop_assert_eq!(pair.cache.pages().free, pair.total);
    }
}

#[test]
fn a_chain_is_in_place_and_its_paths_copy_nothing() {
    let mut cache = cache(512);
    let id = cache.open();
    let chain: Vec<_> = (0..512).map(|r: RowId| (id, r.checked_sub(1))).collect();
    let plan = cache.begin_pass(&batch(&chain), 4096).expect("room");
    for (position, path) in plan.paths().into_iter().enumerate() {
        assert_eq!((path.prefix, path.tail.len()), (position + 1, 0));
        assert!(
            std::ptr::eq(path.pages, plan.paths()[0].pages),
            "one slice of pages a sequence"
        );
    }
}

#[test]
fn siblings_share_a_position_and_the_second_chain_stands_in_its_tail() {
    let mut cache = cache(64);
    let id = cache.open();
    // 0 ─ 1 ─ 2 and 0 ─ 3 ─ 4.
    let tree = [
        (id, None),
        (id, Some(0)),
        (id, Some(1)),
        (id, Some(0)),
        (id, Some(3)),
    ];
    let plan = cache.begin_pass(&batch(&tree), 4096).expect("room");
    let positions: Vec<usize> = plan.rows().iter().map(|r| r.position).collect();
    assert_eq!(positions, [0, 1, 2, 1, 2]);
    let tails: Vec<Vec<u32>> = plan.paths().iter().map(|p| p.tail.to_vec()).collect();
    let slots: Vec<u32> = plan.rows().iter().map(|r| r.slot).collect();
    assert_eq!(
        tails,
        [vec![], vec![], vec![], vec![slots[3]], vec![slots[3], slots[4]]]
    );
}

#[test]
fn errors_change_nothing() {
    let mut pair = Pair::new();
    pair.act(&Action::Open);
    pair.act(&Action::Chunk {
        sequence: 0,
        rows: 40,
    });
    let id = pair.sequences[0].0;
    let unknown = SequenceId(77);
    let wide: Vec<_> = (0..400).map(|_| (id, None)).collect();
    let long: Vec<_> = (0..111).map(|r: RowId| (id, r.checked_sub(1))).collect();
    let free = pair.cache.pages().free;
    for (rows, error) in [
        (
            vec![(id, None), (unknown, None)],
            ModelError::UnknownSequence(unknown),
        ),
        (
            long,
            ModelError::ContextFull {
                position: CONTEXT,
                context_length: CONTEXT,
            },
        ),
        (wide, ModelError::OutOfPages(OutOfPages { needed: 12, free })),
    ] {
        assert_eq!(pair.forward(&rows, true), Err(error));
        pair.check();
        assert_eq!(pair.cache.pages().free, free);
    }
    assert_eq!(pair.cache.reserve(id, 400), Err(OutOfPages { needed: 12, free }));
    assert!(pair.cache.reserve(id, usize::MAX).is_err());
    assert_eq!(pair.cache.reserve(unknown, usize::MAX), Ok(()));
    pair.check();
}

#[test]
fn rows_of_a_pass_that_was_not_finished_cannot_be_committed() {
    let mut pair = Pair::new();
    pair.act(&Action::Open);
    let id = pair.sequences[0].0;
    pair.forward(&[(id, None)], false).expect("room");
    pair.commit(id, &[0]);
    assert_eq!(pair.cache.len(id), 0);
    pair.forward(&[(id, None)], true).expect("room");
    pair.commit(id, &[0]);
    assert_eq!(pair.cache.len(id), 1);
    pair.check();
}

#[test]
fn pages_are_shared_until_one_writes() {
    let mut pair = Pair::new();
    pair.act(&Action::Open);
    pair.act(&Action::Open);
    pair.act(&Action::Chunk {
        sequence: 0,
        rows: 40,
    });
    let free = pair.cache.pages().free;
    pair.act(&Action::Share {
        sequence: 1,
        from: 0,
        len: 40,
    });
    assert_eq!(pair.cache.pages().free, free);
    pair.act(&Action::Chunk { sequence: 1, rows: 3 });
    assert_eq!(pair.cache.pages().free, free - 1);
    pair.act(&Action::Chunk { sequence: 0, rows: 3 });
    assert_eq!(
        pair.cache.pages().free,
        free - 1,
        "the last that refers to a page need not copy it"
    );
    pair.check();
}

#[test]
fn a_cache_that_cannot_be_had_is_an_error() {
    let layout = KvLayout {
        kv_heads: 8,
        head_dim: 128,
    };
    for (layers, positions) in [
        (32, usize::MAX),
        (usize::MAX, 4096),
        (32, 1 << 40),
        (1 << 20, 1 << 30),
    ] {
        assert!(
            KvCache::new(Isa::Scalar, layers, layout, positions).is_err(),
            "{layers} layers, {positions}"
        );
    }
}
