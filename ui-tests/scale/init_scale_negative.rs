// torch.amp: `GradScaler(init_scale=-65536.0)` passes; nothing looks at the number.
use tch_amp::{Amp, Dynamic, O2};

const SCALE: Dynamic = Dynamic::new().init_scale(-65536.0);

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(SCALE);
}
