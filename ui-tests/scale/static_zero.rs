// Apex: `loss_scale=0` passes; the first `scale_loss` ends in a ZeroDivisionError.
use tch_amp::{Amp, O2, Static};

const SCALE: Static = Static::new(0.0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
