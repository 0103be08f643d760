// Apex: `@amp.float_function` looks into lists and tuples; a struct's tensors stay in 16 bits, unseen.
use tch::Tensor;
use tch_amp::autocast::float_function;

struct Moments {
    mean: Tensor,
    variance: Tensor,
}

fn ratio(moments: &Moments) -> Tensor {
    float_function(moments, |moments| &moments.mean / &moments.variance)
}

fn main() {}
