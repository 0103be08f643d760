// Apex: `initialize(**config, patch_torch_functions=…)` is a TypeError if `config` sets it too.
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().patch_torch_functions(true).patch_torch_functions(false);
}
