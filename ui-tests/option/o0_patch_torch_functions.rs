// Apex: RuntimeError in `initialize`: only O1 patches functions.
use tch_amp::{Amp, O0};

fn main() {
    let _ = Amp::<O0>::builder().patch_torch_functions(true);
}
