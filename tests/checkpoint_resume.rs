//! A training that is saved, and loaded in a new process, goes on as if it had not been
//! interrupted, in every bit. libtorch's random numbers belong to the process, so that each part of
//! a training has one of its own.

mod common;
#[path = "checkpoint_resume/phase.rs"]
mod phase;
#[path = "checkpoint_resume/training.rs"]
mod training;

use std::{
    collections::{BTreeSet, HashMap},
    sync::LazyLock,
};

use phase::{Ending, Endings, Phase};
use safetensors::SafeTensors;
use training::{BEFORE, FIRST_SCALE, OVERFLOWS_OF_0, OVERFLOWS_OF_2, STEPS};

/// How the phases ended: each process trains in all cases.
static ENDINGS: LazyLock<HashMap<Phase, Endings>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let phases = [
        Phase::Straight,
        Phase::Beginning,
        Phase::Resumed,
        Phase::WeightsOnly,
        Phase::WithoutOptimizer,
        Phase::OtherRandomNumbers,
    ];
    phases.into_iter().map(|phase| (phase, phase.run(folder.path(), "phase"))).collect()
});

#[test]
#[ignore = "run by the other tests in a process of its own"]
fn phase() {
    Phase::run_here();
}

/// The straight training and another phase, case by case.
fn pairs(other: Phase) -> impl Iterator<Item = (&'static str, &'static Ending, &'static Ending)> {
    let pairs = ENDINGS[&Phase::Straight].iter().zip(&ENDINGS[&other]);
    pairs.map(|((case, straight), (_, other))| (case.as_str(), straight, other))
}

/// Names all that a phase ended with otherwise than the straight training.
fn differences(straight: &Ending, other: &Ending) -> Vec<String> {
    let mut differences: Vec<_> = different_tensors(straight, other).map(str::to_owned).collect();
    for (step, outcome) in &other.outcomes {
        if straight.outcomes[step] != *outcome {
            differences.push(format!("outcome of step {step}"));
        }
    }
    for (loss, (a, b)) in straight.scalers.iter().zip(&other.scalers).enumerate() {
        if a != b {
            differences.push(format!("scale of loss {loss}: {a}, {b}"));
        }
    }
    if straight.position != other.position {
        differences.push(format!("position: {:?}, {:?}", straight.position, other.position));
    }
    differences.extend(different_in_files(&straight.file, &other.file));
    differences
}

fn different_tensors<'e>(a: &'e Ending, b: &'e Ending) -> impl Iterator<Item = &'e str> {
    assert!(a.tensors.keys().eq(b.tensors.keys()));
    let different = a.tensors.iter().filter(|(name, digest)| b.tensors[*name] != **digest);
    different.map(|(name, _)| name.as_str())
}

/// The tensors that differ between two checkpoints, and what the files say of themselves.
fn different_in_files(a: &[u8], b: &[u8]) -> Vec<String> {
    let [(_, head_a), (_, head_b)] = [a, b].map(|file| SafeTensors::read_metadata(file).unwrap());
    let [tensors_a, tensors_b] = [a, b].map(|file| SafeTensors::deserialize(file).unwrap());
    let names: BTreeSet<_> = tensors_a.names().into_iter().chain(tensors_b.names()).collect();
    let mut different = Vec::new();
    for name in names {
        if tensors_a.tensor(name).ok() != tensors_b.tensor(name).ok() {
            different.push(format!("`{name}` in the file"));
        }
    }
    if head_a.metadata() != head_b.metadata() {
        different.push(format!("head: {:?}, {:?}", head_a.metadata(), head_b.metadata()));
    }
    different
}

#[test]
fn a_new_process_goes_on_in_every_bit() {
    for (case, straight, resumed) in pairs(Phase::Resumed) {
        assert_eq!(resumed.outcomes.len(), STEPS - BEFORE, "{case}");
        let differences = differences(straight, resumed);
        assert!(differences.is_empty(), "{case}: {}", differences.join("\n"));
    }
}

/// Whatever is not loaded is missed in the weights: the comparison would notice it.
#[test]
fn what_is_left_out_is_missed() {
    for phase in [Phase::WeightsOnly, Phase::WithoutOptimizer, Phase::OtherRandomNumbers] {
        for (case, straight, other) in pairs(phase) {
            assert_eq!(other.outcomes.len(), STEPS - BEFORE, "{phase:?}, {case}");
            let different = different_tensors(straight, other);
            let weights = different.filter(|name| name.contains("weight")).count();
            assert!(weights > 0, "{phase:?}, {case}");
            let scales = straight.scalers != other.scalers;
            assert_eq!(scales, phase == Phase::WeightsOnly, "{phase:?}, {case}");
        }
    }
}

/// Scales grow and steps are skipped on both sides of the interruption, which comes when one
/// overflow of losses 0 and 2 is forgiven.
#[test]
fn training_is_as_eventful_as_it_is_meant_to_be() {
    for (case, straight, beginning) in pairs(Phase::Beginning) {
        for (&step, outcomes) in &straight.outcomes {
            let of_2 = OVERFLOWS_OF_2.contains(&step);
            let expected = [of_2 || OVERFLOWS_OF_0.contains(&step), of_2];
            let skipped = outcomes.each_ref().map(|outcome| outcome.starts_with("Skipped"));
            assert_eq!(skipped, expected, "{case}, step {step}: {outcomes:?}");
        }
        let scales = |ending: &Ending| {
            let relative = ending.scales.iter().map(|&(s, good, bad)| (s / FIRST_SCALE, good, bad));
            relative.collect::<Vec<_>>()
        };
        assert_eq!(scales(beginning), [(2.0, 2, 1), (4.0, 1, 0), (4.0, 0, 1)], "{case}");
        assert_eq!(scales(straight), [(4.0, 1, 2), (16.0, 0, 0), (4.0, 0, 2)], "{case}");
    }
}
