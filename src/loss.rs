//! Loss ids, checked against `num_losses` at compile time.

use typenum::{B1, Bit, IsLess, Le, UInt, Unsigned};

/// A number of losses: any typenum integer from `U1` up.
#[diagnostic::on_unimplemented(
    message = "`num_losses` must be at least `U1`",
    label = "not a number of losses: write `U1`, `U2`, …",
    note = "these numbers are types of the crate `typenum`: `use typenum::U2;`"
)]
pub trait LossCount: Unsigned + 'static {}

impl<U: Unsigned + 'static, B: Bit + 'static> LossCount for UInt<U, B> {}

/// `I: LossId<N>`: `I` is one of the ids `U0` to `N - 1`.
pub trait LossId<N>: Unsigned + 'static {}

impl<I, N> LossId<N> for I
where
    I: Unsigned + IsLess<N> + 'static,
    N: LossCount,
    Le<I, N>: InRange,
{
}

/// Holds for the answer "yes" to "is this id less than `num_losses`?".
///
/// It is a trait of its own so that the message speaks of the id, not of typenum.
#[diagnostic::on_unimplemented(
    message = "this loss id is out of range: ids run from `U0` to `num_losses - 1`",
    label = "there is no loss with this id: use a smaller one, or raise `num_losses`",
    note = "say how many losses there are with `.num_losses::<U3>()` on the builder (the default is `U1`)"
)]
pub trait InRange {}

impl InRange for B1 {}
