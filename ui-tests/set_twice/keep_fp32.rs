// Apex: has no such option; by hand, a second `module.float()` adds to the first.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().keep_fp32(["norm"]).keep_fp32(["head"]);
}
