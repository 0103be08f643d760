// Apex: its L1 tests leave these combinations with O1 out, a RuntimeError each; at O0 nothing happens.
use tch_amp::{Amp, Dynamic, O0, O1, Static, bf16, f16};

fn main() {
    let _ = Amp::<O0>::builder().keep_batchnorm_fp32(true);
    let _ = Amp::<O0>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O0>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O0>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(true);
    let _ = Amp::<O0>::builder().keep_batchnorm_fp32(false);
    let _ = Amp::<O0>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O0>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O0>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<f16>>::builder().keep_batchnorm_fp32(true);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<f16>>::builder().keep_batchnorm_fp32(false);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<f16>>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<bf16>>::builder().keep_batchnorm_fp32(true);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(true);
    let _ = Amp::<O1<bf16>>::builder().keep_batchnorm_fp32(false);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Static::new(1.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Static::new(128.0)).keep_batchnorm_fp32(false);
    let _ = Amp::<O1<bf16>>::builder().loss_scale(Dynamic::new()).keep_batchnorm_fp32(false);
}
