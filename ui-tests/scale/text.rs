// Apex: a text other than "dynamic" that is not a number is a ValueError in `initialize`.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale("dynamic");
}
