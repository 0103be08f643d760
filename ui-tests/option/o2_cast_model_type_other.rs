// Apex: `cast_model_type=torch.bfloat16` passes at O2, and the first backward pass is a TypeError.
use half::bf16;
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().cast_model_type::<bf16>();
}
