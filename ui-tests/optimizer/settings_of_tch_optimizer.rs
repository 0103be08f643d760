// torch: `optimizer.param_groups[0]["weight_decay"]` is a number; `tch` can set it, and not read it.
use tch_amp::{AmpOptimizer, O2};

fn decay(opt: &AmpOptimizer<O2>) -> f64 {
    opt.settings(0).weight_decay
}

fn main() {}
