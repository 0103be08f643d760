// Apex: RuntimeError in `initialize`, even for `keep_batchnorm_fp32=False`.
use half::bf16;
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1<bf16>>::builder().keep_batchnorm_fp32(false);
}
