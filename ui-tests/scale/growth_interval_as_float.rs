// torch.amp: nothing looks at `growth_interval=2000.0`; the first `update` is a TypeError.
use tch_amp::Dynamic;

fn main() {
    let _ = Dynamic::new().growth_interval(2000.0);
}
