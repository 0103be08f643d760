//! Prints where the driver is: `TCH_AMP_CUDA_DRIVER=$(cargo run -q -p tch-amp-emulator) cargo test`.

fn main() {
    println!("{}", tch_amp_emulator::DRIVER);
}
