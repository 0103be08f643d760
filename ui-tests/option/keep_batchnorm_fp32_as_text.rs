// Apex: takes the texts "True" and "False"; any other is an AssertionError in `initialize`.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().keep_batchnorm_fp32("true");
}
