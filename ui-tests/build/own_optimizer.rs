// Apex: any `torch.optim.Optimizer` passes; whether its arithmetic suits 16 bits shows in training.
use tch_amp::Optimizer;

#[derive(Debug)]
struct SignDescent {
    lr: f64,
}

impl Optimizer for SignDescent {}

fn main() {}
