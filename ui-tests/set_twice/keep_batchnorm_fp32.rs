// Apex: `initialize(**config, keep_batchnorm_fp32=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, Dynamic, O2};

fn main() {
    let _ = Amp::<O2>::builder()
        .keep_batchnorm_fp32(true)
        .loss_scale(Dynamic::new())
        .keep_batchnorm_fp32(false);
}
