// Apex: `loss_scale=-1.0` passes; nothing looks at the number.
use tch_amp::{Amp, O2, Static};

const SCALE: Static = Static::new(-1.0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
