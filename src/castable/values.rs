//! The values that can be cast without a word from their user.

use std::{
    array,
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash},
};

use half::{bf16, f16};
use tch::{
    Device, Kind, Tensor,
    nn::{GRUState, LSTMState},
};

use super::{Castable, TensorMap};

impl Castable for Tensor {
    type Cast = Tensor;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Tensor {
        map(self)
    }
}

impl<T: Castable + ?Sized> Castable for &T {
    type Cast = T::Cast;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> T::Cast {
        (**self).map_tensors(map)
    }
}

impl<T: Castable> Castable for Option<T> {
    type Cast = Option<T::Cast>;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        self.as_ref().map(|value| value.map_tensors(map))
    }
}

impl<T: Castable> Castable for [T] {
    type Cast = Vec<T::Cast>;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        self.iter().map(|value| value.map_tensors(map)).collect()
    }
}

impl<T: Castable> Castable for Vec<T> {
    type Cast = Vec<T::Cast>;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        self.as_slice().map_tensors(map)
    }
}

impl<T: Castable, const N: usize> Castable for [T; N] {
    type Cast = [T::Cast; N];

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        array::from_fn(|index| self[index].map_tensors(map))
    }
}

impl<K: Clone + Ord, V: Castable> Castable for BTreeMap<K, V> {
    type Cast = BTreeMap<K, V::Cast>;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        self.iter().map(|(key, value)| (key.clone(), value.map_tensors(map))).collect()
    }
}

impl<K: Clone + Eq + Hash, V: Castable, S: BuildHasher + Clone> Castable for HashMap<K, V, S> {
    type Cast = HashMap<K, V::Cast, S>;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
        let mut cast = HashMap::with_capacity_and_hasher(self.len(), self.hasher().clone());
        cast.extend(self.iter().map(|(key, value)| (key.clone(), value.map_tensors(map))));
        cast
    }
}

impl Castable for LSTMState {
    type Cast = LSTMState;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> LSTMState {
        LSTMState(self.0.map_tensors(map))
    }
}

impl Castable for GRUState {
    type Cast = GRUState;

    fn map_tensors(&self, map: &mut TensorMap<'_>) -> GRUState {
        GRUState(map(&self.0))
    }
}

impl Castable for str {
    type Cast = String;

    fn map_tensors(&self, _: &mut TensorMap<'_>) -> String {
        self.to_owned()
    }
}

macro_rules! untouched {
    ($($type:ty)*) => { $(
        #[diagnostic::do_not_recommend]
        impl Castable for $type {
            type Cast = Self;

            fn map_tensors(&self, _: &mut TensorMap<'_>) -> Self {
                self.clone()
            }
        }
    )* };
}

untouched! {
    () i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize
    f32 f64 bf16 f16 bool char String Kind Device
}

macro_rules! tuples {
    ($(($($type:ident)+))*) => { $(
        #[diagnostic::do_not_recommend]
        #[expect(non_snake_case, reason = "a type and its value share their name")]
        impl<$($type: Castable),+> Castable for ($($type,)+) {
            type Cast = ($($type::Cast,)+);

            fn map_tensors(&self, map: &mut TensorMap<'_>) -> Self::Cast {
                let ($($type,)+) = self;
                ($($type.map_tensors(map),)+)
            }
        }
    )* };
}

tuples! {
    (A)
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
    (A B C D E F G)
    (A B C D E F G H)
}
