//! What `build` takes as optimizers.

use super::BuildError;
use crate::{
    level::OptLevel,
    loss::LossCount,
    optimizer::{AmpOptimizer, Core, Engine, Optimizer},
    tuples::for_tuples,
};

/// What [`build`](super::AmpBuilder::build) takes as optimizers: one of [`optim`](crate::optim) or
/// a `tch::nn::Optimizer`, or a tuple, array or `Vec` of them.
///
/// An optimizer of `optim` with `only([paths])` trains the variables under these paths. Otherwise
/// one optimizer trains all models, and where there are as many as models, each trains the model at
/// its own position; an inner tuple of models counts as one. A `tch::nn::Optimizer` trains the
/// VarStore that it was built on.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer that `build` takes",
    label = "expected one of `tch_amp::optim`, or a `tch::nn::Optimizer` built on the model's VarStore",
    note = "several optimizers go into a tuple, an array or a `Vec`"
)]
pub trait Optimizers {
    /// What `build` returns: an [`AmpOptimizer`] for each, in the same arrangement.
    type Built<L: OptLevel, N: LossCount>;

    /// How many there are.
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Wraps the optimizers, with cores that have no parameters yet.
    #[doc(hidden)]
    fn wrap<L: OptLevel, N: LossCount>(self, cores: &Cores<'_>) -> Self::Built<L, N>;

    /// Visits each in turn.
    #[doc(hidden)]
    fn each<L: OptLevel, N: LossCount>(
        built: &mut Self::Built<L, N>,
        visit: &mut Visit<'_>,
    ) -> Result<(), BuildError>;
}

/// Makes cores without parameters.
pub(super) type Cores<'c> = dyn Fn() -> Core + 'c;

/// What is to be done with each optimizer.
pub(super) type Visit<'v> = dyn FnMut(&mut dyn Engine, &mut Core) -> Result<(), BuildError> + 'v;

#[diagnostic::do_not_recommend]
impl<O: Optimizer> Optimizers for O {
    type Built<L: OptLevel, N: LossCount> = AmpOptimizer<L, O, N>;

    fn count(&self) -> usize {
        1
    }

    fn wrap<L: OptLevel, N: LossCount>(self, cores: &Cores<'_>) -> Self::Built<L, N> {
        AmpOptimizer::new(self, cores())
    }

    fn each<L: OptLevel, N: LossCount>(
        built: &mut Self::Built<L, N>,
        visit: &mut Visit<'_>,
    ) -> Result<(), BuildError> {
        visit(&mut built.optimizer, &mut built.core)
    }
}

impl<O: Optimizer> Optimizers for Vec<O> {
    type Built<L: OptLevel, N: LossCount> = Vec<AmpOptimizer<L, O, N>>;

    fn count(&self) -> usize {
        self.len()
    }

    fn wrap<L: OptLevel, N: LossCount>(self, cores: &Cores<'_>) -> Self::Built<L, N> {
        self.into_iter().map(|optimizer| optimizer.wrap(cores)).collect()
    }

    fn each<L: OptLevel, N: LossCount>(
        built: &mut Self::Built<L, N>,
        visit: &mut Visit<'_>,
    ) -> Result<(), BuildError> {
        built.iter_mut().try_for_each(|optimizer| O::each(optimizer, visit))
    }
}

impl<O: Optimizer, const K: usize> Optimizers for [O; K] {
    type Built<L: OptLevel, N: LossCount> = [AmpOptimizer<L, O, N>; K];

    fn count(&self) -> usize {
        K
    }

    fn wrap<L: OptLevel, N: LossCount>(self, cores: &Cores<'_>) -> Self::Built<L, N> {
        self.map(|optimizer| optimizer.wrap(cores))
    }

    fn each<L: OptLevel, N: LossCount>(
        built: &mut Self::Built<L, N>,
        visit: &mut Visit<'_>,
    ) -> Result<(), BuildError> {
        built.iter_mut().try_for_each(|optimizer| O::each(optimizer, visit))
    }
}

macro_rules! tuples {
    ($(($($optimizer:ident $n:tt),+) $count:literal;)*) => { $(
        #[diagnostic::do_not_recommend]
        impl<$($optimizer: Optimizer),+> Optimizers for ($($optimizer,)+) {
            type Built<L: OptLevel, N: LossCount> = ($(AmpOptimizer<L, $optimizer, N>,)+);

            fn count(&self) -> usize {
                $count
            }

            fn wrap<L: OptLevel, N: LossCount>(self, cores: &Cores<'_>) -> Self::Built<L, N> {
                ($(self.$n.wrap(cores),)+)
            }

            fn each<L: OptLevel, N: LossCount>(
                built: &mut Self::Built<L, N>,
                visit: &mut Visit<'_>,
            ) -> Result<(), BuildError> {
                $($optimizer::each(&mut built.$n, visit)?;)+
                Ok(())
            }
        }
    )* };
}
for_tuples!(tuples);
