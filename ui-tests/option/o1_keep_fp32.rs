// Apex: has no such option; `module.float()` by hand does nothing at O1.
use tch_amp::{Amp, O1};

fn main() {
    let _ = Amp::<O1>::builder().keep_fp32(["norm"]);
}
