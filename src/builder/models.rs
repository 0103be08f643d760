//! What `build` takes as models.

use std::sync::Arc;

use tch::nn::VarStore;

use super::listing::Listing;
use crate::{
    level::OptLevel,
    model::{AmpModel, Place, Shared, region, scripted},
    tuples::for_tuples,
};

/// What [`build`](super::AmpBuilder::build) takes as models: an FP32 module with the VarStore that
/// holds its variables, or a tuple, array or `Vec` of models, nested as you like.
///
/// Where there are several, a variable's name begins with its model's position, as in torch's
/// `ModuleList`: `"1.fc.weight"`, or `"0.1.fc.weight"` in a nested tuple.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a model that `build` takes",
    label = "expected `(var_store, module)`: the module with the VarStore that holds its variables",
    note = "several models go into a tuple, an array or a `Vec`: `((store_a, a), (store_b, b))`"
)]
pub trait Models {
    /// What `build` returns at level `L`: an [`AmpModel`] for each model, in the same arrangement.
    type Built<L: OptLevel>;

    /// How many there are, those in an inner tuple counting as one.
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Wraps the models and lists them. Changes no variable.
    #[doc(hidden)]
    fn wrap<L: OptLevel>(self, place: Place, list: &mut Listing) -> Self::Built<L>;
}

impl<M> Models for (VarStore, M) {
    type Built<L: OptLevel> = AmpModel<L, M>;

    fn count(&self) -> usize {
        1
    }

    fn wrap<L: OptLevel>(self, place: Place, list: &mut Listing) -> AmpModel<L, M> {
        let (store, module) = self;
        let properties = list.properties;
        let region = list.note(region(store.device(), &properties)).flatten();
        list.note(scripted::check::<M>(&properties));
        let place = Place { index: list.models.len(), ..place };
        let variables = Arc::clone(&store.variables_);
        let shared = Shared::new(variables, place, properties, list.keep_fp32.clone());
        let shared = Arc::new(shared);
        list.models.push(Arc::clone(&shared));
        AmpModel::new(store, module, shared, properties, region)
    }
}

impl<T: Models> Models for Vec<T> {
    type Built<L: OptLevel> = Vec<T::Built<L>>;

    fn count(&self) -> usize {
        self.len()
    }

    fn wrap<L: OptLevel>(self, place: Place, list: &mut Listing) -> Self::Built<L> {
        let models = self.into_iter().enumerate();
        models.map(|(n, model)| model.wrap(place.inner(n), list)).collect()
    }
}

impl<T: Models, const K: usize> Models for [T; K] {
    type Built<L: OptLevel> = [T::Built<L>; K];

    fn count(&self) -> usize {
        K
    }

    fn wrap<L: OptLevel>(self, place: Place, list: &mut Listing) -> Self::Built<L> {
        let mut positions = 0..;
        self.map(|model| model.wrap(place.inner(positions.next().unwrap_or_default()), list))
    }
}

macro_rules! tuples {
    ($(($($model:ident $n:tt),+) $count:literal;)*) => { $(
        #[diagnostic::do_not_recommend]
        impl<$($model: Models),+> Models for ($($model,)+) {
            type Built<L: OptLevel> = ($($model::Built<L>,)+);

            fn count(&self) -> usize {
                $count
            }

            fn wrap<L: OptLevel>(self, place: Place, list: &mut Listing) -> Self::Built<L> {
                ($(self.$n.wrap(place.inner($n), list),)+)
            }
        }
    )* };
}
for_tuples!(tuples);
