//! What happens in one process, and what it leaves for the comparison.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::{Deserialize, Serialize};
use tch_amp::{Amp, O0, O1, O2, O3, OptLevel, Rounding, bf16, f16};

use crate::training::{BEFORE, Position, STEPS, Training};

const PHASE: &str = "CHECKPOINT_RESUME_PHASE";
const FOLDER: &str = "CHECKPOINT_RESUME_FOLDER";

/// A part of the training that has a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    Straight,
    Beginning,
    Resumed,
    WeightsOnly,
    WithoutOptimizer,
    /// Resumed, but with other random numbers.
    OtherRandomNumbers,
}

/// How a phase ended, for one case.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ending {
    /// The outcomes for both optimizers of each of the phase's steps, by the step's number.
    pub outcomes: BTreeMap<usize, [String; 2]>,
    /// For each loss: the scale, and its numbers of good steps since it changed and of skipped ones.
    pub scales: Vec<(f64, u64, u64)>,
    /// All there is to know of the scales.
    pub scalers: Vec<String>,
    pub tensors: BTreeMap<String, String>,
    pub position: Position,
    /// The checkpoint that was written at the end.
    #[serde(skip)]
    pub file: Vec<u8>,
}

/// The endings with the names of the cases.
pub type Endings = Vec<(String, Ending)>;

impl Phase {
    /// Runs the phase for all cases in a new process, by way of the test `test`.
    pub fn run(self, folder: &Path, test: &str) -> Endings {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(PHASE, serde_json::to_string(&self).unwrap()).env(FOLDER, folder);
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{self:?}: {told}");
        let json = fs::read(self.endings(folder)).unwrap();
        let mut endings: Vec<(String, Ending)> = serde_json::from_slice(&json).unwrap();
        for (case, (_, ending)) in endings.iter_mut().enumerate() {
            ending.file = fs::read(self.file(folder, case)).unwrap();
        }
        endings
    }

    /// In the process of the phase: runs it. Does nothing elsewhere.
    pub fn run_here() {
        let (Ok(phase), Some(folder)) = (std::env::var(PHASE), std::env::var_os(FOLDER)) else {
            return;
        };
        tch::set_num_threads(1);
        let (phase, folder): (Self, _) = (serde_json::from_str(&phase).unwrap(), folder.as_ref());
        let mut endings = Endings::new();
        macro_rules! case {
            ($name:literal, $builder:expr) => {
                let ending = phase.train(folder, endings.len(), || Training::new($builder));
                endings.push(($name.to_owned(), ending));
            };
        }
        case!("O0", Amp::<O0>::builder());
        case!("O1<f16>", Amp::<O1<f16>>::builder());
        case!("O1<bf16>", Amp::<O1<bf16>>::builder());
        case!("O2<f16>", Amp::<O2<f16>>::builder());
        case!("O2<bf16>", Amp::<O2<bf16>>::builder());
        case!("O3<f16>", Amp::<O3<f16>>::builder());
        case!("O3<bf16>", Amp::<O3<bf16>>::builder());
        let rounding = Rounding::Stochastic { seed: 7 };
        case!("O3<bf16>, stochastic", Amp::<O3<bf16>>::builder().rounding(rounding));
        case!("O2<bf16>, all cast", Amp::<O2<bf16>>::builder().keep_batchnorm_fp32(false));
        fs::write(phase.endings(folder), serde_json::to_vec(&endings).unwrap()).unwrap();
    }

    fn endings(self, folder: &Path) -> PathBuf {
        folder.join(format!("{self:?}.json"))
    }

    fn file(self, folder: &Path, case: usize) -> PathBuf {
        folder.join(format!("{self:?}.{case}.safetensors"))
    }

    /// Trains until the phase ends and saves there.
    fn train<L: OptLevel>(
        self,
        folder: &Path,
        case: usize,
        new: impl Fn() -> Training<L>,
    ) -> Ending {
        let beginning = Self::Beginning.file(folder, case);
        tch::manual_seed(if matches!(self, Self::Straight | Self::Beginning) { 1 } else { 2 });
        let mut training = new();
        let mut position: Position = match self {
            Self::Straight | Self::Beginning => Position::START,
            Self::Resumed => training.checkpoint().load(&beginning).unwrap(),
            Self::WithoutOptimizer => {
                training.checkpoint().load_without_optimizer(&beginning).unwrap()
            }
            Self::OtherRandomNumbers => {
                let position = training.checkpoint().load(&beginning).unwrap();
                tch::manual_seed(3);
                position
            }
            Self::WeightsOnly => {
                training.checkpoint().load_weights(&beginning).unwrap();
                // Position and random numbers are those of the file.
                new().checkpoint().load(&beginning).unwrap()
            }
        };
        let end = if self == Self::Beginning { BEFORE } else { STEPS };
        let mut outcomes = BTreeMap::new();
        while position.step < end {
            let step = position.step;
            let outcome = training.step(&mut position);
            outcomes.insert(step, outcome.map(|outcome| format!("{outcome:?}")));
        }
        training.checkpoint().save(self.file(folder, case), &position).unwrap();
        let scalers = training.scalers();
        Ending {
            outcomes,
            scales: scalers.iter().map(|s| (s.scale(), s.unskipped(), s.skipped())).collect(),
            scalers: scalers.iter().map(|scaler| format!("{scaler:?}")).collect(),
            tensors: training.tensors().into_iter().collect(),
            position,
            file: Vec::new(),
        }
    }
}
