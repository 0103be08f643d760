// torch.amp: `update(new_scale=tensor)` asserts its device, its size and that it has no gradient.
use tch::Tensor;
use tch_amp::{Amp, O2};

fn main() {
    let _ = Amp::<O2>::builder().loss_scale(Tensor::from(128.0));
}
