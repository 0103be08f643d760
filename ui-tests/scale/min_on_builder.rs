// Apex: `min_loss_scale` is an argument of `initialize`, and is ignored with a static loss scale.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().min_loss_scale(1.0);
}
