// torch: a training loop that saves no optimizer state resumes with other moments, unseen.
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, checkpoint::CheckpointFolder};

fn resume(model: &AmpModel<O2, ()>, opt: &mut AmpOptimizer<O2>) -> Option<u64> {
    CheckpointFolder::new("checkpoints").load_newest(Checkpoint::new(model, opt)).unwrap()
}

fn main() {}
