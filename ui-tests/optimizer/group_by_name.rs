// Apex: `add_param_group` with anything but a dict is an AssertionError, with a set a TypeError.
use tch_amp::optim::AdamW;

fn main() {
    let _ = AdamW::new(1e-3).group("bias", |group| group.weight_decay(0.0));
}
