//! The forward pass: casts at the model's edges, and the level's region around it.

use tch::{
    Kind, Tensor,
    nn::{Module, ModuleT},
};

use super::AmpModel;
use crate::{
    autocast::{AutocastRegion, RegionKind},
    castable::{self, Castable},
    level::OptLevel,
};

impl<L: OptLevel, M> AmpModel<L, M> {
    /// Calls any method of the wrapped module as a training step would: inside the level's
    /// autocast region, with batch-norm statistics protected.
    ///
    /// Inputs and outputs are not cast; [`forward_with`](Self::forward_with) does that.
    pub fn run<R>(&self, call: impl FnOnce(&M) -> R) -> R {
        self.shared.before_forward();
        let _region = self.autocast();
        call(&self.module)
    }

    /// The forward pass of a model that takes more than one tensor, or returns more than one.
    ///
    /// Floating-point tensors in `inputs` are cast as [`cast_input`](Self::cast_input) does, those
    /// marked [`KeepFp32`](castable::KeepFp32) excepted. `forward` gets the module and the cast
    /// inputs, and is called as [`run`](Self::run) calls it. The tensors that it returns are cast as
    /// [`cast_output`](Self::cast_output) does. This is what Apex's patched `forward` does.
    ///
    /// Recurrent states go through it in both directions: FP32 outside, the level's type inside.
    ///
    /// ```
    /// use half::bf16;
    /// use tch::{Device, Kind, Tensor, nn::{self, RNN}};
    /// use tch_amp::{Amp, O2};
    ///
    /// let store = nn::VarStore::new(Device::Cpu);
    /// let lstm = nn::lstm(store.root(), 8, 16, Default::default());
    /// let model = Amp::<O2<bf16>>::builder().build_model((store, lstm))?;
    ///
    /// let chunk = Tensor::ones([4, 10, 8], (Kind::Float, Device::Cpu)); // batch, time, features
    /// let (ys, state) = model.forward_with(&chunk, |lstm, xs| lstm.seq(&xs));
    /// let (_, state) = model.forward_with((&chunk, &state), |lstm, (xs, state)| {
    ///     assert_eq!(state.h().kind(), Kind::BFloat16);
    ///     lstm.seq_init(&xs, &state)
    /// });
    /// assert_eq!((ys.kind(), state.h().kind()), (Kind::Float, Kind::Float));
    /// # Ok::<(), tch_amp::BuildError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// When libtorch cannot allocate memory, as `Tensor::to_kind` does.
    pub fn forward_with<I: Castable, R: Castable>(
        &self,
        inputs: I,
        forward: impl FnOnce(&M, I::Cast) -> R,
    ) -> R::Cast {
        let inputs = self.cast_input(inputs);
        self.cast_output(self.run(|module| forward(module, inputs)))
    }

    /// The forward pass of a module that does not tell training from evaluation.
    pub fn forward(&self, xs: &Tensor) -> Tensor
    where
        M: Module,
    {
        self.forward_t(xs, true)
    }

    /// Enters the autocast region of level `O1`, for the time the guard lives. At other levels,
    /// nothing happens.
    pub fn autocast(&self) -> Option<AutocastRegion> {
        self.region.map(RegionKind::enter)
    }

    /// Casts the floating-point tensors of a value to the type that the level wants for inputs,
    /// doubles included. `O1` casts around operations instead.
    ///
    /// # Panics
    ///
    /// When libtorch cannot allocate memory, as `Tensor::to_kind` does.
    pub fn cast_input<T: Castable>(&self, input: T) -> T::Cast {
        let kind = self.properties.cast_model_type.filter(|_| self.properties.enabled);
        castable::cast(&input, kind)
    }

    /// Casts the floating-point tensors of a value to the type of the model's outputs.
    ///
    /// # Panics
    ///
    /// When libtorch cannot allocate memory, as `Tensor::to_kind` does.
    pub fn cast_output<T: Castable>(&self, output: T) -> T::Cast {
        let kind = self.properties.cast_model_outputs.unwrap_or(Kind::Float);
        castable::cast(&output, Some(kind).filter(|_| self.properties.enabled))
    }
}

impl<L: OptLevel, M: ModuleT> ModuleT for AmpModel<L, M> {
    /// Casts the input, runs the module, casts the output.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        let xs = self.cast_input(xs);
        if train {
            self.shared.before_forward();
        }
        let ys = {
            let _region = self.autocast();
            self.module.forward_t(&xs, train)
        };
        self.cast_output(ys)
    }
}
