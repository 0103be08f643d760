// Apex: takes a number, and any will do: 0, a negative one, NaN.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(128.0);
}
