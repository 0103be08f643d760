// Apex: accepted at O0, where it does nothing.
use tch_amp::{Amp, O0};

fn main() {
    let _ = Amp::<O0>::builder().keep_batchnorm_fp32(true);
}
