// Apex: `initialize(**config, loss_scale=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, Dynamic, O2, Static};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(Static::new(128.0)).loss_scale(Dynamic::new());
}
