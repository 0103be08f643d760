// ROCm Apex: RuntimeError in `initialize`: O4 is O1 in bfloat16, and its weights are FP32.
use tch_amp::{Amp, O4};

fn main() {
    let _ = Amp::<O4>::builder().master_weights(true);
}
