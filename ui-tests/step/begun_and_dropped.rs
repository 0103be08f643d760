// Apex: a `scale_loss` that is not entered with `with` does nothing, unseen.
#![deny(unused_must_use)]

use tch_amp::{AmpOptimizer, O2, optim::AdamW};

fn train(opt: &mut AmpOptimizer<O2, AdamW>) {
    opt.begin();
}

fn main() {}
