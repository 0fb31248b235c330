//! The part of the matrix that the ordinary tests run. For each transport it selects cases so that
//! every pair of values of two dimensions occurs, if the matrix has such a case.

use crate::input_values::mix_bits;
use crate::matrix::{CallScene, CallVariant, RANKS, Transport, VectorSize, scenes, variants};
use crate::matrix_runner::MatrixRun;
use crate::run_monitor::RunMonitor;
use std::collections::{BTreeMap, HashMap};

/// The dimensions: operation with algorithm, type, operator, ranks, size, in place, layout.
const DIMENSIONS: usize = 7;

/// The identifiers of a case's values; each value of each dimension has its own identifier.
type DimensionValues = [u16; DIMENSIONS];

/// A case of the matrix: the indices of its scene and its variant, and its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MatrixCase {
    scene: u32,
    variant: u16,
    values: DimensionValues,
}

/// All cases of a transport.
struct CaseMatrix {
    scenes: Vec<CallScene>,
    cases: Vec<MatrixCase>,
    /// The number of identifiers.
    values: usize,
}

/// The set of value pairs that occur together.
#[derive(PartialEq, Eq)]
struct PairSet {
    values: usize,
    have: Vec<bool>,
}

impl PairSet {
    fn none(values: usize) -> Self {
        Self { values, have: vec![false; values * values] }
    }

    fn of(&self, case: &MatrixCase) -> impl Iterator<Item = usize> + use<> {
        let (all, values) = (self.values, case.values.map(usize::from));
        let pair = move |one: usize, other: usize| values[one] * all + values[other];
        (0..DIMENSIONS).flat_map(move |one| (0..one).map(move |other| pair(one, other)))
    }

    fn set(&mut self, case: &MatrixCase, have: bool) {
        self.of(case).for_each(|pair| self.have[pair] = have);
    }

    fn count(&self, case: &MatrixCase) -> usize {
        self.of(case).filter(|&pair| self.have[pair]).count()
    }
}

impl CaseMatrix {
    fn for_transport(transport: Transport) -> Self {
        let mut numbers: HashMap<(usize, String), u16> = HashMap::new();
        let mut number = |dimension: usize, value: String| {
            let next = u16::try_from(numbers.len()).unwrap();
            *numbers.entry((dimension, value)).or_insert(next)
        };
        let all: Vec<CallScene> = RANKS.into_iter().flat_map(scenes).collect();
        let mut cases = Vec::new();
        for (at, scene) in all.iter().enumerate() {
            let dtype = number(1, scene.dtype.to_string());
            let op = number(2, format!("{:?}", scene.op));
            let ranks = number(3, scene.ranks.to_string());
            let size = number(4, scene.size.to_string());
            for (place, variant) in variants(scene).into_iter().enumerate() {
                if variant.layout.transport != transport {
                    continue;
                }
                let algorithm = number(0, format!("{:?} {:?}", scene.kind, variant.choice));
                let in_place = number(5, variant.in_place.to_string());
                let layout = number(6, variant.layout.to_string());
                cases.push(MatrixCase {
                    scene: u32::try_from(at).unwrap(),
                    variant: u16::try_from(place).unwrap(),
                    values: [algorithm, dtype, op, ranks, size, in_place, layout],
                });
            }
        }
        Self { scenes: all, cases, values: numbers.len() }
    }

    fn pairs(&self, cases: &[MatrixCase]) -> PairSet {
        let mut pairs = PairSet::none(self.values);
        cases.iter().for_each(|case| pairs.set(case, true));
        pairs
    }

    /// Returns cases with all pairs that occur in the matrix; the selection is deterministic.
    fn selection(&self) -> Vec<MatrixCase> {
        let mut missing = self.pairs(&self.cases);
        let mut order: Vec<MatrixCase> = self.cases.clone();
        order.sort_unstable_by_key(|case| {
            mix_bits(u64::from(case.scene) << 16 | u64::from(case.variant))
        });
        // Expensive cases cover only the pairs that no cheap case has.
        let (dear, cheap): (Vec<MatrixCase>, Vec<MatrixCase>) =
            order.into_iter().partition(|case| is_slow(self.scenes[case.scene as usize].size));
        let mut chosen = Vec::new();
        for candidates in [cheap, dear] {
            for least in [15, 10, 7, 5, 4, 3, 2, 1] {
                for case in &candidates {
                    if missing.count(case) >= least {
                        missing.set(case, false);
                        chosen.push(*case);
                    }
                }
            }
        }
        chosen
    }

    fn case(&self, case: &MatrixCase) -> (CallScene, CallVariant) {
        let scene = self.scenes[case.scene as usize];
        (scene, variants(&scene)[usize::from(case.variant)])
    }
}

/// Returns true if a case of this size takes long.
fn is_slow(size: VectorSize) -> bool {
    matches!(size, VectorSize::Segment(_) | VectorSize::Large)
}

/// Runs the selection over a transport.
pub(crate) fn run(transport: Transport) {
    let matrix = CaseMatrix::for_transport(transport);
    let mut by_ranks: BTreeMap<usize, Vec<(CallScene, CallVariant)>> = BTreeMap::new();
    for (scene, variant) in matrix.selection().iter().map(|case| matrix.case(case)) {
        by_ranks.entry(scene.ranks).or_default().push((scene, variant));
    }
    drop(matrix);
    let monitor = RunMonitor::new(None);
    for (ranks, cases) in by_ranks {
        let scenes: Vec<CallScene> = cases.iter().map(|(scene, _)| *scene).collect();
        let variants = |number: usize, _: &CallScene| vec![cases[number].1];
        MatrixRun { ranks, scenes: &scenes, variants: &variants, monitor: &monitor, backend: None }
            .run_all();
    }
    let failures = monitor.failures();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn selection_covers_every_pair_of_values() {
    for transport in Transport::ALL {
        let matrix = CaseMatrix::for_transport(transport);
        let selection = matrix.selection();
        assert!(matrix.pairs(&selection) == matrix.pairs(&matrix.cases), "{transport:?}");
        assert!(selection.len() * 50 < matrix.cases.len(), "it is a small part");
        assert_eq!(matrix.selection(), selection, "it is the same each time");
    }
}
