// Apex: `loss_scale=128.0, min_loss_scale=1.0` passes; the limit is ignored.
use tch_amp::{Amp, O2, Static};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(Static::new(128.0).min_loss_scale(1.0));
}
