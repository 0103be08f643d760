// Apex: `amp.register_half_function(torch, "fused_gelu")` of a name that does not exist is a ValueError.
use tch::Tensor;
use tch_amp::autocast::half_function;

fn activate(xs: &Tensor) -> Tensor {
    half_function(xs, fused_gelu)
}

fn main() {}
