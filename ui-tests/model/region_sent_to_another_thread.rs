// torch.autocast: another thread runs without casts, unseen.
use tch::nn::Sequential;
use tch_amp::{AmpModel, O1};

fn in_background(job: impl FnOnce() + Send) {
    job();
}

fn validate(model: &AmpModel<O1, Sequential>) {
    let region = model.autocast();
    in_background(move || drop(region));
}

fn main() {}
