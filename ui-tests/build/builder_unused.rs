// Apex: `initialize` works in place, so a discarded result changes the model all the same.
#![deny(unused_must_use)]

use tch_amp::{Amp, O2};

fn main() {
    Amp::<O2>::builder().keep_batchnorm_fp32(true);
}
