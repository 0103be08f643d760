// torch: `param_groups[0]["momentum"] = 0.9` of an Adam adds a key that nobody reads, unseen.
use tch_amp::{AmpOptimizer, O2, SettingError, optim::Adam};

fn warm_up(opt: &mut AmpOptimizer<O2, Adam>) -> Result<(), SettingError> {
    opt.update_settings(0, |group| group.momentum = 0.9)
}

fn main() {}
