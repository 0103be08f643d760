//! Non-finite gradients, counted by parameter.

use tch::Kind;

use super::{IsUnscaled, Step, StepError, session::Session};
use crate::{level::OptLevel, loss::LossCount, optimizer::Optimizer};

/// How many elements of a parameter's gradient are not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NonFiniteGrad {
    /// The parameter.
    pub parameter: String,
    /// Elements that are infinite.
    pub inf: usize,
    /// Elements that are NaN.
    pub nan: usize,
    /// All elements.
    pub elements: usize,
}

impl<L: OptLevel, O: Optimizer, P: IsUnscaled, N: LossCount> Step<'_, L, O, P, N> {
    /// The parameters whose gradients are not finite, with the number of elements, in the order of
    /// creation: where to look when steps are skipped.
    ///
    /// # Errors
    ///
    /// When libtorch refuses an operation.
    ///
    /// # Syncs
    ///
    /// Twice for each parameter with a gradient.
    pub fn non_finite(&self) -> Result<Vec<NonFiniteGrad>, StepError> {
        let _no_grad = tch::no_grad_guard();
        let Session { opt, grads, .. } = &self.session;
        let (grads, factor) = grads.to_apply();
        let mut found = Vec::new();
        for (param, grad) in opt.core.params.iter().zip(grads) {
            let Some(grad) = grad else { continue };
            let grad = grad.f_to_kind(Kind::Float)?.f_mul_scalar(f64::from(factor))?;
            let count = |flags: tch::Tensor| -> Result<usize, tch::TchError> {
                Ok(flags.f_sum(Kind::Int64)?.f_int64_value(&[])? as usize)
            };
            let (inf, nan) = (count(grad.f_isinf()?)?, count(grad.f_isnan()?)?);
            if inf + nan > 0 {
                let parameter = param.name().to_owned();
                found.push(NonFiniteGrad { parameter, inf, nan, elements: grad.numel() });
            }
        }
        Ok(found)
    }
}
