//! `tch::nn::Optimizer`, driven over FP32 masters.

use tch::{Kind, TchError, Tensor, nn::Optimizer};

use super::{
    AmpOptimizer, Param, Selection,
    engine::{Engine, SettingError, ensure_not_negative},
};
use crate::{
    builder::{BuildError, Listed},
    level::OptLevel,
    libtorch,
    loss::LossCount,
    multi_tensor::{self, Noise, Tables},
};

impl<L: OptLevel, N: LossCount> AmpOptimizer<L, Optimizer, N> {
    /// Sets the weight decay of all groups.
    ///
    /// # Errors
    ///
    /// When it is negative, NaN or infinite.
    pub fn set_weight_decay(&mut self, weight_decay: f64) -> Result<(), SettingError> {
        ensure_not_negative(self.optimizer.name(), "weight_decay", weight_decay)?;
        self.optimizer.set_weight_decay(weight_decay);
        Ok(())
    }

    /// Sets the weight decay of one group, as numbered by `tch`'s `Path::set_group`.
    ///
    /// # Errors
    ///
    /// When it is negative, NaN or infinite, or no variable is in the group.
    pub fn set_weight_decay_group(
        &mut self,
        group: usize,
        weight_decay: f64,
    ) -> Result<(), SettingError> {
        self.core.check_group(group)?;
        ensure_not_negative(self.optimizer.name(), "weight_decay", weight_decay)?;
        self.optimizer.set_weight_decay_group(group, weight_decay);
        Ok(())
    }

    /// Sets the momentum of all groups; for Adam and AdamW that is the first beta.
    ///
    /// `tch` has no such setter for one group that works with all its optimizers.
    ///
    /// # Errors
    ///
    /// When it is negative, NaN or infinite.
    pub fn set_momentum(&mut self, momentum: f64) -> Result<(), SettingError> {
        ensure_not_negative(self.optimizer.name(), "momentum", momentum)?;
        self.optimizer.set_momentum(momentum);
        Ok(())
    }
}

impl Engine for Optimizer {
    fn name(&self) -> &'static str {
        "tch::nn::Optimizer"
    }

    /// A `tch::nn::Optimizer` does not tell which variables it holds, but its `zero_grad` shows it:
    /// those of one VarStore.
    fn select(&mut self, _: Selection, models: &[Listed]) -> Result<Selection, BuildError> {
        let trainable: Vec<_> = models
            .iter()
            .flat_map(|listed| listed.variables.iter().map(|v| (listed.model.place().index, v)))
            .filter(|(_, variable)| variable.trainable())
            .collect();
        for (_, variable) in &trainable {
            let probe = variable.tensor.f_detach()?;
            libtorch::set_grad(&variable.tensor, Some(&probe))?;
        }
        self.zero_grad();
        let mut held = Vec::new();
        let mut missed = None;
        for (model, variable) in trainable {
            match libtorch::take_grad(&variable.tensor) {
                Some(_) => missed = missed.or_else(|| Some(variable.name.clone())),
                None => held.push(model),
            }
        }
        match missed {
            Some(name) if held.is_empty() => Err(BuildError::OptimizerOfOtherModel { name }),
            _ => Ok(Selection::Models(held)),
        }
    }

    /// Its settings cannot be read.
    fn check(&self, _: &[Param]) -> Result<(), SettingError> {
        Ok(())
    }

    /// For the time of the step, each 16-bit weight's memory is its master's, so that the optimizer
    /// sees FP32 weights, FP32 gradients and the same variables as ever. Where there is no master,
    /// an FP32 copy stands in: libtorch's Adam makes NaN of 16-bit weights, whose type has no 1e-8.
    fn apply(
        &mut self,
        params: &mut [Param],
        grads: &[Option<Tensor>],
        factor: f32,
        noise: Option<Noise>,
        _: &Tables,
    ) -> Result<(), TchError> {
        let mut swapped = Swapped(Vec::new());
        for (param, grad) in params.iter_mut().zip(grads) {
            let Some(grad) = grad else { continue };
            let grad = multi_tensor::scale(grad, factor)?;
            if param.weight().kind() != Kind::Float {
                let full = param.full().f_detach()?.f_to_kind(Kind::Float)?;
                let noise = noise.map(|noise| noise.of(param.name()));
                swapped.swap(param.weight(), &full, noise)?;
            }
            libtorch::set_grad(param.weight(), Some(&grad))?;
        }
        self.step();
        drop(swapped);
        for param in params {
            libtorch::set_grad(param.weight(), None)?;
        }
        Ok(())
    }

    fn set_lr(&mut self, group: Option<usize>, lr: f64) {
        match group {
            Some(group) => self.set_lr_group(group, lr),
            None => Optimizer::set_lr(self, lr),
        }
    }

    fn state_bytes(&self) -> usize {
        0
    }
}

/// Weights whose memory is FP32 for now; gives them their 16-bit memory back when dropped, also on a
/// panic of the optimizer, and writes the new values into it.
struct Swapped(Vec<Swap>);

struct Swap {
    weight: Tensor,
    own: Tensor,
    noise: Option<Noise>,
}

impl Swapped {
    fn swap(
        &mut self,
        weight: &Tensor,
        full: &Tensor,
        noise: Option<Noise>,
    ) -> Result<(), TchError> {
        let own = weight.f_detach()?;
        let mut weight = weight.shallow_clone();
        weight.f_set_data(full)?;
        self.0.push(Swap { weight, own, noise });
        Ok(())
    }
}

impl Drop for Swapped {
    fn drop(&mut self) {
        let _no_grad = tch::no_grad_guard();
        for Swap { weight, own, noise } in &mut self.0 {
            let copied = multi_tensor::write(weight, own, *noise);
            drop(libtorch::take_grad(weight));
            if let Err(error) = copied.and_then(|()| weight.f_set_data(own)) {
                tracing::error!(target: "tch_amp", "a weight could not be written back: {error}");
            }
        }
    }
}
