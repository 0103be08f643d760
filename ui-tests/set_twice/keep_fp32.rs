// Apex: has no such option; by hand, `module.float()` after `initialize` goes unseen.
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().keep_fp32(["norm"]).keep_fp32(["head"]);
}
