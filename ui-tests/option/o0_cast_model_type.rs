// Apex: accepted, and O0 becomes O3 under the name of the FP32 baseline.
use half::f16;
use tch_amp::{Amp, O0};

fn main() {
    let _ = Amp::<O0>::builder().cast_model_type::<f16>();
}
