// Apex: RuntimeError in `initialize`: at O1 the weights should remain FP32.
use half::f16;
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().cast_model_type::<f16>();
}
