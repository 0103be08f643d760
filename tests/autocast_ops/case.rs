//! What a test case is made of.

use std::cell::Cell;

use tch::{Device, Kind, Tensor};

/// The type in which an operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The region's 16-bit type.
    Lower,
    /// FP32.
    Fp32,
    /// The widest type among the arguments.
    Promote,
}

/// One operation of the lists.
pub struct Case {
    /// Its name in libtorch, with the overload behind a dot.
    pub name: &'static str,
    pub policy: Policy,
    inputs: fn() -> Vec<Tensor>,
    /// Calls the operation, and nothing else that autocast might cast.
    pub call: fn(&[Tensor]) -> Vec<Tensor>,
}

impl Case {
    pub const fn new(
        name: &'static str,
        policy: Policy,
        inputs: fn() -> Vec<Tensor>,
        call: fn(&[Tensor]) -> Vec<Tensor>,
    ) -> Self {
        Self { name, policy, inputs, call }
    }

    /// FP32 arguments, the same ones each time.
    pub fn inputs(&self) -> Vec<Tensor> {
        DRAWN.set(0);
        (self.inputs)()
    }
}

/// `[Policy; "name", [argument, …], |t| result; …]`
macro_rules! cases {
    ($policy:ident; $($name:literal, [$($input:expr),*], |$t:ident| $call:expr;)*) => {
        &[$($crate::case::Case::new(
            $name,
            $crate::case::Policy::$policy,
            || vec![$($input),*],
            |$t| $crate::case::Results::list($call),
        )),*]
    };
}
pub(crate) use cases;

/// What operations return.
pub trait Results {
    fn list(self) -> Vec<Tensor>;
}

impl Results for Tensor {
    fn list(self) -> Vec<Tensor> {
        vec![self]
    }
}
impl Results for (Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}
impl Results for (Tensor, Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
    }
}
impl Results for (Tensor, Tensor, Tensor, Tensor) {
    fn list(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2, self.3]
    }
}

/// No optional tensor.
pub const NONE: Option<&Tensor> = None;

thread_local! {
    /// How many values this thread has drawn.
    static DRAWN: Cell<u32> = const { Cell::new(0) };
}

/// FP32 values in [0.1, 0.9), which is in the domain of every function here: all different, and
/// evenly spread.
pub fn u<const N: usize>(shape: [i64; N]) -> Tensor {
    let draw = |_| {
        let index = DRAWN.replace(DRAWN.get() + 1);
        0.1 + 0.8 * (index as f32 * 0.618_034).fract()
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(draw).collect();
    Tensor::from_slice(&values).view(&shape[..])
}

/// A symmetric, positive definite matrix, also after rounding.
pub fn spd(n: i64) -> Tensor {
    let half = u([n, n]);
    half.mm(&half.tr()) + Tensor::eye(n, (Kind::Float, Device::Cpu))
}

/// Indices.
pub fn ids(values: &[i64]) -> Tensor {
    Tensor::from_slice(values)
}
