// Apex: `_amp_state.opt_properties.keep_batchnorm` is an AttributeError: there is no such option.
use tch::nn::Sequential;
use tch_amp::{AmpModel, O2};

fn report(model: &AmpModel<O2, Sequential>) {
    println!("{:?}", model.properties().keep_batchnorm);
}

fn main() {}
