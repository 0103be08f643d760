//! One training step as a typestate: scaled gradients, unscaled gradients, outcome.

mod clip;
mod error;
mod events;
mod gradients;
mod inspect;
mod joint;
mod outcome;
mod scaled_loss;
mod session;

use std::marker::PhantomData;

use tch::Tensor;
use typenum::{U0, U1, Unsigned};

pub use clip::GradNorm;
pub use error::StepError;
pub use inspect::NonFiniteGrad;
pub use joint::{Joint, JointSteps, joint};
pub use outcome::{NonFinite, Overflow, PendingOutcome, StepOutcome};
pub(crate) use scaled_loss::Part;
pub use scaled_loss::ScaledLoss;

use crate::{
    level::OptLevel,
    loss::{LossCount, LossId},
    optimizer::{AmpOptimizer, Optimizer},
};
use session::Session;

/// The phase of a [`Step`] whose gradients still carry the loss scale.
#[derive(Debug)]
pub enum Scaled {}

/// The phase of a [`Step`] whose gradients are true gradients.
#[derive(Debug)]
pub enum Unscaled {}

/// Gradients that may be read, clipped and applied.
#[diagnostic::on_unimplemented(
    message = "these gradients are still multiplied by the loss scale",
    label = "call `.unscale()?` first",
    note = "clipping or stepping with scaled gradients would use values that are off by the loss scale"
)]
pub trait IsUnscaled {}
impl IsUnscaled for Unscaled {}

/// Gradients that can still be added to.
#[diagnostic::on_unimplemented(
    message = "these gradients are already unscaled",
    label = "this belongs before `.unscale()`: remove this call, or move it up",
    note = "unscaling twice would divide by the loss scale twice; adding a backward pass would mix scaled and unscaled gradients"
)]
pub trait IsScaled {}
impl IsScaled for Scaled {}

/// One training step, begun by [`AmpOptimizer::begin`].
///
/// In the first phase, [`backward`](Self::backward) collects gradients, as often as there are
/// micro-batches and losses. [`unscale`](Self::unscale) leads to the second, in which gradients
/// can be read and clipped, and [`step`](Self::step) ends it.
///
/// ```no_run
/// # use tch::{Tensor, nn::ModuleT};
/// # use tch_amp::{AmpModel, AmpOptimizer, O2, StepError, StepOutcome, optim::AdamW};
/// # fn f<M: ModuleT>(model: AmpModel<O2, M>, opt: &mut AmpOptimizer<O2, AdamW>,
/// #     micro_batches: Vec<(Tensor, Tensor)>) -> Result<(), StepError> {
/// let mut step = opt.begin();
/// for (xs, ys) in micro_batches {
///     let loss = model.forward_t(&xs, true).cross_entropy_for_logits(&ys) / 4.0;
///     step.backward(&loss)?;
/// }
/// let mut grads = step.unscale()?;
/// grads.clip_grad_norm(1.0)?;
/// match grads.step()? {
///     StepOutcome::Applied => { /* advance the learning-rate schedule */ }
///     StepOutcome::Skipped { overflows } => println!("skipped: {}", overflows[0]),
///     StepOutcome::NoGradients => {}
/// }
/// # Ok(()) }
/// ```
#[must_use = "gradients are dropped unless `.step()` is called"]
#[derive(Debug)]
pub struct Step<'o, L: OptLevel, O: Optimizer, P = Scaled, N: LossCount = U1> {
    session: Session<'o, L, O, N>,
    _phase: PhantomData<P>,
}

impl<'o, L: OptLevel, O: Optimizer, N: LossCount> Step<'o, L, O, Scaled, N> {
    pub(crate) fn new(opt: &'o mut AmpOptimizer<L, O, N>) -> Self {
        Self { session: Session::new(opt), _phase: PhantomData }
    }
}

impl<'o, L: OptLevel, O: Optimizer, P, N: LossCount> Step<'o, L, O, P, N> {
    /// Multiplies loss 0 by its scale. [`backward`](Self::backward) does this and the backward
    /// pass.
    ///
    /// # Errors
    ///
    /// When the loss is not a scalar that depends on trainable variables.
    pub fn scale_loss(&mut self, loss: &Tensor) -> Result<ScaledLoss<'_>, StepError>
    where
        P: IsScaled,
    {
        self.scaled::<U0>(loss)
    }

