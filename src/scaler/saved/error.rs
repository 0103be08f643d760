//! Why a saved state is refused.

/// A state of loss scales that cannot be saved or loaded. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A step that uses the scale has not ended.
    #[error("the scale of loss {loss} is in use: end the step of each optimizer first")]
    InUse {
        /// The loss.
        loss: usize,
    },
    /// A layout of another version of the crate.
    #[error("`version` is {version}: this version of the crate reads 1")]
    Version {
        /// What was found.
        version: u32,
    },
    /// The numbers of losses differ.
    #[error(
        "the saved state is for {saved} loss(es), the builder's `num_losses` is {here}: \
         `load_common_scalers` loads the losses that both have"
    )]
    Losses {
        /// Losses in the saved state.
        saved: usize,
        /// Losses of the builder.
        here: usize,
    },
    /// One is static, the other dynamic.
    #[error("`{key}` is {saved} in the saved state, and {here} in the builder's `loss_scale`")]
    Kind {
        /// Where the scale stands.
        key: String,
        /// `"static"` or `"dynamic"`.
        saved: &'static str,
        /// `"static"` or `"dynamic"`.
        here: &'static str,
    },
    /// The builder has another setting.
    #[error("`{key}` is {saved} in the saved state, and {here} in the builder's `loss_scale`")]
    Setting {
        /// The setting and where it stands.
        key: String,
        /// Its value in the saved state; 0 for none.
        saved: f64,
        /// Its value in the builder's settings.
        here: f64,
    },
    /// Zero, negative, NaN, or outside the limits of the builder's settings.
    #[error("`{key}` is {scale}: by the builder's `loss_scale`, it must {}", lie(*min, *max))]
    Scale {
        /// Where it stands.
        key: String,
        /// The scale.
        scale: f64,
        /// The floor.
        min: f64,
        /// The ceiling.
        max: f64,
    },
    /// More overflows than the hysteresis allows.
    #[error("`{key}` is {value}: with the builder's hysteresis it is at most {most}")]
    OverflowsLeft {
        /// Where it stands.
        key: String,
        /// The value.
        value: u32,
        /// The hysteresis.
        most: u32,
    },
    /// A key that Apex does not write.
    #[error("unknown key `{key}`: expected `loss_scaler0` and so on")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A number is left out.
    #[error("`loss_scaler{loss}` is missing")]
    MissingLoss {
        /// The loss.
        loss: usize,
    },
    /// `GradScaler` has no static scales and no hysteresis.
    #[error("torch's `GradScaler` has no setting for `{key}`")]
    NotOfTorch {
        /// What it has no setting for.
        key: String,
    },
}

fn lie(min: f64, max: f64) -> String {
    match min == max {
        true => format!("be {min}"),
        false => format!("lie between {min} and {max}"),
    }
}
