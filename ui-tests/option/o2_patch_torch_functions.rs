// Apex: RuntimeError in `initialize`: only O1 patches functions.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().patch_torch_functions(true);
}