    /// Multiplies the loss with id `I` by its scale.
    ///
    /// # Errors
    ///
    /// When the loss is not a scalar that depends on trainable variables.
    pub fn scale_loss_of<I: LossId<N>>(
        &mut self,
        loss: &Tensor,
    ) -> Result<ScaledLoss<'_>, StepError>
    where
        P: IsScaled,
    {
        self.scaled::<I>(loss)
    }

    fn scaled<I: Unsigned>(&mut self, loss: &Tensor) -> Result<ScaledLoss<'_>, StepError> {
        ScaledLoss::new(vec![self.session.part()], I::USIZE, loss)
    }

    /// Runs the backward pass of loss 0, scaled, and adds its gradients to the step's, in FP32.
    ///
    /// The loss is not divided by the number of micro-batches: gradients add up, as in `torch`.
    /// Gradients are moved out of the parameters' `.grad`.
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The step can go on; nothing was added.
    pub fn backward(&mut self, loss: &Tensor) -> Result<(), StepError>
    where
        P: IsScaled,
    {
        self.scale_loss(loss)?.backward()
    }

    /// Runs the backward pass of the loss with id `I`, with its own scale.
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The step can go on; nothing was added.
    pub fn backward_of<I: LossId<N>>(&mut self, loss: &Tensor) -> Result<(), StepError>
    where
        P: IsScaled,
    {
        self.scale_loss_of::<I>(loss)?.backward()
    }

    /// Divides the gradients by the loss scale and looks for infinities and NaN.
    ///
    /// Non-finite gradients are no error here: [`step`](Self::step) skips then, and clipping does
    /// nothing.
    ///
    /// # Errors
    ///
    /// When libtorch refuses an operation.
    ///
    /// # Syncs
    ///
    /// Once, to see whether the gradients are finite.
    pub fn unscale(mut self) -> Result<Step<'o, L, O, Unscaled, N>, StepError>
    where
        P: IsScaled,
    {
        self.session.unscale()?;
        Ok(Step { session: self.session, _phase: PhantomData })
    }

    /// Scales the gradients so that their global L2 norm is at most `max_norm`, and returns the
    /// norm before that.
    ///
    /// The coefficient is `min(1, max_norm / (norm + 1e-6))`, as in `torch` and Apex. The norm is
    /// summed in FP64, so that no square overflows. Without gradients it is 0.
    ///
    /// # Errors
    ///
    /// When `max_norm` is negative or NaN, or libtorch refuses an operation.
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<GradNorm, StepError>
    where
        P: IsUnscaled,
    {
        self.session.grads.clip_norm(max_norm)
    }

    /// Clamps each element of the gradients into [-`max`, `max`].
    ///
    /// # Errors
    ///
    /// When `max` is negative or NaN, or libtorch refuses an operation.
    pub fn clip_grad_value(&mut self, max: f64) -> Result<(), StepError>
    where
        P: IsUnscaled,
    {
        self.session.grads.clip_value(max)
    }

    /// The global L2 norm of the gradients as they are now; 0 without gradients.
    ///
    /// # Errors
    ///
    /// When libtorch refuses an operation.
    pub fn grad_norm(&mut self) -> Result<GradNorm, StepError>
    where
        P: IsUnscaled,
    {
        self.session.grads.norm()
    }

    /// The gradients by the parameter's name, in FP32. Parameters without a gradient are left out.
    ///
    /// What is written to them is applied, unless it is not finite: [`step`](Self::step) looks at
    /// them again.
    ///
    /// # Errors
    ///
    /// When libtorch refuses an operation.
    pub fn grads(&mut self) -> Result<Vec<(&str, &Tensor)>, StepError>
    where
        P: IsUnscaled,
    {
        let Session { opt, grads, .. } = &mut self.session;
        let names = opt.core.params.iter().map(|param| param.name());
        let named =
            names.zip(grads.lend()?).filter_map(|(name, grad)| Some((name, grad.as_ref()?)));
        Ok(named.collect())
    }

    /// Applies the gradients, or skips: see [`StepOutcome`].
    ///
    /// A skipped step changes no weight, no master, no optimizer state and no batch-norm
    /// statistics. The scales of the losses that took part are updated, once each.
    ///
    /// # Errors
    ///
    /// [`StepError::SkipLimit`] when a limit of skipped steps in a row is set and reached;
    /// otherwise when libtorch refuses an operation.
    pub fn step(mut self) -> Result<StepOutcome, StepError>
    where
        P: IsUnscaled,
    {
        self.session.end()
    }
}
