//! What is saved and loaded: linear layers, in a VarStore and in models of this crate.

use tch::{
    Device, Kind, Tensor,
    nn::{self, ModuleT, Sequential, VarStore},
};
use tch_amp::{Amp, AmpModel, AmpOptimizer, BuildError, O0, O3, bf16, optim::AdamW};

use crate::Outcome;

const WIDTH: i64 = 2048;

pub type Trained = (AmpModel<O0, Sequential>, AmpOptimizer<O0, AdamW>);

pub fn bytes(layers: u32) -> u64 {
    u64::from(layers) * 4 * (WIDTH * WIDTH + WIDTH) as u64
}

pub fn largest_tensor() -> u64 {
    4 * (WIDTH * WIDTH) as u64
}

pub fn store(layers: u32) -> (VarStore, Sequential) {
    let store = VarStore::new(Device::Cpu);
    let root = store.root();
    let layer = |n| nn::linear(&root / n, WIDTH, WIDTH, nn::LinearConfig::default());
    let net = (0..layers).fold(nn::seq(), |net, n| net.add(layer(n)));
    (store, net)
}

pub fn model(layers: u32) -> Result<AmpModel<O0, Sequential>, BuildError> {
    Amp::<O0>::builder().build_model(store(layers))
}

/// Weights in 16 bits, without masters.
pub fn model_in_16_bits(layers: u32) -> Result<AmpModel<O3<bf16>, Sequential>, BuildError> {
    Amp::<O3<bf16>>::builder().build_model(store(layers))
}

/// After one step, so that the optimizer has its moments: three numbers for each parameter.
pub fn trained(layers: u32) -> Outcome<Trained> {
    let (model, mut opt) = Amp::<O0>::builder().build(store(layers), AdamW::new(1e-3))?;
    let input = Tensor::f_ones([1, WIDTH], (Kind::Float, Device::Cpu))?;
    let loss = model.forward_t(&input, true).f_square()?.f_mean(Kind::Float)?;
    opt.backward_step(&loss)?;
    Ok((model, opt))
}
