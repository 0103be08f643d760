// Apex: `initialize` casts at once; a discarded result leaves the model cast and the code unaware.
#![deny(unused_must_use)]

use tch_amp::{Amp, O2};

fn main() {
    Amp::<O2>::builder().keep_batchnorm_fp32(true);
}
