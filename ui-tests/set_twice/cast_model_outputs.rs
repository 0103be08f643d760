// Apex: `initialize(**config, cast_model_outputs=…)` is a TypeError if `config` sets it too.
use half::f16;
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().cast_model_outputs::<f32>().cast_model_outputs::<f16>();
}
