//! The net: plain `tch`, with no word of mixed precision.

use tch::{
    Tensor,
    nn::{self, ModuleT},
};

/// Four convolutions with batch norm, and a linear layer on the average of what they found.
///
/// Nearly all of its work is in convolutions of 64 and 128 channels, where 16-bit types pay. The
/// first layers shrink the image by their stride, so that little is spent on large activations.
#[derive(Debug)]
pub struct Net {
    blocks: Vec<Block>,
    head: nn::Linear,
}

impl Net {
    const DIGITS: i64 = 10;

    pub fn new(path: &nn::Path) -> Self {
        // 28 × 28 pixels become 14 × 14, then 7 × 7.
        let blocks = vec![
            Block::new(path / "block1", 1, 64, 5, 2),
            Block::new(path / "block2", 64, 128, 3, 2),
            Block::new(path / "block3", 128, 128, 3, 1),
            Block::new(path / "block4", 128, 128, 3, 1),
        ];
        Self { blocks, head: nn::linear(path / "head", 128, Self::DIGITS, Default::default()) }
    }
}

impl ModuleT for Net {
    /// From images `[n, 1, 28, 28]` to logits `[n, 10]`.
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        let start = images.shallow_clone();
        let features = self.blocks.iter().fold(start, |xs, block| xs.apply_t(block, train));
        features.mean_dim([2, 3].as_slice(), false, None).apply(&self.head)
    }
}

/// Convolution, batch norm, ReLU.
#[derive(Debug)]
struct Block {
    convolution: nn::Conv2D,
    norm: nn::BatchNorm,
}

impl Block {
    fn new(path: nn::Path, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Self {
        let config = nn::ConvConfig {
            stride,
            padding: kernel / 2,
            // The batch norm that follows has one.
            bias: false,
            ws_init: nn::init::DEFAULT_KAIMING_NORMAL,
            ..Default::default()
        };
        // `tch` draws the scales from [0, 1) otherwise.
        let norm = nn::BatchNormConfig { ws_init: nn::Init::Const(1.0), ..Default::default() };
        Self {
            convolution: nn::conv2d(&path / "convolution", inputs, outputs, kernel, config),
            norm: nn::batch_norm2d(&path / "norm", outputs, norm),
        }
    }
}

impl ModuleT for Block {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Tensor {
        xs.apply(&self.convolution).apply_t(&self.norm, train).relu()
    }
}
