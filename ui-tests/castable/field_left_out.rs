// Apex: `to` written by hand may forget a tensor; the model then meets two types, at run time.
use tch::Tensor;
use tch_amp::castable;

struct Batch {
    images: Tensor,
    mask: Tensor,
}

castable!(Batch { images });

fn main() {}
