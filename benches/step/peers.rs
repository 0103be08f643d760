//! The same work by libtorch's own operations.

use tch::{Device, Kind, TchError, Tensor};

use crate::{
    Outcome, Shape,
    dispatcher::{call, float, list, none, tensor},
};

/// The loss scale.
pub const SCALE: f64 = 1024.0;

fn filled(shape: Shape, value: f64, kind: Kind) -> Result<Vec<Tensor>, TchError> {
    let options = (kind, shape.device);
    (0..shape.tensors).map(|_| Tensor::f_full([shape.elements], value, options)).collect()
}

/// FP32 parameters with gradients and AdamW's state.
struct AdamW {
    grads: Vec<Tensor>,
    params: Vec<Tensor>,
    exp_avgs: Vec<Tensor>,
    exp_avg_sqs: Vec<Tensor>,
    /// The steps of all parameters, and each one's element of it.
    counts: Tensor,
    steps: Vec<Tensor>,
    found_inf: Tensor,
    inv_scale: Tensor,
}

impl AdamW {
    fn new(shape: Shape, scale: f64) -> Result<Self, TchError> {
        let fp32 = (Kind::Float, shape.device);
        let counts = Tensor::f_zeros([shape.tensors as i64], fp32)?;
        let steps = (0..shape.tensors).map(|n| counts.f_get(n as i64));
        Ok(Self {
            grads: filled(shape, scale, Kind::Float)?,
            params: filled(shape, 1.0, Kind::Float)?,
            exp_avgs: filled(shape, 0.0, Kind::Float)?,
            exp_avg_sqs: filled(shape, 0.0, Kind::Float)?,
            steps: steps.collect::<Result<_, _>>()?,
            counts,
            found_inf: Tensor::f_zeros([1], fp32)?,
            inv_scale: Tensor::f_full([1], 1.0 / scale, fp32)?,
        })
    }

    /// `GradScaler.unscale_` and `AdamW(fused=True).step()`. On a GPU, where that leaves the skip to
    /// the kernel, nothing waits for the check.
    fn step(&mut self) -> Outcome {
        let _ = self.found_inf.f_zero_()?;
        call(
            c"aten::_amp_foreach_non_finite_check_and_unscale_",
            vec![list(&self.grads)?, tensor(&self.found_inf)?, tensor(&self.inv_scale)?],
        )?;
        if self.found_inf.device() == Device::Cpu && self.found_inf.f_double_value(&[0])? > 0.0 {
            return Err("the gradients are not finite".into());
        }
        let _ = self.counts.f_add_scalar_(1.0)?;
        call(
            c"aten::_fused_adamw_",
            vec![
                list(&self.params)?,
                list(&self.grads)?,
                list(&self.exp_avgs)?,
                list(&self.exp_avg_sqs)?,
                list(&[])?,
                list(&self.steps)?,
                float(1e-3),
                float(0.9),
                float(0.999),
                float(0.01),
                float(1e-8),
                none(),
                none(),
                none(),
                none(),
            ],
        )
    }
}

/// What gives 16-bit gradients, FP32 masters and 16-bit weights: copies around the same step.
pub struct Libtorch {
    low_grads: Vec<Tensor>,
    low_weights: Vec<Tensor>,
    adamw: AdamW,
}

impl Libtorch {
    pub fn new(shape: Shape, kind: Kind) -> Outcome<Self> {
        let low_grads = filled(shape, SCALE, kind)?;
        let low_weights = filled(shape, 1.0, kind)?;
        Ok(Self { low_grads, low_weights, adamw: AdamW::new(shape, SCALE)? })
    }

    pub fn step(&mut self) -> Outcome {
        copy(&self.adamw.grads, &self.low_grads)?;
        self.adamw.step()?;
        copy(&self.low_weights, &self.adamw.params)
    }
}

fn copy(to: &[Tensor], from: &[Tensor]) -> Outcome {
    call(c"aten::_foreach_copy_", vec![list(to)?, list(from)?, none()])
}

/// torch.amp keeps FP32 weights, whose gradients are FP32; its casts are part of the forward pass.
pub struct TorchAmp(AdamW);

impl TorchAmp {
    pub fn new(shape: Shape) -> Outcome<Self> {
        // Gradients are unscaled in place: with 1, they stay as they are from step to step.
        Ok(Self(AdamW::new(shape, 1.0)?))
    }

    pub fn step(&mut self) -> Outcome {
        self.0.step()
    }
}

/// Memory that is read, changed and written back in place.
pub struct Ceiling(Tensor);

impl Ceiling {
    /// Bytes moved for each parameter.
    pub const BYTES: f64 = 8.0;

    pub fn new(shape: Shape) -> Outcome<Self> {
        Ok(Self(Tensor::f_ones([shape.parameters() as i64], (Kind::Float, shape.device))?))
    }

    pub fn run(&mut self) -> Outcome {
        let _ = self.0.f_mul_scalar_(1.000_000_1)?;
        Ok(())
    }
}
