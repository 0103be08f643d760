//! One backward pass that feeds several optimizers.

use std::marker::PhantomData;

use tch::Tensor;
use typenum::{U0, Unsigned};

use super::{IsScaled, Part, ScaledLoss, Step, StepError};
use crate::{
    level::OptLevel,
    loss::{LossCount, LossId},
    optimizer::Optimizer,
    tuples::for_tuples,
};

/// Steps of several optimizers that a backward pass feeds: a tuple, array or `Vec` of
/// `&mut Step`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a step that this loss can feed",
    label = "expected `&mut step`, made by `let mut step = opt.begin()`, of an optimizer from the same `build` as the others"
)]
pub trait JointSteps<'s, L, N> {
    #[doc(hidden)]
    fn parts(self) -> Vec<Part<'s>>;
}

impl<'s, L: OptLevel, O: Optimizer, P: IsScaled, N: LossCount> JointSteps<'s, L, N>
    for &'s mut Step<'_, L, O, P, N>
{
    fn parts(self) -> Vec<Part<'s>> {
        vec![self.session.part()]
    }
}

impl<'s, L, N, T: JointSteps<'s, L, N>> JointSteps<'s, L, N> for Vec<T> {
    fn parts(self) -> Vec<Part<'s>> {
        self.into_iter().flat_map(T::parts).collect()
    }
}

impl<'s, L, N, T: JointSteps<'s, L, N>, const K: usize> JointSteps<'s, L, N> for [T; K] {
    fn parts(self) -> Vec<Part<'s>> {
        self.into_iter().flat_map(T::parts).collect()
    }
}

macro_rules! tuples {
    ($(($($steps:ident $n:tt),+) $count:literal;)*) => { $(
        impl<'s, L, N, $($steps: JointSteps<'s, L, N>),+> JointSteps<'s, L, N> for ($($steps,)+) {
            fn parts(self) -> Vec<Part<'s>> {
                let mut parts = Vec::new();
                $(parts.extend(self.$n.parts());)+
                parts
            }
        }
    )* };
}
for_tuples!(tuples);

/// Joins steps for a backward pass that feeds all their optimizers: Apex's
/// `scale_loss(loss, [opt_a, opt_b])`.
///
/// Each optimizer gets the gradients of its own parameters. If one of them is not finite, all these
/// steps will be skipped; each still ends by its own `unscale` and `step`. Gradients of parameters
/// whose optimizer is not named are dropped.
///
/// ```no_run
/// # use tch::Tensor;
/// # use tch_amp::{AmpOptimizer, O1, StepError, joint, optim::Sgd};
/// # use typenum::{U1, U2};
/// # fn f(opt_a: &mut AmpOptimizer<O1, Sgd, U2>, opt_b: &mut AmpOptimizer<O1, Sgd, U2>,
/// #     loss_a: Tensor, loss_both: Tensor) -> Result<(), StepError> {
/// let (mut step_a, mut step_b) = (opt_a.begin(), opt_b.begin());
/// step_a.backward(&loss_a)?;
/// joint((&mut step_a, &mut step_b)).backward_of::<U1>(&loss_both)?;
/// for outcome in [step_a.unscale()?.step()?, step_b.unscale()?.step()?] {
///     println!("{outcome:?}");
/// }
/// # Ok(()) }
/// ```
pub fn joint<'s, L, N>(steps: impl JointSteps<'s, L, N>) -> Joint<'s, L, N> {
    Joint { parts: steps.parts(), _types: PhantomData }
}

/// Steps joined by [`joint`].
#[must_use = "call `.backward(&loss)` to compute gradients"]
#[derive(Debug)]
pub struct Joint<'s, L, N> {
    parts: Vec<Part<'s>>,
    _types: PhantomData<(L, N)>,
}

impl<L: OptLevel, N: LossCount> Joint<'_, L, N> {
    /// See [`Step::scale_loss`].
    ///
    /// # Errors
    ///
    /// See [`StepError`].
    pub fn scale_loss(&mut self, loss: &Tensor) -> Result<ScaledLoss<'_>, StepError> {
        self.scaled::<U0>(loss)
    }

    /// See [`Step::scale_loss_of`].
    ///
    /// # Errors
    ///
    /// See [`StepError`].
    pub fn scale_loss_of<I: LossId<N>>(
        &mut self,
        loss: &Tensor,
    ) -> Result<ScaledLoss<'_>, StepError> {
        self.scaled::<I>(loss)
    }

    /// See [`Step::backward`].
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The steps can go on; nothing was added.
    ///
    /// # Syncs
    ///
    /// Once, to see whether the gradients of all optimizers are finite.
    pub fn backward(&mut self, loss: &Tensor) -> Result<(), StepError> {
        self.scale_loss(loss)?.backward()
    }

    /// See [`Step::backward_of`].
    ///
    /// # Errors
    ///
    /// See [`StepError`]. The steps can go on; nothing was added.
    ///
    /// # Syncs
    ///
    /// Once, to see whether the gradients of all optimizers are finite.
    pub fn backward_of<I: LossId<N>>(&mut self, loss: &Tensor) -> Result<(), StepError> {
        self.scale_loss_of::<I>(loss)?.backward()
    }

    fn scaled<I: Unsigned>(&mut self, loss: &Tensor) -> Result<ScaledLoss<'_>, StepError> {
        let parts = self.parts.iter_mut().map(Part::reborrow).collect();
        ScaledLoss::new(parts, I::USIZE, loss)
    }
}
