// Apex: a helper that sets `keep_batchnorm_fp32` is a RuntimeError in the run whose level is O1.
use tch_amp::{OptLevel, option::AllowsKeepBatchnormFp32};

fn with_fp32_batch_norm<L: AllowsKeepBatchnormFp32>() {}

fn train<L: OptLevel>() {
    with_fp32_batch_norm::<L>();
}

fn main() {}
