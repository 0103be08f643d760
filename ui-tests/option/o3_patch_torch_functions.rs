// Apex: RuntimeError in `initialize`: only O1 patches functions.
use half::bf16;
use tch_amp::{Amp, O3};

fn main() {
    let _ = Amp::<O3<bf16>>::builder().patch_torch_functions(true);
}
