// Apex: `initialize(**config, cast_model_type=…)` is a TypeError if `config` sets it too.
use half::f16;
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().cast_model_type::<f16>().cast_model_type::<f16>();
}
