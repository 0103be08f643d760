// Apex: `cast_model_type=torch.float64` passes at O2; nothing checks that the type is a 16-bit one.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2<f64>>::builder();
}
