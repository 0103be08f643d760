// torch: `torch.save(model.state_dict)` without the call's parentheses saves a method, unseen.
#![deny(unused_must_use)]
use tch_amp::{AmpModel, AmpOptimizer, Checkpoint, O2, optim::AdamW};

fn save(model: &AmpModel<O2, ()>, opt: &mut AmpOptimizer<O2, AdamW>) {
    Checkpoint::new(model, opt).across_levels();
}

fn main() {}
