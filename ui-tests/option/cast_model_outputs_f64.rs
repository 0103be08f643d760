// Apex: any dtype passes; the loss is then computed in FP64.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().cast_model_outputs::<f64>();
}
