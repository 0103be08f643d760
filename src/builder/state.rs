//! Which options a builder has set, as types.
//!
//! A state is a chain such as `SetMasterWeights<SetLossScale<Fresh>>`; users never write one.

use std::marker::PhantomData;

/// The option still has its level's default.
#[derive(Debug)]
pub enum NotSet {}

/// The option was set.
#[derive(Debug)]
pub enum AlreadySet {}

/// The option came with a config.
#[derive(Debug)]
pub enum InConfig {}

macro_rules! states {
    ($($option:ident => $set:ident),* $(,)?) => {
        /// One associated type per option: [`NotSet`], [`AlreadySet`] or [`InConfig`].
        pub trait State: sealed::State {
            $(#[doc = concat!("`", stringify!($option), "`")] type $option;)*
        }

        /// Nothing is set.
        #[derive(Debug)]
        pub enum Fresh {}
        impl State for Fresh { $(type $option = NotSet;)* }

        $(
            #[doc = concat!("`", stringify!($option), "` set on top of `S`.")]
            #[derive(Debug)]
            pub struct $set<S>(PhantomData<S>);
        )*
        states!(@set [] $($option => $set),*);

        mod sealed {
            pub trait State {}
            impl State for super::Fresh {}
            impl State for super::FromConfig {}
            $(impl<S> State for super::$set<S> {})*
        }
    };
    (@set [$($before:ident),*]) => {};
    (@set [$($before:ident),*] $option:ident => $set:ident $(, $after:ident => $rest:ident)*) => {
        impl<S: State> State for $set<S> {
            type $option = AlreadySet;
            $(type $before = S::$before;)*
            $(type $after = S::$after;)*
        }
        states!(@set [$($before,)* $option] $($after => $rest),*);
    };
}

states! {
    Enabled => SetEnabled,
    CastModelType => SetCastModelType,
    PatchTorchFunctions => SetPatchTorchFunctions,
    KeepBatchnormFp32 => SetKeepBatchnormFp32,
    KeepFp32 => SetKeepFp32,
    MasterWeights => SetMasterWeights,
    Rounding => SetRounding,
    LossScale => SetLossScale,
    NumLosses => SetNumLosses,
    CastModelOutputs => SetCastModelOutputs,
}

/// The options come from a config, which counts as setting all but `num_losses`.
#[derive(Debug)]
pub enum FromConfig {}

impl State for FromConfig {
    type Enabled = InConfig;
    type CastModelType = InConfig;
    type PatchTorchFunctions = InConfig;
    type KeepBatchnormFp32 = InConfig;
    type KeepFp32 = InConfig;
    type MasterWeights = InConfig;
    type Rounding = InConfig;
    type LossScale = InConfig;
    type NumLosses = NotSet;
    type CastModelOutputs = InConfig;
}
