// Apex: `max_loss_scale` is an argument of `initialize`, and is ignored with a static loss scale.
use tch_amp::{Amp, Dynamic, O2};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(Dynamic::new()).max_loss_scale(65536.0);
}
